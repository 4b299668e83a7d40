"""One cluster's API, as one context of the worker's kubeconfig reaches it, or the service account of its own pod.

Objects are JSON as the server sends it: the official library's models would refuse what a newer or older server says.
What is asked, and what follows from an answer, must not live here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

from activities.runtimes.exec_connection import Carrier
from activities.runtimes.kubernetes.api_client import Clients, session_of
from activities.shim.client import MachineUnreachable, MachineUnusable
from steersman import timeouts
from steersman.contracts.text import flat

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

R = TypeVar("R")
_ANSWER_S: Final = 15.0
_UNKNOWN: Final = 401
_MAX_ANSWER: Final = 32 * 1024 * 1024
_LONGEST: Final = 500
_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class ApiRefused(Exception):
    """The server has answered no, in its own words. `status`: of HTTP; `reason`: Kubernetes' word, as NotFound."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    @property
    def is_transient(self) -> bool:
        """Whether the same may be granted a moment later."""
        return self.status in _TRANSIENT


class KubernetesApi:
    """`context`: of the kubeconfig; None: its current one, or the service account of the worker's own pod."""

    def __init__(self, context: str | None, environ: Mapping[str, str]) -> None:
        self._clients = Clients(context, environ)

    @property
    def name(self) -> str:
        return self._clients.name

    @property
    def namespace(self) -> str:
        """The context's own. Known once something was asked."""
        return self._clients.namespace

    async def connect(self) -> None:
        """Read the kubeconfig, unless that has been done. Raises MachineUnusable."""
        await self._clients.current()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """An object, or a list of them. Raises ApiRefused, MachineUnreachable."""
        return await self._ask("GET", path, query)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ApiRefused, MachineUnreachable: then it may have been made or not."""
        return await self._ask("POST", path, {}, body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A merge patch. Raises ApiRefused, MachineUnreachable."""
        return await self._ask("PATCH", path, {}, body, "application/merge-patch+json")

    async def delete(self, path: str, uid: str, **options: Any) -> None:
        """Delete this very object: none of the name that was made since. Raises ApiRefused, MachineUnreachable."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}, **options}
        await self._ask("DELETE", path, {}, body)

    async def exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecSocket:
        """Run a program in a container. Raises ApiRefused, MachineUnreachable."""

        async def begin(client: ApiClient) -> ExecSocket:
            return await self._exec(client, namespace, pod, container, argv)

        return await self._known(begin)

    async def _known(self, ask: Callable[[ApiClient], Awaitable[R]]) -> R:
        """The answer; asked once more where the server does not know us any more and there are newer credentials."""
        client = await self._clients.current()
        try:
            return await ask(client)
        except ApiRefused as error:
            if error.status != _UNKNOWN or (renewed := await self._clients.renewed(client)) is None:
                raise
            return await ask(renewed)

    async def _exec(
        self, client: ApiClient, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> ExecSocket:
        import aiohttp

        query = [("container", container), *(("command", word) for word in argv)]
        query += [(name, "true") for name in ("stdin", "stdout", "stderr")]
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{urlencode(query)}"
        try:
            async with timeouts.timeout(_ANSWER_S):
                socket = await session_of(client).ws_connect(
                    client.configuration.host + path,
                    headers=await self._clients.headers(client),
                    protocols=_PROTOCOLS,
                    proxy=client.configuration.proxy,
                    max_msg_size=0,
                    autoping=True,
                )
        except aiohttp.WSServerHandshakeError as error:
            raise ApiRefused(error.status, "", flat(f"exec: HTTP {error.status} {error.message}")) from error
        except TimeoutError:
            raise MachineUnreachable(f"{self.name}: no program began in pod {pod} within {_ANSWER_S:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise MachineUnreachable(f"{self.name}: {flat(str(error))[:_LONGEST]}") from error
        return ExecSocket(socket, f"{self.name}/{namespace}/{pod}")

    async def aclose(self) -> None:
        await self._clients.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        target = path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()

        async def ask(client: ApiClient) -> dict[str, Any]:
            return await self._answer(client, method, target, data, kind)

        return await self._known(ask)

    async def _answer(
        self, client: ApiClient, method: str, target: str, data: bytes | None, kind: str
    ) -> dict[str, Any]:
        import aiohttp

        url = f"{client.configuration.host}{target}"
        headers = {"Accept": "application/json", "Content-Type": kind, **await self._clients.headers(client)}
        try:
            async with timeouts.timeout(_ANSWER_S):
                session = session_of(client)
                proxy = client.configuration.proxy
                async with session.request(method, url, data=data, headers=headers, proxy=proxy) as response:
                    status, said = response.status, await response.content.read(_MAX_ANSWER)
                    while len(said) < _MAX_ANSWER and (more := await response.content.read(_MAX_ANSWER - len(said))):
                        said += more
        except TimeoutError:
            raise MachineUnreachable(f"{self.name}: the API server does not answer within {_ANSWER_S:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise MachineUnreachable(f"{self.name}: {flat(str(error))[:_LONGEST]}") from error
        try:
            answer = json.loads(said)
        except (ValueError, RecursionError):
            answer = None
        if status >= 400:
            raise _refusal(status, answer, said)
        if not isinstance(answer, dict):
            raise MachineUnreachable(f"{self.name}: the API server's answer is no JSON object")
        return answer


class ExecSocket(Carrier):
    """A program in a container: what it says on stdout is received, what is sent is its stdin."""

    def __init__(self, socket: Any, name: str) -> None:
        self._socket, self._name, self._errors = socket, name, b""

    async def send(self, data: bytes) -> None:
        """See Carrier."""
        try:
            await self._socket.send_bytes(bytes([_STDIN]) + data)
        except (OSError, RuntimeError) as error:
            raise MachineUnreachable(f"{self._name}: the connection was lost: {error}") from error

    async def receive(self) -> bytes:
        """See Carrier."""
        import aiohttp

        while True:
            message = await self._socket.receive()
            if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
                raise MachineUnreachable(f"{self._name}: {self._said() or 'the connection was lost'}")
            if message.type == aiohttp.WSMsgType.ERROR:
                raise MachineUnreachable(f"{self._name}: the connection was lost: {message.data}")
            data = message.data if message.type == aiohttp.WSMsgType.BINARY else str(message.data).encode()
            if not data:
                continue
            channel, data = data[0], data[1:]
            if channel == _STDOUT and data:
                return bytes(data)
            if channel == _STDERR:
                self._errors = (self._errors + data)[-4096:]
            if channel == _STATUS:
                raise self._ended(data)

    async def aclose(self) -> None:
        """See Carrier."""
        with contextlib.suppress(Exception):
            async with timeouts.timeout(2):
                await self._socket.close()

    def _said(self) -> str:
        return flat(self._errors.decode("utf-8", "replace").strip().rpartition("\n")[2])[:_LONGEST]

    def _ended(self, data: bytes) -> MachineUnreachable:
        """Our program never ends before its connection does: something is missing, or it was killed."""
        try:
            status = json.loads(data)
        except (ValueError, RecursionError):
            status = {}
        status = status if isinstance(status, dict) else {}
        message = flat(str(status.get("message") or status.get("status") or "it has ended"))[:_LONGEST]
        text = f"{self._name}: {self._said() or message}"
        if any(word in message for word in ("executable file not found", "no such file or directory", "exit code 127")):
            return MachineUnusable(f"{text}: the image has to have Python 3.9 or newer (runtime.python)")
        if "ModuleNotFoundError" in text:
            return MachineUnusable(f"{text}: the image has to have all of Python's standard library (runtime.python)")
        return MachineUnreachable(text)


def _refusal(status: int, answer: object, said: bytes) -> ApiRefused:
    facts = answer if isinstance(answer, dict) else {}
    message = facts.get("message")
    text = message if isinstance(message, str) and message else said.decode("utf-8", "replace") or f"HTTP {status}"
    return ApiRefused(status, str(facts.get("reason") or ""), flat(text)[:2000])
