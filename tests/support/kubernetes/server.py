"""The API server: puts the cluster together, and serves it on a port of loopback.

What it does with a request must not live here.
"""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.support.kubernetes import kubeconfig
from tests.support.kubernetes.access import Access
from tests.support.kubernetes.deletion import Deletion
from tests.support.kubernetes.deployments import DeploymentController
from tests.support.kubernetes.discovery import discovery, version
from tests.support.kubernetes.events import Events
from tests.support.kubernetes.exec_sessions import ExecSessions
from tests.support.kubernetes.faults import Faults, HungUpError
from tests.support.kubernetes.jobs import JobController
from tests.support.kubernetes.kinds import NAMESPACES
from tests.support.kubernetes.listener import Listener
from tests.support.kubernetes.nodes import Nodes
from tests.support.kubernetes.registry import Registry
from tests.support.kubernetes.requests import Recorded, target
from tests.support.kubernetes.rest import NOTHING, Rest, error_response
from tests.support.kubernetes.scheduler import Scheduler
from tests.support.kubernetes.settings import Settings
from tests.support.kubernetes.statuses import ApiError
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.watches import Watches

BODY_MAX = 3 << 20


class ApiServer:
    """A cluster of its own. `async with` starts it; leaving ends every process of its pods.

    Its methods and those of its parts belong to its event loop; `settings`, `faults` and `access` may be set from any
    thread.
    """

    def __init__(self, directory: Path, settings: Settings | None = None, *, tls: bool = False) -> None:
        self.directory = directory
        self.settings = settings or Settings()
        self.settings.hidden = (*self.settings.hidden, str(directory))
        self.requests: list[Recorded] = []
        self.faults = Faults()
        self.access = Access(self.settings)
        self.store = Store()
        self.deletion = Deletion(self.store)
        self.registry = Registry(self.store, self.deletion, self.settings)
        self.events = Events(self.store)
        self.nodes = Nodes(self.registry, self.deletion, self.events, directory)
        self.watches = Watches(self.store)
        self.sessions = ExecSessions(self.nodes, self.faults, self.settings)
        self._rest = Rest(self.registry, self.deletion, self.access, self.watches, self.nodes, self.sessions)
        self._queues = (
            self.deletion.queue,
            Scheduler(self.registry, self.nodes, self.events).queue,
            JobController(self.registry, self.deletion, self.events).queue,
            DeploymentController(self.registry, self.deletion).queue,
        )
        self._tls = tls
        self._authority: Path | None = None
        self._controllers: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.listener.port}"

    def kubeconfig(self, path: Path, token: str = Access.admin, namespace: str = "default") -> Path:
        """Write one for a token."""
        return kubeconfig.write(path, self.url, token, namespace=namespace, authority=self._authority)

    def unreachable(self) -> None:
        """Refuse and cut every connection, as a server that is being restarted. The cluster goes on."""
        self.listener.close()

    def reachable(self) -> None:
        """Be there again, on the same port."""
        self.listener.open()

    async def start(self) -> None:
        context = None
        if self._tls:
            self._authority, context = kubeconfig.certificate(self.directory)
        self._runner = web.ServerRunner(web.Server(self._serve, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server
        self.listener = Listener(self._runner.server, context)
        self.listener.open()
        self.registry.create(NAMESPACES, "", {"metadata": {"name": "default"}})
        self.nodes.start()
        self._controllers = [asyncio.create_task(each.run()) for each in self._queues]

    async def aclose(self) -> None:
        """End everything. Raises what a controller or a node did not foresee."""
        self.listener.close()
        self.sessions.cut()
        self.watches.end()
        failures = [error for each in self._controllers if each.done() and (error := each.exception())]
        for each in self._controllers:
            each.cancel()
        await asyncio.gather(*self._controllers, return_exceptions=True)
        await self.nodes.aclose()
        await self.sessions.aclose()
        await self._runner.cleanup()
        failures += self.nodes.failures
        if failures:
            raise ExceptionGroup("the cluster has failed", [each for each in failures if isinstance(each, Exception)])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        recorded = Recorded(request.method, request.path, tuple(request.query.items()))
        self.requests.append(recorded)
        try:
            response = await self._answer(request, recorded)
        except ApiError as error:
            response = error_response(error)
        except HungUpError:
            if request.transport:
                request.transport.abort()
            response = web.Response(status=500)
        recorded.status = recorded.status or response.status
        return response

    async def _answer(self, request: web.BaseRequest, recorded: Recorded) -> web.StreamResponse:
        asked = target(request.method, request.path, request.query)
        if asked:
            recorded.verb, recorded.resource = asked.verb, asked.resource
        await self.faults.meet(recorded)
        if request.path in {"/readyz", "/livez", "/healthz"}:
            return web.Response(text="ok")
        if request.path.rstrip("/") == "/version":
            return version(self.settings.release)
        user = self.access.user(request.headers.get("Authorization", ""))
        recorded.user = user.name
        if asked is None:
            return discovery(request.path.rstrip("/")) or web.Response(status=404, text=f"{NOTHING}\n")
        self.access.check(user, asked)
        return await self._rest.answer(request, asked, user, recorded)
