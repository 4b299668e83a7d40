"""A fake host: the real AgentRun workflow, with activities whose events and results the test sets.

For tests of the client and the command line alone; the real activities have tests of their own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.agents.catalog import AGENTS
from steersman.contracts import names
from steersman.contracts.activities import (
    ApprovalAsked,
    Claim,
    Delivered,
    DeliverInput,
    EndRun,
    EventPage,
    FinalizeInput,
    OutgoingDecision,
    OutgoingMessage,
    Progressed,
    PruneInput,
    ReadEvents,
    RunAgentInput,
    RunEnd,
    RunOutcome,
    SessionStarted,
    Settlement,
    StopInput,
    Swept,
)
from steersman.contracts.errors import InvalidRequest, RunError
from steersman.contracts.events import (
    CancelledEvent,
    EventBase,
    InitEvent,
    MessageEvent,
    PermissionEvent,
    ToolOutputEvent,
    ToolResultEvent,
    ToolUseEvent,
    is_terminal,
)
from steersman.contracts.request import parse_request
from steersman.contracts.run import Approval, Handle, StopReport, Usage
from workflows.agent_run import AgentRun

KILLED = StopReport(outcome="stopped", phase="running", how="killed", processes=4, took_ms=1500, reason="enough")


def now() -> datetime:
    return datetime.now(UTC)


def init(session: str = "s-1") -> InitEvent:
    return InitEvent(time=now(), session_id=session, model="scripted-1", tools=("Bash", "Read"))


def said(text: str, **fields: Any) -> MessageEvent:
    return MessageEvent(time=now(), text=text, **fields)


def tool_use(name: str, **arguments: Any) -> ToolUseEvent:
    return ToolUseEvent(time=now(), id=f"t-{name}", name=name, input=arguments)


def tool_output(name: str, text: str, **fields: Any) -> ToolOutputEvent:
    return ToolOutputEvent(time=now(), id=f"t-{name}", text=text, **fields)


def tool_result(name: str, text: str, *, is_error: bool = False) -> ToolResultEvent:
    return ToolResultEvent(time=now(), id=f"t-{name}", name=name, text=text, is_error=is_error)


def succeeded(text: str = "done", **fields: Any) -> RunOutcome:
    return RunOutcome(
        status="succeeded",
        text=text,
        session_id="s-1",
        usage=Usage(input_tokens=10, output_tokens=5),
        cost_usd=0.0123,
        turns=2,
        attempts=1,
        **fields,
    )


@dataclass
class FakeRun:
    """What the fake host knows of one run."""

    events: list[EventBase] = field(default_factory=list)
    ending: asyncio.Future[RunOutcome | RunError] = field(default_factory=asyncio.Future)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[OutgoingMessage] = field(default_factory=list)
    decisions: list[OutgoingDecision] = field(default_factory=list)
    request: Any = None


class FakeHost:
    """The host's workers. `refuse`: the message with which claim_host refuses; `failing_reads`: the next reads fail,
    every other one by an answer that no client understands; `stopped_reads`: the next reads end with their worker, as
    in a deploy; `is_frozen`: reads do nothing, as those of a killed one.
    """

    def __init__(self, client: Client, host: str = "fake-host") -> None:
        self.client = client
        self.host = host
        self.workflows: list[type] = [AgentRun]
        self.fake_runs: dict[str, FakeRun] = {}
        self.refuse: str | None = None
        self.reads = 0
        self.failing_reads = 0
        self.stopped_reads = 0
        self.is_frozen = False
        self.next_end: int | None = 6
        self.last: Callable[[int], int | None] = lambda number: number
        """What a page says of the end of the next one, counted from its own beginning."""
        self.changed = asyncio.Event()

    def fake_run(self, run: str) -> FakeRun:
        return self.fake_runs.setdefault(run, FakeRun())

    def show(self, run: str, *events: EventBase) -> None:
        """Append events to the run's log."""
        log = self.fake_run(run).events
        log += [each.model_copy(update={"seq": len(log) + 1 + n}) for n, each in enumerate(events)]
        self.changed.set()
        self.changed = asyncio.Event()

    def finish(self, run: str, outcome: RunOutcome | RunError) -> None:
        """End the agent with this result or error."""
        self.fake_run(run).ending.set_result(outcome)

    async def ask(self, run: str, approval: str, tool: str, **arguments: Any) -> None:
        """Let the agent ask for an approval."""
        await self.fake_run(run).started.wait()
        asked = ApprovalAsked(approval=Approval(id=approval, tool=tool, input=arguments, since=now()))
        await self.client.get_workflow_handle(run).signal(names.APPROVAL_ASKED, asked)
        self.show(run, PermissionEvent(time=now(), id=approval, tool=tool, input=arguments, state="asked"))

    async def await_message(self, run: str) -> None:
        """Let the agent do nothing until it is told how to go on."""
        await self.fake_run(run).started.wait()
        await self.client.get_workflow_handle(run).signal(names.PROGRESSED, Progressed(awaits_message=True))

    @property
    def queue(self) -> str:
        return names.worker_queue(self.host, "w1")

    @activity.defn(name=names.CLAIM_HOST)
    async def claim_host(self, request: Any) -> Claim:
        if self.refuse:
            error = InvalidRequest(self.refuse)
            raise application_error(error)
        wanted = parse_request(request)
        return Claim(host=self.host, capabilities=AGENTS[wanted.agent].capabilities(wanted))

    @activity.defn(name=names.RUN_AGENT)
    async def run_agent(self, asked: RunAgentInput) -> RunOutcome:
        fake = self.fake_run(asked.key.run)
        fake.request = asked.request
        handle = Handle(host=self.host, boot_id="b", pid=4711, start_time=1, worker_queue=self.queue)
        session = SessionStarted(worker_queue=self.queue, handle=handle, attempt=1)
        await self.client.get_workflow_handle(asked.key.run).signal(names.SESSION_STARTED, session)
        fake.started.set()
        beat = asyncio.ensure_future(_heartbeat())
        try:
            outcome = await asyncio.shield(fake.ending)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.worker_shutdown:
                raise RuntimeError("the next worker goes on") from None
            return RunOutcome(status="stopped", session_id="s-1", attempts=1)
        finally:
            beat.cancel()
        if isinstance(outcome, RunError):
            raise application_error(outcome)
        return outcome

    @activity.defn(name=names.DELIVER_MESSAGES)
    async def deliver_messages(self, parcel: DeliverInput) -> Delivered:
        fake = self.fake_run(parcel.key.run)
        fake.messages += parcel.messages
        for each in parcel.decisions:
            fake.decisions.append(each)
            self.show(
                parcel.key.run,
                PermissionEvent(
                    time=now(),
                    id=each.decision.id,
                    tool=each.tool,
                    state="allowed" if each.decision.decision == "allow" else "denied",
                ),
            )
        taken = tuple(Settlement(id=each.id, state="acknowledged", how="mid_turn") for each in parcel.messages)
        return Delivered(here=True, messages=taken)

    @activity.defn(name=names.STOP_AGENT)
    async def stop_agent(self, asked: StopInput) -> StopReport:
        return StopReport(outcome="stopped", phase=asked.phase, how="terminated", processes=3, took_ms=42)

    @activity.defn(name=names.FINALIZE_RUN)
    async def finalize_run(self, asked: FinalizeInput) -> None:
        self.show(asked.key.run, asked.event)

    @activity.defn(name=names.READ_EVENTS)
    async def read_events(self, asked: ReadEvents) -> Any:
        self.reads += 1
        if self.is_frozen:
            await asyncio.Event().wait()
        if self.stopped_reads:
            self.stopped_reads -= 1
            raise ApplicationError("Worker is shutting down", type="WorkerShutdown")
        if self.failing_reads:
            self.failing_reads -= 1
            if self.failing_reads % 2:
                raise RuntimeError("the log is locked")
            return {"events": [{"type": "unheard of"}], "ended": True}
        deadline = time.monotonic() + asked.wait_s
        while True:
            if asked.key.run not in self.fake_runs:
                return EventPage(events=(), ended=False, known=False)
            log = self.fake_runs[asked.key.run].events
            ended = bool(log) and is_terminal(log[-1])
            if log[asked.after :] or ended or time.monotonic() >= deadline:
                # Three events a page, so that readers need several pages.
                page = tuple(log[asked.after : asked.after + 3])
                ended = ended and (not page or is_terminal(page[-1]))
                more = len(log) > asked.after + 6
                next_end = asked.after + self.next_end if self.next_end and more else None
                last = self.last(page[-1].seq) if page else None
                return EventPage.model_validate({"events": page, "ended": ended, "next_end": next_end, "last": last})
            activity.heartbeat()
            await _at_most(self.changed, min(1.0, deadline - time.monotonic()))

    @activity.defn(name=names.END_RUN)
    async def end_run(self, asked: EndRun) -> RunEnd:
        """As a host: the end that the log has; of a terminated run one that says how the agent was stopped."""
        if asked.key.run not in self.fake_runs:
            return RunEnd(known=False)
        log = self.fake_runs[asked.key.run].events
        if not (log and is_terminal(log[-1])):
            found = await self.client.get_workflow_handle(asked.key.run).describe()
            if found.status != WorkflowExecutionStatus.TERMINATED:
                return RunEnd()
            self.show(asked.key.run, CancelledEvent(time=now(), terminated=True, stop_report=KILLED))
        return RunEnd.model_validate({"event": log[-1].model_dump()})

    @activity.defn(name=names.PRUNE_HOST)
    async def prune_host(self, asked: PruneInput) -> Swept:
        return Swept(pruned=("run-old",), bytes_freed=0 if asked.dry_run else 1234)

    def others(self) -> list[Callable[..., Any]]:
        """Further activities of the host."""
        return []

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator["FakeHost"]:
        """Poll the host's task queues."""
        on_host = [self.stop_agent, self.finalize_run, self.read_events, self.end_run, self.prune_host, *self.others()]
        async with AsyncExitStack() as workers:
            for queue, options in (
                (
                    names.TASK_QUEUE,
                    {"workflows": self.workflows, "activities": [self.claim_host, self.deliver_messages]},
                ),
                (names.host_queue(self.host), {"activities": [*on_host, self.deliver_messages]}),
                (
                    names.runs_queue(self.host),
                    {"activities": [self.run_agent], "max_heartbeat_throttle_interval": timedelta(seconds=0.1)},
                ),
                (self.queue, {"activities": [self.deliver_messages]}),
            ):
                await workers.enter_async_context(Worker(self.client, task_queue=queue, **options))
            yield self

    async def terminate_runs(self) -> None:
        """Leave no run to the host of the next test, which polls the same queues."""
        for run in self.fake_runs:
            with suppress(RPCError):  # it has closed
                await self.client.get_workflow_handle(run).terminate()


def application_error(error: RunError) -> Exception:
    return ApplicationError(error.message, type=error.type, non_retryable=True)


async def _at_most(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), max(seconds, 0.01))
    except TimeoutError:
        return


async def _heartbeat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.1)
