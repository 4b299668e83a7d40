"""A machine with Steersman on it, all of its own: a Temporal server, a state directory, workers that come and go.

How runs are started on it and followed; no assertion about them belongs here.
"""

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.converter import PayloadCodec

from steersman.client import Steersman
from steersman.contracts.events import AgentEvent, is_terminal
from steersman.contracts.messages import MessageReceipt
from steersman.contracts.names import RUN_AGENT
from steersman.contracts.run import MessageRecord, MessageState
from steersman.errors import HostUnreachable, NoWorker
from tests.scripted_model import Script
from tests.support.nodes import Node
from tests.support.processes import PATIENCE_S, kill_marked, marked, parent, until
from tests.support.temporal import DevServer, Namespace, binary
from tests.support.workers import WorkerProcess

T = TypeVar("T")

REQUESTS_MAY_SET = ("ANTHROPIC_BASE_URL",)


class Following:
    """A run's events as an attached client gets them."""

    def __init__(self, steersman: Steersman, run: str, after: int) -> None:
        self.events: list[AgentEvent] = []
        self._task = asyncio.create_task(self._follow(steersman, run, after))

    async def _follow(self, steersman: Steersman, run: str, after: int) -> None:
        # As a person does who is told that nobody answers: a busy machine's may take more than the client's 5 s.
        for further in (True, True, True, True, False):
            try:
                async for event in steersman.attach(run, after=self.events[-1].seq if self.events else after):
                    self.events.append(event)
            except (HostUnreachable, NoWorker):
                if not further:
                    raise
            else:
                return

    async def until(self, condition: Callable[[AgentEvent], bool], timeout_s: float = PATIENCE_S) -> AgentEvent:
        """The first event that the condition holds for, once it has come."""

        def found() -> AgentEvent | None:
            if self._task.done() and (error := self._task.exception()):
                raise error
            return next(filter(condition, self.events), None)

        return await until(found, timeout_s)

    async def end(self, timeout_s: float = 60) -> list[AgentEvent]:
        """All events, once following has ended by itself."""
        await asyncio.wait_for(self._task, timeout_s)
        return self.events

    def leave(self) -> None:
        self._task.cancel()


class Site:
    """See the module. `root` is in the environment of every process of it, so nothing of it can hide."""

    def __init__(
        self,
        root: Path,
        namespace: Namespace | None = None,
        settings: tuple[str, ...] = (),
        flags: tuple[str, ...] = (),
    ) -> None:
        """`namespace`: where its runs are; without one it has a server of its own, with these settings. `flags`: of all
        its workers that a test does not ask for with flags of their own alone.
        """
        self.root = root
        self._flags = flags
        self.state = root / "state"
        for name in ("home", "tmp", "claude"):
            (root / name).mkdir()
        self._server = None if namespace else DevServer(root, settings).start()
        self.namespace = namespace or self.server.default
        self.workers: list[WorkerProcess] = []

    @property
    def server(self) -> DevServer:
        """Its own."""
        assert self._server, "this site is on the server that all share: ask for `site_with_server`"
        return self._server

    # Workers.

    def worker(self, *flags: str, **env: str) -> WorkerProcess:
        """A further worker with what the tests' requests need allowed; it may not be polling yet."""
        return self.bare_worker(*self._allowed, *flags, **env)

    def worker_on(self, node: Node, *flags: str, **env: str) -> WorkerProcess:
        """The same, on a machine of its own."""
        return self._worker((*self._allowed, *flags), {**node.env, **env}, node.within)

    def worker_within(self, within: tuple[str, ...], *flags: str) -> WorkerProcess:
        """The same as `worker`, run by a command that runs the one behind it."""
        return self._worker((*self._allowed, *flags), {}, within)

    def bare_worker(self, *flags: str, **env: str) -> WorkerProcess:
        """A further worker, with these flags and no other."""
        return self._worker(flags, env)

    @property
    def _allowed(self) -> tuple[str, ...]:
        return (*self._flags, *(part for name in REQUESTS_MAY_SET for part in ("--allow-env", name)))

    def _worker(self, flags: tuple[str, ...], env: dict[str, str], within: tuple[str, ...] = ()) -> WorkerProcess:
        worker = WorkerProcess(
            self.root / f"worker-{len(self.workers)}.log",
            ("--state-dir", str(self.state), *flags),
            {**self.namespace.env, **self._agents_env(), **env},
            forked=self._server is None,
            within=within,
        )
        self.workers.append(worker)
        return worker

    def _agents_env(self) -> dict[str, str]:
        env = {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            **Script("", (), repeat=False, keep=None).env(self.root / "claude"),
        }
        del env["ANTHROPIC_BASE_URL"]  # each run brings the address of its own script
        return env

    def end(self) -> None:
        """Nothing of it is left afterwards, whatever the test came to."""
        for worker in self.workers:
            worker.kill()
        kill_marked(str(self.root))
        if self._server:
            self._server.close()

    # Runs.

    async def steersman(self, codec: PayloadCodec | None = None) -> Steersman:
        """A client, once the server's namespace answers."""
        client = await self.namespace.connect()
        if codec is None:
            return Steersman(client)
        return await Steersman.connect(address=self.namespace.address, namespace=self.namespace.name, codec=codec)

    def workspace(self) -> Path:
        """A directory of a run's own."""
        path = self.root / f"workspace-{secrets.token_hex(4)}"
        path.mkdir()
        return path

    def process(self, *command: str, mark: str = "", **request: Any) -> dict[str, Any]:
        """A request for a program; `mark` comes into the environment of all its processes."""
        env = {"RUN_MARK": mark} if mark else {}
        workspace = request.pop("workspace", None) or self.workspace()
        return {
            "agent": "process",
            "workspace": {"path": str(workspace)},
            "command": list(command),
            "env": {**env, **request.pop("env", {})},
            **request,
        }

    def claude(self, script: Script, prompt: str = "go", mark: str = "", **request: Any) -> dict[str, Any]:
        """A request for Claude Code with that script as its model."""
        env = {"ANTHROPIC_BASE_URL": script.url, **({"RUN_MARK": mark} if mark else {})}
        workspace = request.pop("workspace", None) or self.workspace()
        return {
            "agent": "claude",
            "prompt": prompt,
            "workspace": {"path": str(workspace)},
            "env": {**env, **request.pop("env", {})},
            **request,
        }

    async def temporal(self, *arguments: str, check: bool = True) -> Any:
        """The Temporal CLI, its JSON answer decoded."""
        process = await asyncio.to_thread(
            subprocess.run,
            [binary("temporal"), *arguments, "--output", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), **self.namespace.env},
        )
        assert process.returncode == 0 or not check, process.stderr.decode()
        return json.loads(process.stdout) if process.stdout.strip() else None


