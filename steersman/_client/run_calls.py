"""Calls to a run's workflow: where its event log is, messages to the agent, and what a stop found.

Reading events is in event_log.
"""

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError

from steersman import timeouts
from steersman._client.backoff import Backoff
from steersman._client.event_log import EventLogReader, LogLocation
from steersman._client.execution_status import is_activity_paused
from steersman._client.workflow_calls import WorkflowCalls, WorkflowKind
from steersman._client.workflow_outcome import WorkflowOutcome, terminal_event
from steersman.contracts import names
from steersman.contracts.activities import RunEnd, RunKey
from steersman.contracts.events import TerminalEvent
from steersman.contracts.messages import PAUSED, Decision, DecisionReceipt, Message, MessageReceipt
from steersman.contracts.run import ClosedAs, RunResult, RunState, StopReport
from steersman.errors import (
    AlreadyDecided,
    MessageRefused,
    RunCancelled,
    RunNotRunning,
    RunTerminated,
    SteersmanError,
    UpdatesUsedUp,
    translated,
)

RUN: Final = WorkflowKind(
    noun="run",
    workflow=names.RUN_WORKFLOW,
    state=RunState,
    result=RunResult,
    state_field="attempt",
    initial=RunState(phase="closed"),
    unbegun=RunState(phase="queued"),
)

RECEIPT_TIMEOUT_S: Final = 5.0
"""A workflow that has a worker answers a message within this many seconds, at least that the message is queued."""
LAST_LOOK_S: Final = 1.0
"""A message that no worker has answered in time went as a signal: so long a worker has to say what became of it."""
BEGINNING_S: Final = 0.05
"""A run that was started here is left alone for this long before its log is looked for: nothing is in it, and the look
would delay the agent's start by some 15 ms, as server and worker are at that.
"""
LOOK_S: Final = 0.1
"""Seconds between two looks at what became of a message that went as a signal."""
NO_WORKER: Final = (
    "no worker answers: Temporal keeps the message, and the run takes it once a worker is there, unless it can take no "
    "more then"
)
"""Why a message is queued, in a receipt that the client makes."""
NOT_TAKEN: Final = (
    "the run has not taken the message: its agent cannot be told such, too much waits for it or was said already, or "
    "the run is ending"
)
"""Why a message is refused that went as a signal, which the run drops without a word."""
HOST_REPORT_TIMEOUT_S: Final = 4.0
"""A host gets this many seconds to report how it stopped a terminated run's agent; a stop takes at most 1.5 s."""
CLOSED_UNASKED: Final[dict[WorkflowExecutionStatus | None, ClosedAs]] = {
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}
"""Statuses with which the server closes a workflow without telling it: the workflow's state stays what it was."""


