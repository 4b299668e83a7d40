"""A worker host whose activities do what a test says, under the wire names of the real ones.

Each fake host has a host name and a task queue of its own, so that tests share one server. The real activities must not
live here; they have tests of their own.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, Worker

from steersman.contracts import names
from steersman.contracts.activities import (
    ApprovalAsked,
    Claim,
    Delivered,
    DeliverInput,
    FinalizeInput,
    RunAgentInput,
    RunOutcome,
    SessionStarted,
    Settlement,
    StopInput,
)
from steersman.contracts.notices import NoticeAnswer, NoticeInput
from steersman.contracts.run import Approval, Handle, RunResult, RunState, StopReport
from steersman.contracts.workspace_hold import HoldWorkspace, WorkspaceHeld
from steersman.converter import DATA_CONVERTER
from tests.support import processes
from tests.support.temporal import FEW_POLLS
from workers.wiring import workflow_runner
from workflows.agent_loop import AgentLoop
from workflows.agent_run import AgentRun
from workflows.run_notice import RunNotice
from workflows.runner import ReplaySafeRunner

Run = WorkflowHandle[Any, Any]

QUIET = pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")
"""The SDK says so of a local activity that ended while its workflow was put out of the cache."""

STOPPED = StopReport(outcome="stopped", phase="running", how="terminated", processes=2, took_ms=7)
WAIT_S = 20.0


async def found_nothing(stop: StopInput) -> StopReport:
    """Plays stop_agent for a run of which the host has no process."""
    return StopReport(outcome="already_finished", phase=stop.phase, how="exited")


def done(text: str = "done", **fields: Any) -> RunOutcome:
    """What run_agent answers for an agent that did its work."""
    facts = {"status": "succeeded", "text": text, "session_id": "s-1", "attempts": 1, "turns": 1, **fields}
    return RunOutcome.model_validate(facts)


async def until(condition: Callable[[], Awaitable[object] | object], wait_s: float = WAIT_S) -> Any:
    """Wait until a condition, plain or async, holds; its value."""
    async with asyncio.timeout(wait_s):
        return await processes.until(condition, wait_s)


class FakeHost:
    """Plays claim_host, hold_workspace, run_agent, deliver_messages, stop_agent and finalize_run. Replace a `play_*` to
    say how.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.host = f"host-{uuid.uuid4().hex[:8]}"
        self.queue = f"steersman-{self.host}"
        self.started: list[Run] = []
        self.ending: asyncio.Future[RunOutcome] = asyncio.get_running_loop().create_future()
        self.deliveries: list[DeliverInput] = []
        self.stops: list[StopInput] = []
        self.ends: list[FinalizeInput] = []
        self.runs: list[RunAgentInput] = []
        self.notices: list[NoticeInput] = []
        self.holds: list[HoldWorkspace] = []
        self.free: asyncio.Future[WorkspaceHeld] = asyncio.get_running_loop().create_future()
        """When the workspace is free, for runs whose claim says that another one has it."""
        self.cancelled = asyncio.Event()
        self.local = True
        """The worker that runs the workflow is the one that holds the session."""

    # ---- what a test may replace

    async def play_claim(self, request: Any) -> Claim:
        return Claim(host=self.host)

    async def play_hold(self, hold: HoldWorkspace) -> WorkspaceHeld:
        return await asyncio.shield(self.free)

    async def play_agent(self, run: RunAgentInput) -> RunOutcome:
        """At work until the test says how it ends, or a cancel comes."""
        await self.began(run.key.run)
        try:
            return await asyncio.shield(self.ending)
        except asyncio.CancelledError:
            self.cancelled.set()
            return RunOutcome(status="stopped", session_id="s-1", attempts=1)

    async def play_delivery(self, delivery: DeliverInput) -> Delivered:
        taken = tuple(Settlement(id=each.id, state="acknowledged", how="mid_turn") for each in delivery.messages)
        return Delivered(here=True, messages=taken)

    async def play_stop(self, stop: StopInput) -> StopReport:
        return STOPPED.model_copy(update={"phase": stop.phase})

    async def play_end(self, end: FinalizeInput) -> None:
        return None

    async def play_notice(self, given: NoticeInput) -> NoticeAnswer:
        return NoticeAnswer(status=200)

    # ---- the activities

    @activity.defn(name=names.CLAIM_HOST)
    async def claim_host(self, request: Any) -> Claim:
        return await self.play_claim(request)

    @activity.defn(name=names.HOLD_WORKSPACE)
    async def hold_workspace(self, hold: HoldWorkspace) -> WorkspaceHeld:
        self.holds.append(hold)
        pulse = asyncio.ensure_future(_pulse())
        try:
            return await self.play_hold(hold)
        finally:
            pulse.cancel()
            await asyncio.gather(pulse, return_exceptions=True)

    @activity.defn(name=names.RUN_AGENT)
    async def run_agent(self, run: RunAgentInput) -> RunOutcome:
        self.runs.append(run)
        pulse = asyncio.ensure_future(_pulse())
        try:
            return await self.play_agent(run)
        finally:
            pulse.cancel()
            await asyncio.gather(pulse, return_exceptions=True)

    @activity.defn(name=names.DELIVER_MESSAGES)
    async def deliver_messages(self, delivery: DeliverInput) -> Delivered:
        self.deliveries.append(delivery)
        return await self.play_delivery(delivery)

    @activity.defn(name=names.DELIVER_MESSAGES)
    async def deliver_here(self, delivery: DeliverInput) -> Delivered:
        """As the workflow's own worker answers: it may hold the session itself."""
        return await self.deliver_messages(delivery) if self.local else Delivered(here=False)

    @activity.defn(name=names.DELIVER_MESSAGES)
    async def deliver_elsewhere(self, delivery: DeliverInput) -> Delivered:
        """As a worker of the host answers that does not lead the run, and knows of none that does."""
        return Delivered(here=False)

    @activity.defn(name=names.STOP_AGENT)
    async def stop_agent(self, stop: StopInput) -> StopReport:
        self.stops.append(stop)
        return await self.play_stop(stop)

    @activity.defn(name=names.FINALIZE_RUN)
    async def finalize_run(self, end: FinalizeInput) -> None:
        self.ends.append(end)
        await self.play_end(end)

    @activity.defn(name=names.SEND_NOTICE)
    async def send_notice(self, given: NoticeInput) -> NoticeAnswer:
        self.notices.append(given)
        return await self.play_notice(given)

    # ---- workers

    @asynccontextmanager
    async def at_work(
        self, *, runs: bool = True, host: bool = True, delivery: bool = True, local: bool = False, cached: int = 100
    ) -> AsyncIterator["FakeHost"]:
        """Poll the queues; what is left out is a worker that is dead, or has no room.

        `local`: one worker does it all, so messages need no further round trip. `cached`: how many runs are kept in
        memory between their workflow tasks; with none, each task replays its run from the first event. At the end
        every run is replayed once.
        """
        self.local = local
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            here = [self.claim_host, self.deliver_here]
            await enter(
                self.worker(self.queue, workflows=[AgentRun, RunNotice], activities=here, max_cached_workflows=cached)
            )
            await enter(self.hosting(runs=runs, host=host, delivery=delivery))
            yield self
        for run in self.started:
            await replays(run)

    @asynccontextmanager
    async def hosting(self, *, runs: bool = True, host: bool = True, delivery: bool = True) -> AsyncIterator[None]:
        """Poll the queues of the host alone: nobody decides."""
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            if host:
                queue = names.host_queue(self.host)
                there = [self.claim_host, self.hold_workspace, self.stop_agent, self.finalize_run, self.send_notice]
                await enter(self.worker(queue, activities=[*there, self.deliver_elsewhere]))
            if runs:
                await enter(self.worker(names.runs_queue(self.host), activities=[self.run_agent]))
            if delivery:
                await enter(self.worker(self.own_queue(), activities=[self.deliver_messages]))
            yield

    def worker(self, queue: str, **options: Any) -> Worker:
        """A worker of this host; a cancel reaches its activities with the next heartbeat, at the latest.

        Without the sandbox, as ours are: `replays` has it.
        """
        options = {"workflow_runner": workflow_runner(), **FEW_POLLS, **options}
        throttle = timedelta(seconds=0.1)
        return Worker(self.client, task_queue=queue, max_heartbeat_throttle_interval=throttle, **options)

    def own_queue(self, number: int = 0) -> str:
        """The queue of one worker process."""
        return names.worker_queue(self.host, f"w{number}")

    # ---- what a session says to its workflow

    async def began(self, run: str, *, worker: int = 0, pid: int = 4711, attempt: int = 1, epoch: int = 0) -> None:
        """A worker holds the session, and its process lives."""
        handle = Handle(host=self.host, boot_id="b", pid=pid, start_time=1, worker_queue=self.own_queue(worker))
        queue = self.own_queue(worker)
        session = SessionStarted(worker_queue=queue, handle=handle, attempt=attempt, epoch=epoch)
        await self.client.get_workflow_handle(run).signal(names.SESSION_STARTED, session)

    async def ask(self, run: str, name: str, *, withdrawn: bool = False, since: datetime | None = None) -> None:
        """The agent wants to use a tool, or no longer does."""
        approval = Approval(id=name, tool="Bash", input={"command": "ls"}, since=since or datetime.now(UTC))
        asked = ApprovalAsked(approval=approval, withdrawn=withdrawn)
        await self.client.get_workflow_handle(run).signal(names.APPROVAL_ASKED, asked)

    # ---- runs

    async def start(self, **fields: Any) -> Run:
        """A run of "claude" (its fields may be replaced)."""
        request = {"agent": "claude", "prompt": "work", "workspace": {"path": "/w"}, **fields}
        return await self.start_raw(request)

    async def start_raw(self, *inputs: Any) -> Run:
        """A run with any inputs at all."""
        run = f"run-{uuid.uuid4()}"
        started = await self.client.start_workflow(names.RUN_WORKFLOW, args=inputs, id=run, task_queue=self.queue)
        self.started.append(started)
        return started

    def delivered(self) -> list[str]:
        """The ids of all messages handed over, in order."""
        return [each.id for delivery in self.deliveries for each in delivery.messages]

    def decisions(self) -> list[tuple[str, str]]:
        """All decisions delivered, in order."""
        delivered = [each for delivery in self.deliveries for each in delivery.decisions]
        return [(each.decision.id, each.decision.decision) for each in delivered]


