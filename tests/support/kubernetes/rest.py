"""HTTP: what a request asks of the cluster, and its answer as JSON.

What the verbs do must not live here.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.support.kubernetes import statuses
from tests.support.kubernetes.access import Access, User
from tests.support.kubernetes.deletion import DeleteOptions, Deletion
from tests.support.kubernetes.exec_sessions import ExecSessions, container_name
from tests.support.kubernetes.kinds import ACCESS_REVIEWS, PODS
from tests.support.kubernetes.logs import LogOptions
from tests.support.kubernetes.nodes import Nodes
from tests.support.kubernetes.registry import Registry
from tests.support.kubernetes.requests import Recorded, Target
from tests.support.kubernetes.selectors import matcher
from tests.support.kubernetes.store import Object
from tests.support.kubernetes.watches import Selection, Watches, listed

Verb = Callable[[web.BaseRequest, Target, Recorded], Awaitable[web.StreamResponse]]

WATCH_S = 1800.0
NOTHING = "404 page not found"


class Rest:
    """One method for each verb of RBAC."""

    def __init__(
        self,
        registry: Registry,
        deletion: Deletion,
        access: Access,
        watches: Watches,
        nodes: Nodes,
        sessions: ExecSessions,
    ) -> None:
        self._registry, self._store, self._deletion = registry, registry.store, deletion
        self._access, self._watches, self._nodes, self._sessions = access, watches, nodes, sessions
        self._verbs: dict[str, Verb] = {
            "create": self._create,
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def answer(
        self, request: web.BaseRequest, target: Target, user: User, recorded: Recorded
    ) -> web.StreamResponse:
        """Raises ApiError."""
        if target.kind is ACCESS_REVIEWS:
            if target.verb != "create":
                raise statuses.unsupported_method()
            return _json(self._access.review(user, await _body(request, recorded)), 201)
        if target.subresource:
            return await self._subresource(request, target)
        return await self._verbs[target.verb](request, target, recorded)

    async def _create(self, request: web.BaseRequest, target: Target, recorded: Recorded) -> web.StreamResponse:
        if target.name:
            raise statuses.unsupported_method()
        body = await _body(request, recorded)
        if request.query.get("dryRun"):
            return _json(body, 201)
        return _json(self._registry.create(target.kind, _place(target), body), 201)

    async def _get(self, request: web.BaseRequest, target: Target, recorded: Recorded) -> web.StreamResponse:
        return _json(self._store.get(target.kind, _place(target), target.name))

    async def _list(self, request: web.BaseRequest, target: Target, recorded: Recorded) -> web.StreamResponse:
        return _json(listed(_selection(request, target), self._store))

    async def _watch(self, request: web.BaseRequest, target: Target, recorded: Recorded) -> web.StreamResponse:
        version = request.query.get("resourceVersion", "")
        self._watches.check(version)
        selection = _selection(request, target)
        seconds = float(request.query.get("timeoutSeconds", WATCH_S))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for event in self._watches.stream(selection, version, seconds):
            await response.write(json.dumps(event).encode() + b"\n")
        await response.write_eof()
        return response

    async def _update(self, request: web.BaseRequest, target: Target, recorded: Recorded) -> web.StreamResponse:
        body = await _body(request, recorded)
        return _json(self._registry.replace(target.kind, _place(target), target.name, body))

    async def _patch(self, request: web.BaseRequest, target: Target, recorded: Recorded) -> web.StreamResponse:
        body = await _body(request, recorded)
        return _json(self._registry.patch(target.kind, _place(target), target.name, body, request.content_type))

    async def _delete(self, request: web.BaseRequest, target: Target, recorded: Recorded) -> web.StreamResponse:
        options = await _delete_options(request, recorded)
        return _json(self._deletion.delete(target.kind, _place(target), target.name, options))

    async def _delete_collection(
        self, request: web.BaseRequest, target: Target, recorded: Recorded
    ) -> web.StreamResponse:
        options = await _delete_options(request, recorded)
        selection = _selection(request, target)
        answer = listed(selection, self._store)
        for each in selection.of(self._store):
            self._deletion.delete(target.kind, each["metadata"].get("namespace", ""), each["metadata"]["name"], options)
        return _json(answer)

    async def _subresource(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        if target.kind is not PODS or target.subresource not in {"log", "exec", "status"}:
            raise statuses.ApiError(404, "NotFound", "the server could not find the requested resource", details={})
        pod = self._store.get(PODS, target.namespace, target.name)
        if target.subresource == "exec":
            return await self._sessions.serve(request, pod)
        if target.subresource == "status":
            if target.verb != "get":
                raise statuses.unsupported_method()
            return _json(pod)
        return await self._log(request, pod)

    async def _log(self, request: web.BaseRequest, pod: Object) -> web.StreamResponse:
        options = LogOptions.of(request.query)
        name = container_name(pod, request.query.get("container", ""))
        if not pod["spec"].get("nodeName"):
            return web.Response(text="")  # there is no node to ask, and that is no error
        logs = self._nodes.worker(pod).logs.get(name, [])
        if options.previous:
            logs = logs[:-1]
        if not logs:
            which = "previous terminated container" if options.previous else "container"
            what = "not found" if options.previous else "is waiting to start: ContainerCreating"
            said = f'{which} "{name}" in pod "{pod["metadata"]["name"]}" {what}'
            raise statuses.bad_request(said)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for data in logs[-1].read(options):
            await response.write(data)
        await response.write_eof()
        return response


def error_response(error: statuses.ApiError) -> web.Response:
    if error.code == 429:  # said by what keeps the server from too much, not by the API
        return web.Response(status=429, text=f"{error.message}\n", headers=error.headers)
    return _json(error.status, error.code, error.headers)


async def _body(request: web.BaseRequest, recorded: Recorded) -> Any:
    """Raises ApiError."""
    data = await request.read()
    try:
        recorded.body = json.loads(data)
    except ValueError as error:
        raise statuses.bad_request(f"the object provided is unrecognized: {error}") from error
    return recorded.body


async def _delete_options(request: web.BaseRequest, recorded: Recorded) -> DeleteOptions:
    """From the body, and from the query where there is none. Raises ApiError."""
    given: dict[str, Any] = await _body(request, recorded) if request.can_read_body else {}
    given = {key: value for key, value in given.items() if value is not None}
    if not given:
        names = ("propagationPolicy", "gracePeriodSeconds", "orphanDependents")
        given = {name: request.query[name] for name in names if name in request.query}
    recorded.options = given
    return DeleteOptions.of(given)


def _selection(request: web.BaseRequest, target: Target) -> Selection:
    matches = matcher(request.query)
    if not target.name:
        return Selection(target.kind, _place(target), matches)
    return Selection(
        target.kind, _place(target), lambda each: each["metadata"]["name"] == target.name and matches(each)
    )


def _place(target: Target) -> str:
    """The namespace that an object is kept in."""
    return target.namespace if target.kind.namespaced else ""


def _json(body: Any, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(body, status=code, headers=headers)