@asynccontextmanager
async def following(steersman: Steersman, run: str, after: int = 0) -> AsyncIterator[Following]:
    """Attached to a run for the length of a block."""
    attached = Following(steersman, run, after)
    try:
        yield attached
    finally:
        attached.leave()


async def gone(mark: str, timeout_s: float = 20.0) -> None:
    """Wait until no process with the mark is left."""
    await until(lambda: not marked(mark), timeout_s)


async def leader(steersman: Steersman, run: str) -> int | None:
    """The pid of the worker that leads the run, as the server knows; None while nobody does."""
    description = await steersman.temporal.get_workflow_handle(run).describe()
    for each in description.raw_description.pending_activities:
        if each.activity_type.name == RUN_AGENT and each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
            return int(each.last_worker_identity.partition("@")[0].partition("-")[0])
    return None


async def settled(steersman: Steersman, run: str, message: str, *states: MessageState) -> MessageRecord:
    """The message, once the run says one of these of it. Its receipt comes within 5 s, however busy the machine is."""

    async def found() -> MessageRecord | None:
        messages = (await answered(partial(steersman.state, run))).messages
        return next((each for each in messages if each.id == message and each.state in states), None)

    return await until(found)


async def heard(steersman: Steersman, run: str, receipt: MessageReceipt) -> None:
    """Wait until the agent has the message: by its receipt or, where the machine was too busy for that, by the run."""
    if receipt.state == "queued":
        await settled(steersman, run, receipt.id, "delivered", "acknowledged")
    else:
        assert receipt.state in ("delivered", "acknowledged"), receipt


async def phase(steersman: Steersman, run: str, wanted: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until the run is in that phase."""

    async def there() -> bool:
        return (await steersman.state(run)).phase == wanted

    await until(there, timeout_s)


async def answered(ask: Callable[[], Awaitable[T]], timeout_s: float = 40.0) -> T:
    """What somebody says who is asked again while nobody is there: a worker or the server may be on its way back."""

    async def once() -> tuple[T]:
        return (await ask(),)

    (said,) = await until(once, timeout_s)
    return said


def claudes(mark: str) -> list[int]:
    """The processes of Claude Code with that mark, without those that it is about to make another program of."""
    found = [pid for pid, line in marked(mark).items() if "stream-json" in line]
    return [pid for pid in found if parent(pid) not in found]


def in_order(events: list[AgentEvent]) -> bool:
    """Whether the events are whole: numbered from 1 without a gap, the last and only the last one terminal."""
    numbers = [event.seq for event in events]
    return (
        numbers == list(range(1, len(events) + 1)) and [is_terminal(e) for e in events].index(True) == len(events) - 1
    )