async def state(run: Run) -> RunState:
    """What the `state` query answers."""
    return RunState.model_validate(await run.query(names.STATE_QUERY))


async def phase(run: Run, wanted: str) -> RunState:
    """Wait for a phase."""

    async def there() -> RunState | None:
        now = await state(run)
        return now if now.phase == wanted else None

    found: RunState = await until(there)
    return found


async def took(run: Run, signal: str) -> None:
    """Wait until a workflow task has taken this signal. Nothing is asked of the workflow: one that no worker caches may
    lose a task over a query that comes meanwhile (temporalio 1.35.0 drops what waits beside the first as it evicts).
    """

    async def taken() -> bool:
        found = [
            event.workflow_execution_signaled_event_attributes.signal_name or EventType.Name(event.event_type)
            for event in (await run.fetch_history()).events
        ]
        return signal in found and "EVENT_TYPE_WORKFLOW_TASK_COMPLETED" in found[found.index(signal) :]

    await until(taken)


async def succeeded(run: Run) -> RunResult:
    """The result of a run that completes."""
    async with asyncio.timeout(WAIT_S):
        return RunResult.model_validate(await run.result())


async def failure(run: Run) -> ApplicationError:
    """The failure that a run closes with."""
    with pytest.raises(WorkflowFailureError) as raised:
        async with asyncio.timeout(WAIT_S):
            await run.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError), cause
    assert cause.non_retryable
    return cause


