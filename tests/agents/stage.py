"""A session on the real local runtime, with a workflow that only listens.

What must not live here: any agent's protocol, and Temporal.
"""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from activities.admission.trust import untrusted
from activities.ports.admission import Admission
from activities.ports.agent import Agent
from activities.ports.place import PlaceInfo
from activities.ports.workflow import AgentAtWork
from activities.running.controller import RunController
from activities.running.launch import RunContext, further
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.event_reader import Cursor, read
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import (
    ApprovalAsked,
    Delivered,
    DeliverInput,
    OutgoingDecision,
    OutgoingMessage,
    Progressed,
    RunKey,
    RunOutcome,
    Settlement,
)
from steersman.contracts.attachments import Attachment
from steersman.contracts.events import EventBase
from steersman.contracts.messages import Decision
from steersman.contracts.request import RunRequest, parse_request
from steersman.contracts.run import Handle, MessageKind
from tests.support.processes import kill_marked, marked, until

BASE = ("PATH", "HOME", "LANG")


class Listener:
    """The run's workflow, as a session sees it: it hears everything and says nothing."""

    age_s = 0.0

    def __init__(self) -> None:
        self.handles: list[tuple[Handle, int]] = []
        self.progress: list[Progressed] = []
        self.asks: list[ApprovalAsked] = []
        self.settlements: list[Settlement] = []

    async def preparing(self) -> None: ...

    async def started(self, handle: Handle, attempt: int, *, adopted: bool, agent: AgentAtWork) -> None:
        self.handles.append((handle, attempt))

    async def progressed(self, progress: Progressed) -> None:
        self.progress.append(progress)

    async def asked(self, asked: ApprovalAsked) -> None:
        self.asks.append(asked)

    async def settled(self, settlements: list[Settlement]) -> None:
        self.settlements += settlements


class _NothingKept:
    commit: str | None = None

    async def changes(self, limit: int) -> str:
        return ""

    async def keep(self) -> str | None:
        return None


NOTHING_KEPT = _NothingKept()
"""Where the workspace is in no repository."""


