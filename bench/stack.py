"""A Temporal server and workers in a directory of their own, of which nothing is left afterwards.

Only starting, killing and clearing away; what is shown or measured on it is its user's.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from activities.shim import client as shim
from steersman.cli.devserver import DevServerError, blocked_ports, proxy_command, server_command, temporal_program
from steersman.client import Steersman
from steersman.errors import SteersmanError

ROOT: Final = Path(__file__).resolve().parent.parent
IP: Final = "127.0.0.1"
READY_S: Final = 60.0
UI_PORT: Final = 8233
AGENT_VARIABLES: Final = ("ANTHROPIC_", "CLAUDE", "STEERSMAN_", "TEMPORAL_", "IS_SANDBOX")


class StackError(Exception):
    """A part did not come up; the message holds its last words."""


class Part:
    """One child process with a log file."""

    def __init__(self, name: str, log: Path, process: asyncio.subprocess.Process) -> None:
        self.name, self.log, self._process = name, log, process

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> "Part":
        with log.open("ab") as out:
            # A session of its own: Ctrl-C at the terminal is ours to answer.
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(env),
                cwd=ROOT,
                start_new_session=True,
            )
        return cls(name, log, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def last_words(self, count: int = 8) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    async def kill(self, number: signal.Signals = signal.SIGKILL, grace_s: float = 10) -> None:
        """Send the signal and wait; SIGKILL if it did not help."""
        if self.alive:
            self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        if self.alive:
            self._process.kill()
            await self._process.wait()


class Stack:
    """Made by `stack`."""

    def __init__(self, home: Path, *, keep_agent_variables: bool) -> None:
        self.home, self.state = home, home / "state"
        self.port = free_port()
        self.ui_port = free_port(UI_PORT)
        self.metrics_port = 0
        self.workers: list[Part] = []
        self._server: Part | None = None
        self._web: Part | None = None
        self._client: Steersman | None = None
        dropped = ("STEERSMAN_", "TEMPORAL_") if keep_agent_variables else AGENT_VARIABLES
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self._env = {**kept, "TEMPORAL_ADDRESS": self.address, "TEMPORAL_CONFIG_FILE": os.devnull}

    def agent_env(self, env: Mapping[str, str]) -> None:
        """Variables for the agents of workers that are started from now on."""
        self._env.update(env)

    @property
    def address(self) -> str:
        return f"{IP}:{self.port}"

    @property
    def ui(self) -> str:
        return f"http://{IP}:{self.ui_port}/namespaces/default/workflows"

    @property
    def client(self) -> Steersman:
        assert self._client, "the server is not up"
        return self._client

    @property
    def server(self) -> Part:
        assert self._server, "the server is not up"
        return self._server

    async def start_server(self) -> None:
        """Return when it answers. Raises StackError."""
        try:
            hidden, self.metrics_port = blocked_ports(2)
            database = self.home / "temporal.db"
            command = server_command(temporal_program(), self.port, database, hidden, self.metrics_port)
        except DevServerError as error:
            raise StackError(str(error)) from error
        command += ["--log-level", "error"]
        self._server = await Part.start("Temporal server", command, self.home / "server.log", self._env)
        web = proxy_command(self.ui_port, hidden)
        self._web = await Part.start("Web UI's proxy", web, self.home / "web.log", self._env)
        async with self._patience(self._web):
            while "Uvicorn running" not in self._web.log.read_text(errors="replace"):
                await _alive(self._web)
        async with self._patience(self._server):
            while self._client is None:
                try:
                    client = await Steersman.connect(address=self.address, namespace="default")
                    await client.list(limit=1)
                    self._client = client
                except SteersmanError:
                    await _alive(self._server)

    async def start_worker(self, *arguments: str) -> Part:
        """Return when it polls. Raises StackError."""
        log = self.home / f"worker-{len(self.workers) + 1}.log"
        command = [sys.executable, str(ROOT / "worker.py"), "--state-dir", str(self.state), *arguments]
        worker = await Part.start("worker", command, log, self._env)
        self.workers.append(worker)
        async with self._patience(worker):
            while '"worker_ready"' not in log.read_text(errors="replace"):
                await _alive(worker)
        return worker

    async def close(self) -> None:
        """End everything, the agents too."""
        for worker in self.workers:
            await worker.kill(signal.SIGTERM, grace_s=3)
        await clear_agents(self.state)
        for part in (self._web, self._server):
            if part:
                await part.kill(signal.SIGTERM, grace_s=5)

    @contextlib.asynccontextmanager
    async def _patience(self, part: Part) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(READY_S):
                yield
        except TimeoutError as error:
            raise StackError(f"the {part.name} was not ready after {READY_S:.0f} s:\n{part.last_words()}") from error


@contextlib.asynccontextmanager
async def stack(*, keep_agent_variables: bool = False) -> AsyncIterator[Stack]:
    """A stack whose server is up and that has no worker yet. `keep_agent_variables`: keys of the caller's, too."""
    home = Path(tempfile.mkdtemp(prefix="steersman-"))
    built = Stack(home, keep_agent_variables=keep_agent_variables)
    try:
        await built.start_server()
        yield built
    finally:
        # A second Ctrl-C must not leave processes behind either.
        closing = asyncio.ensure_future(built.close())
        while not closing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([closing])
        shutil.rmtree(home, ignore_errors=True)


async def clear_agents(state: Path) -> None:
    """Stop every agent whose run is kept in this state directory, whoever held it."""
    for journal in state.glob("runs/*/*/attempts/*/journal"):
        with contextlib.suppress(shim.ShimError, OSError):
            if shim.is_alive(journal.parent):
                async with await shim.connect(journal.parent, epoch=None) as connection:
                    await connection.stop(reason="its stack is taken down")
                    await connection.release()
            else:
                await shim.kill_marked(journal.parent)


def free_port(wanted: int = 0) -> int:
    """`wanted` where nobody listens there, else any."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((IP, port))
            return int(probe.getsockname()[1])
    raise StackError("no free port")


def is_there(pid: int) -> bool:
    """Whether a process of that id exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


async def until(what: str, condition: Callable[[], bool], patience_s: float = 30, every_s: float = 0.02) -> None:
    """Poll until the condition holds. Raises TimeoutError naming it."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {patience_s:.0f} s")
        await asyncio.sleep(every_s)


async def _alive(part: Part) -> None:
    await asyncio.sleep(0.05)
    if not part.alive:
        raise StackError(f"the {part.name} ended at once:\n{part.last_words()}")