async def failed(run: Run) -> tuple[str | None, str, RunResult]:
    """The type and the sentence of a failure, and what a RunResult would have been."""
    error = await failure(run)
    (result,) = error.details
    return error.type, error.message, RunResult.model_validate(result)


async def cancelled(run: Run) -> RunState:
    """The state of a run that closes as Canceled."""
    with contextlib.suppress(WorkflowFailureError):
        async with asyncio.timeout(WAIT_S):
            await run.result()
    description = await run.describe()
    assert description.status is not None
    assert description.status.name == "CANCELED"
    return await state(run)


async def timers(workflow: WorkflowHandle[Any, Any]) -> list[str]:
    """What the Web UI says of each timer of the history; empty where it says nothing."""
    started = [
        each async for each in workflow.fetch_history_events() if each.HasField("timer_started_event_attributes")
    ]
    return [each.user_metadata.summary.data.decode() for each in started]


async def event_types(run: Run) -> list[str]:
    """The run's history as names of event types."""
    history = await run.fetch_history()
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events]


async def replays(workflow: WorkflowHandle[Any, Any]) -> None:
    """The history of its last execution, a run's or a loop's, replays in the full sandbox."""
    history = await workflow.fetch_history()
    kind = history.events[0].workflow_execution_started_event_attributes.workflow_type.name
    # The sandbox loads the code of each workflow that it is given.
    workflows = [{names.LOOP_WORKFLOW: AgentLoop, names.RUN_WORKFLOW: AgentRun}[kind]]
    replayer = Replayer(workflows=workflows, data_converter=DATA_CONVERTER, workflow_runner=ReplaySafeRunner())
    await replayer.replay_workflow(history)


async def never_failed(workflow: WorkflowHandle[Any, Any]) -> None:
    """No workflow task of it ever failed, but where the server asked for it because something was said."""
    unhandled = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    async for event in workflow.fetch_history_events():
        assert event.workflow_task_failed_event_attributes.cause in (0, unhandled), event


async def never_retried(run: Run) -> None:
    """No workflow task of this run ever failed or was lost."""
    await never_failed(run)
    assert "WORKFLOW_TASK_TIMED_OUT" not in await event_types(run)


async def _pulse() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.1)