class Stage:
    """One run on this machine. `session` makes a worker's hold on it; the newest has it."""

    def __init__(self, directory: Path, agent: Agent, request: RunRequest, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.agent, self.request = agent, request
        self.key = RunKey(run=f"run-{self.mark[:8]}", execution="e")
        self.store = RunStore(directory / "state", Ownership("cluster", "default"))
        self.runtime = ShimRuntime(self.store, "host")
        self.listener = Listener()
        self.directory = self.store.create(self.key)
        base = {name: os.environ[name] for name in BASE if name in os.environ}
        self.environment = {**base, **environment, "STAGE_MARK": self.mark}
        self.trusted = True
        self.restricted = False
        self._epoch = 0
        self._tasks: list[asyncio.Task[RunOutcome]] = []

    def session(self, epoch: int | None = None) -> RunController:
        """A worker's hold on the run, newer than all before."""
        self._epoch += 1
        run = RunContext(
            key=self.key,
            agent_key=self.directory.agent_key,
            request=self.request,
            agent=self.agent,
            runtime=self.runtime,
            directory=self.directory,
            admission=self,
            baseline=NOTHING_KEPT,
            epoch=self._epoch if epoch is None else epoch,
        )
        numbers = range(1, len(self.request.fallback) + 1)
        fallback = tuple(further(run, number, self.request.of_part(number), self.agent) for number in numbers)
        return RunController(replace(run, fallback=fallback), self.listener)

    @property
    def workspace(self) -> Path:
        return Path(self.request.workspace.path).resolve()

    def admit(self, place: PlaceInfo | None, attempt: int, home: PurePath) -> Admission:
        """As a policy does that allows everything, in a workspace that is trusted or not."""
        directory = self.workspace
        found = None if self.trusted else untrusted(directory, self.agent.files)
        return Admission(dict(self.environment), directory, untrusted=found, restricted=self.restricted)

    async def lock_session(self, session: str) -> None:
        """Nobody else is here."""

    def start(self) -> tuple[RunController, "asyncio.Task[RunOutcome]"]:
        """A worker takes the run."""
        session = self.session()
        task = asyncio.create_task(session.run())
        self._tasks.append(task)
        return session, task

    async def play(self) -> RunOutcome:
        """One worker leads the run to its end."""
        _, task = self.start()
        async with asyncio.timeout(100):
            return await task

    async def detach(self) -> None:
        """The newest worker ends as in a deploy."""
        task = self._tasks[-1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # ---- looking

    @property
    def events(self) -> list[Any]:
        """The run's event log."""
        try:
            return read(self.directory.events, Cursor(), 0, 1 << 40)[0]
        except FileNotFoundError:
            return []

    def said(self, kind: str, **fields: Any) -> list[Any]:
        """Events of one type with these fields."""
        return [
            event
            for event in self.events
            if event.type == kind and all(getattr(event, name) == value for name, value in fields.items())
        ]

    async def wait_for(self, kind: str, **fields: Any) -> EventBase:
        """Wait for such an event."""
        found = await until(lambda: self.said(kind, **fields))
        event: EventBase = found[0]
        return event

    async def pid(self, attempt: int = 1) -> int:
        """The agent's process."""
        handles = await until(lambda: [each for each, number in self.listener.handles if number == attempt])
        return handles[-1].pid

    def alive(self) -> dict[int, str]:
        """Everything of the agent that lives, its shims aside."""
        return {pid: line for pid, line in marked(self.mark).items() if "steersman-shim" not in line}

    async def kill(self, attempt: int = 1) -> None:
        """SIGKILL to the agent."""
        os.kill(await self.pid(attempt), signal.SIGKILL)

    async def close(self) -> None:
        """Leave nothing behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.release(self.key)
        kill_marked(self.mark)


def message(
    kind: MessageKind, text: str | None = None, name: str = "m-1", images: tuple[Attachment, ...] = ()
) -> DeliverInput:
    """One message for the agent."""
    outgoing = OutgoingMessage(id=name, kind=kind, text=text, attachments=images)
    return DeliverInput(key=RunKey(run="r", execution="e"), messages=(outgoing,), patience_s=20)


def word(approval: str, decision: str, tool: str, **fields: Any) -> DeliverInput:
    """A person's word on an approval."""
    said = Decision.model_validate({"id": approval, "decision": decision, **fields})
    outgoing = OutgoingDecision(decision=said, tool=tool)
    return DeliverInput(key=RunKey(run="r", execution="e"), decisions=(outgoing,), patience_s=20)


async def deliver(session: RunController, parcel: DeliverInput) -> Delivered:
    """Deliver as the workflow does: again and again until somebody is there."""

    async def attempt() -> Delivered | None:
        delivered = await session.deliver(parcel)
        return delivered if delivered.here else None

    return await until(attempt)


async def told(session: RunController, parcel: DeliverInput) -> Settlement:
    """Deliver one message; what became of it."""
    (settled,) = (await deliver(session, parcel)).messages
    return settled


def end(name: str = "e-1") -> DeliverInput:
    """An interrupt that ends the run with its turn."""
    outgoing = OutgoingMessage(id=name, kind="interrupt", end=True)
    return DeliverInput(key=RunKey(run="r", execution="e"), messages=(outgoing,), patience_s=20)


@asynccontextmanager
async def staged(
    directory: Path, agent: Agent, environment: Mapping[str, str], fields: Mapping[str, Any]
) -> AsyncIterator[Stage]:
    """A stage in this directory, with a workspace. The field `undeclared` has what the agent's row does not allow a
    request to have, and the agent is to get all the same.
    """
    workspace = directory / "workspace"
    workspace.mkdir(exist_ok=True)
    given = {"workspace": {"path": str(workspace)}, **fields}
    undeclared = given.pop("undeclared", {})
    request = parse_request(given)
    if undeclared:  # an agent of which nothing is known is refused nothing
        other = parse_request({"agent": "unknown", "prompt": "-", "workspace": given["workspace"], **undeclared})
        request = request.model_copy(update={name: getattr(other, name) for name in undeclared})
    agent.check(request)
    stage = Stage(directory, agent, request, environment)
    try:
        yield stage
    finally:
        await stage.close()