class RunCalls(WorkflowCalls[RunState, RunResult]):
    """Calls to the workflows of runs."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, RUN)
        self._started: tuple[str, float] | None = None
        """The run that this client has started last, and when, by the monotonic clock."""

    def note_started(self, run_id: str) -> None:
        """The server has just answered that it has the run."""
        self._started = run_id, time.monotonic()

    # The state and the event log.

    async def log_location(self, run_id: str, execution: str | None = None) -> LogLocation | None:
        """Where the run's event log is. Waits until a host has claimed the run; None if it closed unclaimed."""
        backoff = Backoff()
        if self._started and self._started[0] == run_id:
            await asyncio.sleep(self._started[1] + BEGINNING_S - time.monotonic())
        while True:
            state = await self.state(run_id, execution)
            if state.host is not None and state.execution is not None:
                return LogLocation(RunKey(run=run_id, execution=state.execution), state.host, state.store)
            # Asked of the server: a run that closed within its first workflow task may answer with its first phase.
            if state.phase == "closed" or await self.open_execution(run_id, execution) is None:
                return None
            await backoff.pause()

    async def current_state(self, run_id: str) -> RunState:
        """The state, brought up to date where the server closed the workflow: it was terminated or timed out.

        Raises as `state`.
        """
        state = await self.state(run_id)
        if state.phase == "closed" and state.closed_as:
            is_told = state.baseline is None or state.changes is not None
            return state if is_told else _with_changes(state, await self._host_end(run_id, state))
        with translated(of=self._of(run_id), address=self._address):
            found = await self._handle(run_id).describe()
        closed_as = CLOSED_UNASKED.get(found.status)
        if closed_as is None:
            return state
        outcome = await self.outcome(run_id, found.run_id)
        end = await self._host_end(run_id, state)
        changes = {
            "phase": "closed",
            "closed_as": closed_as,
            "stop_report": _stop_report(state, outcome, end, execution=found.run_id),
            "error": str(outcome),
            "approvals": (),
        }
        return _with_changes(state.model_copy(update=changes), end)

    async def unlogged_end(self, run_id: str, execution: str | None) -> TerminalEvent:
        """The only event of a closed run of which no host has a log.

        Raises: RunNotFound, NoWorker, ServerUnreachable, ServerRefused.
        """
        outcome = await self.outcome(run_id, execution)
        with translated(of=self._of(run_id), address=self._address):
            found = await self._handle(run_id, execution).describe()
        if isinstance(outcome, RunTerminated):
            state = await self.state(run_id, execution)
            never_started = state.phase == "queued" or _never_claimed(state, found.run_id)
            outcome.stop_report = never_started_report(outcome) if never_started else None
        return terminal_event(outcome, found.close_time or found.start_time)

    # Messages.

    async def send_message(self, run_id: str, name: str, message: Message) -> MessageReceipt:
        """Send a steer or an interrupt that has an id. Raises what `Steersman.steer` documents."""
        try:
            async with timeouts.timeout(RECEIPT_TIMEOUT_S):
                receipt = await self._update_with_message(run_id, name, message)
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            return await self._settled_by_signal(run_id, name, message, LAST_LOOK_S)
        except UpdatesUsedUp:
            return await self._settled_by_signal(run_id, name, message, RECEIPT_TIMEOUT_S)
        if receipt.state == "queued" and await self._is_activity_paused(run_id):
            return receipt.model_copy(update={"how": PAUSED})
        return receipt

    async def _update_with_message(self, run_id: str, name: str, message: Message) -> MessageReceipt:
        try:
            receipt: MessageReceipt = await self._handle(run_id).execute_update(
                name, message, result_type=MessageReceipt
            )
            return receipt
        except WorkflowUpdateFailedError as failure:
            refusal = self._update_error(failure.cause, name, run_id)
            if isinstance(refusal, RunNotRunning):
                return await self._recorded_receipt(run_id, message, refusal)
            raise refusal from failure
        except RPCError as error:
            translation = self._translated(error, run_id)
            if isinstance(translation, RunNotRunning):
                return await self._recorded_receipt(run_id, message, translation)
            raise translation from error

    async def _recorded_receipt(self, run_id: str, message: Message, refusal: RunNotRunning) -> MessageReceipt:
        """The receipt of a message that the run took before it closed, whose answer was lost. Else raises `refusal`."""
        if (receipt := await self._recorded(run_id, message)) is None:
            raise refusal
        return receipt

    async def _recorded(self, run_id: str, message: Message) -> MessageReceipt | None:
        """What the run says of a message; None where it knows none, or cannot be asked."""
        with suppress(SteersmanError):
            return _receipt_of(await self.state(run_id), message)
        return None

    async def _taken(self, run_id: str, message: Message) -> MessageReceipt | None:
        """What the run says of a message that went as a signal before; None where it cannot be asked.

        Raises MessageRefused, RunNotRunning where it has not taken it: of a signal that it drops it says nothing.
        """
        try:
            state = await self.state(run_id)
        except SteersmanError:
            return None
        receipt = _receipt_of(state, message)
        if receipt is None and state.phase == "closed":
            raise RunNotRunning(f"{self._of(run_id)} closed before it took the message")
        if receipt is None and state.execution is not None:  # else it has not begun, and has read no signal
            raise MessageRefused(NOT_TAKEN)
        return receipt

    async def _signal_message(self, run_id: str, name: str, message: Message) -> MessageReceipt:
        """Send the message as a signal, which the server keeps, unlike an update that no worker has accepted.

        The run takes the same message id once, should the update have reached it.
        """
        try:
            with translated(of=self._of(run_id), address=self._address):
                await self._handle(run_id).signal(name, message)
        except RunNotRunning as closed:
            return await self._recorded_receipt(run_id, message, closed)
        latency = round(RECEIPT_TIMEOUT_S * 1000)
        return MessageReceipt(id=message.id or "", state="queued", how=NO_WORKER, latency_ms=latency)

    async def _settled_by_signal(self, run_id: str, name: str, message: Message, within_s: float) -> MessageReceipt:
        """Send the message as a signal, and look what becomes of it, as its answer would say."""
        receipt = await self._signal_message(run_id, name, message)
        with suppress(TimeoutError):
            async with timeouts.timeout(within_s):
                while receipt.state == "queued":
                    await asyncio.sleep(LOOK_S)
                    receipt = await self._taken(run_id, message) or receipt
        return receipt

    async def decide(self, run_id: str, decision: Decision) -> DecisionReceipt:
        """Decide an approval. Raises what `Steersman.decide` documents."""
        try:
            return await self.update(run_id, names.DECIDE, decision, DecisionReceipt)
        except UpdatesUsedUp:
            waiting = {each.id: each for each in (await self.state(run_id)).approvals}
            if (approval := waiting.get(decision.id)) is None:
                raise AlreadyDecided(f"approval {decision.id} does not wait") from None
            with translated(of=self._of(run_id), address=self._address):
                await self._handle(run_id).signal(names.DECIDE, decision)
            said = {"decision": decision.decision, "tool": approval.tool, "input": approval.input}
            return DecisionReceipt.model_validate({"id": decision.id, **said})

    async def _is_activity_paused(self, run_id: str) -> bool:
        with suppress(RPCError):
            return is_activity_paused(await self._handle(run_id).describe())
        return False

    # What a stop found.

    async def stop_report(self, id: str, execution: str | None = None) -> StopReport | None:
        """The stop report in the run's state; None where it has none or cannot be had now."""
        try:
            return (await self.state(id, execution)).stop_report
        except SteersmanError:
            return None

    async def host_stop_report(
        self, run_id: str, outcome: WorkflowOutcome, execution: str | None = None
    ) -> StopReport | None:
        """How the host stopped the agent of a terminated run; None where the run's state cannot be had now."""
        try:
            state = await self.state(run_id, execution)
            with translated(of=self._of(run_id), address=self._address):
                found = await self._handle(run_id, execution).describe()
            end = await self._host_end(run_id, state)
            return _stop_report(state, outcome, end, execution=found.run_id)
        except SteersmanError:
            return None

    async def _host_end(self, run_id: str, state: RunState) -> RunEnd | None:
        """How a closed run's log ends; None where its host does not say so now."""
        if state.host is None or state.execution is None:
            return None
        location = LogLocation(RunKey(run=run_id, execution=state.execution), state.host)
        with suppress(SteersmanError, TimeoutError):
            return await asyncio.wait_for(EventLogReader(self._client, location).end(), HOST_REPORT_TIMEOUT_S)
        return None


