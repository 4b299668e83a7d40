"""Commands in containers over websockets: `v4.channel.k8s.io` and `v5.channel.k8s.io`, as API server and kubelet do it.

Whether a client may do that must not live here.
"""

import asyncio
import json
from subprocess import DEVNULL, PIPE
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.kubernetes import statuses
from tests.support.kubernetes.containers import StartError, exit_code
from tests.support.kubernetes.faults import ExecCut, Faults
from tests.support.kubernetes.nodes import Nodes
from tests.support.kubernetes.requests import true
from tests.support.kubernetes.settings import Settings
from tests.support.kubernetes.store import Object

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
V5 = "v5.channel.k8s.io"
CHUNK = 32 << 10


class ExecSessions:
    """All that there are, so that they can be cut."""

    def __init__(self, nodes: Nodes, faults: Faults, settings: Settings) -> None:
        self._nodes, self._faults, self._settings = nodes, faults, settings
        self._open: set[ExecSession] = set()
        self._processes: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """Connections, not commands."""
        return len(self._open)

    def cut(self) -> None:
        """Every connection. The commands go on; their stdin ends."""
        for each in self._open:
            each.cut()

    async def aclose(self) -> None:
        """Return when every command has ended, as it does with its container."""
        await asyncio.gather(*self._processes, return_exceptions=True)

    async def serve(self, request: web.BaseRequest, pod: Object) -> web.StreamResponse:
        """Answer one request for exec. Raises ApiError."""
        name = container_name(pod, request.query.get("container", ""))
        worker = self._nodes.worker(pod)
        offered = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        protocol = next((each for each in self._settings.release.exec_protocols if each in offered), None)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise statuses.bad_request("Upgrade request required")
        if protocol is None:
            return web.Response(status=403)
        wanted = [each for each in ("stdin", "stdout", "stderr") if true(request.query, each)]
        if not wanted:
            raise statuses.bad_request("you must specify at least 1 of stdin, stdout, stderr")
        container = worker.running.get(name)
        refusal = None if container else f'container not found ("{name}")'
        if refusal and protocol != V5:
            return web.Response(status=500, text=refusal)
        session = ExecSession(request, protocol, set(wanted), self._faults)
        self._open.add(session)
        try:
            await session.open()
            if container is None:
                await session.end(statuses.internal(f"unable to upgrade connection: {refusal}").status)
                return session.socket
            try:
                process = await container.enter(
                    request.query.getall("command", []),
                    stdin=PIPE if "stdin" in wanted else DEVNULL,
                    stdout=PIPE,
                    stderr=PIPE,
                )
            except StartError as error:
                said = f"failed to exec in container: failed to start exec: OCI runtime exec failed: {error}: unknown"
                await session.end(statuses.internal(f"error executing command in container: {said}").status)
                return session.socket
            task = asyncio.create_task(session.run(process))
            self._processes.add(task)
            task.add_done_callback(self._processes.discard)
            await session.listen(process)
            return session.socket
        finally:
            self._open.discard(session)


class ExecSession:
    """One connection, and the command behind it."""

    def __init__(self, request: web.BaseRequest, protocol: str, wanted: set[str], faults: Faults) -> None:
        self.socket = web.WebSocketResponse(protocols=(protocol,), max_msg_size=0, compress=False)
        self._request, self._protocol, self._wanted, self._faults = request, protocol, wanted, faults
        self._cut_after: ExecCut = faults.next_exec_cut()

    async def open(self) -> None:
        await self.socket.prepare(self._request)
        if self._protocol != V5:  # the kubelet tells that it is there; the translator of v5 does not
            await self._send(
                STDOUT if "stdout" in self._wanted else STDERR if "stderr" in self._wanted else STATUS, b""
            )

    def cut(self) -> None:
        if self._request.transport:
            self._request.transport.abort()

    async def run(self, process: asyncio.subprocess.Process) -> None:
        """Until the command has ended, and all that held its output: then its Status."""
        assert process.stdout
        assert process.stderr
        await asyncio.gather(
            self._copy(process.stdout, STDOUT, "stdout" in self._wanted),
            self._copy(process.stderr, STDERR, "stderr" in self._wanted),
        )
        code = exit_code(await process.wait())
        if self._faults.drops_status():
            self.cut()
            return
        await self.end(result(code))

    async def end(self, status: dict[str, Any]) -> None:
        await self._send(STATUS, json.dumps(status).encode())
        await self.socket.close()

    async def listen(self, process: asyncio.subprocess.Process) -> None:
        """Until the connection has ended: stdin ends with it, the command does not."""
        stdin = process.stdin
        async for message in self.socket:
            if message.type is WSMsgType.BINARY:
                data = bytes(message.data)
            elif message.type is WSMsgType.TEXT:
                data = str(message.data).encode()
            else:
                break
            self._cut_after.received -= max(len(data) - 1, 0)
            if self._cut_after.received < 0:
                self.cut()
                break
            if stdin and data[:1] == bytes([STDIN]) and data[1:]:
                await self._feed(stdin, data[1:])
            elif stdin and self._protocol == V5 and data[:2] == bytes([CLOSE, STDIN]):
                stdin.close()
                stdin = None
        if stdin:
            stdin.close()

    async def _feed(self, stdin: asyncio.StreamWriter, data: bytes) -> None:
        if stdin.is_closing():
            return
        try:
            stdin.write(data)
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the command does not read any more: the kubelet swallows what comes then

    async def _copy(self, stream: asyncio.StreamReader, channel: int, wanted: bool) -> None:  # noqa: FBT001
        while data := await stream.read(CHUNK):
            if wanted:
                await self._send(channel, data)

    async def _send(self, channel: int, data: bytes) -> None:
        """Nothing happens where nobody listens any more."""
        self._cut_after.sent -= len(data)
        if self._cut_after.sent < 0:
            self.cut()
        if self.socket.closed:
            return
        try:
            await self.socket.send_bytes(bytes([channel]) + data)
        except (ConnectionError, RuntimeError):
            pass


def container_name(pod: Object, asked: str) -> str:
    """Which container a request means. Raises ApiError."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    main = [each["name"] for each in spec["containers"]]
    first = [each["name"] for each in spec.get("initContainers") or []]
    if not asked:
        if len(main) == 1:
            return str(main[0])
        annotations = pod["metadata"].get("annotations") or {}
        default = annotations.get("kubectl.kubernetes.io/default-container")
        if default in main:
            return str(default)
        also = f" or one of the init containers: [{' '.join(first)}]" if first else ""
        message = f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]{also}"
        raise statuses.bad_request(message)
    if asked not in {*main, *first}:
        raise statuses.bad_request(f"container {asked} is not valid for pod {name}")
    return asked


def result(code: int) -> dict[str, Any]:
    """The Status of a command that has ended."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