def _receipt_of(state: RunState, message: Message) -> MessageReceipt | None:
    """What a run's state says of a message; None where the run has not taken it."""
    for each in state.messages:
        if each.id == message.id:
            took = (each.settled_at or each.received_at) - each.received_at
            latency = round(took / timedelta(milliseconds=1))
            return MessageReceipt(id=each.id, state=each.state, how=each.how, latency_ms=latency)
    return None


def never_started_report(outcome: WorkflowOutcome) -> StopReport:
    """The stop report of a run that no worker had taken: it has no process."""
    return StopReport(outcome="stopped", phase="queued", how="exited", reason=_reason(outcome))


def _never_claimed(state: RunState, execution: str) -> bool:
    """Whether the run was closed before a host took it. Of one that was reset an earlier execution may have been."""
    return state.host is None and state.execution in (None, execution)


def _stop_report(state: RunState, outcome: WorkflowOutcome, end: RunEnd | None, *, execution: str) -> StopReport:
    """What the host has found of the agent of a run that the server closed in this execution."""
    if _never_claimed(state, execution):
        return never_started_report(outcome)
    if end and not end.known and state.phase == "queued":
        return never_started_report(outcome)
    unknown = StopReport(outcome="unverified", phase=state.phase, reason=_reason(outcome))
    return (end and end.event and end.event.stop_report) or unknown


def _with_changes(state: RunState, end: RunEnd | None) -> RunState:
    """With what the host says that the run has changed, where it fits what the workflow knows: an agent can write where
    the host reads.
    """
    event = end and end.event
    if not event or state.changes is not None:
        return state
    changes = event.changes
    if changes is not None and state.carried is None and changes.before != state.baseline:
        return state
    told = {"changes": changes, "finalize": state.finalize or event.finalize}
    return state.model_copy(update={**told, "baseline": changes.before if changes else state.baseline})


def _reason(outcome: WorkflowOutcome) -> str | None:
    return (outcome.reason if isinstance(outcome, RunCancelled) else str(outcome)) or None
