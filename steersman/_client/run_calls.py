"""Asking a run, beyond what every workflow of Steersman's is asked: where its log is, and what a stop found.

Reading events is another matter: see following.
"""

import asyncio
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

from steersman._client.event_log import Place, RunLog
from steersman._client.workflow_calls import Kind, WorkflowCalls
from steersman._client.workflow_outcome import Closing, terminal_event
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.events import TerminalEvent
from steersman.contracts.messages import PAUSED, Message, MessageReceipt
from steersman.contracts.run import ClosedAs, RunResult, RunState, StopReport
from steersman.errors import RunCancelled, RunNotRunning, RunTerminated, SteersmanError, translated

RUN: Final = Kind(
    noun="run",
    workflow=names.RUN_WORKFLOW,
    state=RunState,
    result=RunResult,
    mark="attempt",
    unseen=RunState(phase="closed"),
)

ANSWER_PATIENCE_S: Final = 5.0
"""A workflow that has a worker answers within this, at least that the message waits."""
NOBODY: Final = "no worker answers: Temporal keeps the message, and the run takes it once a worker is there"
PROOF_S: Final = 4.0
"""What a host may take to say how the agent of a terminated run was stopped: a stop takes 1.5 s at the most."""
BEHIND_ITS_BACK: Final[dict[WorkflowExecutionStatus | None, ClosedAs]] = {
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}
"""How a workflow closes that has no say in it: its state stays what it was."""


class RunCalls(WorkflowCalls[RunState, RunResult]):
    """What can be asked of a run's workflow."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, RUN)

    async def place(self, run_id: str) -> Place | None:
        """Where the run's log is, waiting while nobody has claimed the run; None if it closed unclaimed."""
        pause = 0.05
        while True:
            state = await self.state(run_id)
            if state.host is not None and state.execution is not None:
                return Place(RunKey(run=run_id, execution=state.execution), state.host, state.store)
            # Asked of the server: a run that closed within its first workflow task may answer as it began.
            if state.phase == "closed" or await self.open_execution(run_id) is None:
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def say(self, run_id: str, name: str, message: Message) -> MessageReceipt:
        """A steer or an interrupt with an id, and what became of it so far. Raises what the client's verbs say."""
        try:
            async with asyncio.timeout(ANSWER_PATIENCE_S):
                receipt = await self._answer(run_id, name, message)
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            return await self._leave(run_id, name, message)
        if receipt.state == "queued" and await self._is_paused(run_id):
            return receipt.model_copy(update={"how": PAUSED})
        return receipt

    async def _answer(self, run_id: str, name: str, message: Message) -> MessageReceipt:
        try:
            receipt: MessageReceipt = await self._handle(run_id).execute_update(
                name, message, result_type=MessageReceipt
            )
            return receipt
        except WorkflowUpdateFailedError as failure:
            refusal = self._refusal(failure.cause, name, run_id)
            if isinstance(refusal, RunNotRunning):
                return await self._told(run_id, message, refusal)
            raise refusal from failure
        except RPCError as error:
            meaning = self._meaning(error, run_id)
            if isinstance(meaning, RunNotRunning):
                return await self._told(run_id, message, meaning)
            raise meaning from error

    async def _told(self, run_id: str, message: Message, refusal: RunNotRunning) -> MessageReceipt:
        """What the closed run knows of a message: it may have been taken, and the answer lost. Else the refusal."""
        with suppress(SteersmanError):
            for each in (await self.state(run_id)).messages:
                if each.id == message.id:
                    took = (each.settled_at or each.received_at) - each.received_at
                    latency = round(took / timedelta(milliseconds=1))
                    return MessageReceipt(id=each.id, state=each.state, how=each.how, latency_ms=latency)
        raise refusal

    async def _leave(self, run_id: str, name: str, message: Message) -> MessageReceipt:
        """Nobody answers, and an update that nobody has taken is kept nowhere: a signal is. With its id it is one."""
        try:
            with translated(of=self._of(run_id), address=self._address):
                await self._handle(run_id).signal(name, message)
        except RunNotRunning as closed:
            return await self._told(run_id, message, closed)
        latency = round(ANSWER_PATIENCE_S * 1000)
        return MessageReceipt(id=message.id or "", state="queued", how=NOBODY, latency_ms=latency)

    async def _is_paused(self, run_id: str) -> bool:
        with suppress(RPCError):
            pending = (await self._handle(run_id).describe()).raw_description.pending_activities
            return any(each.paused and each.activity_type.name == names.RUN_AGENT for each in pending)
        return False

    async def stop_report(self, id: str) -> StopReport | None:
        """The stop report, as far as anybody can say now."""
        try:
            return (await self.state(id)).stop_report
        except SteersmanError:
            return None

    async def state_now(self, run_id: str) -> RunState:
        """The state, also of a run whose workflow could not bring it up to date: it was terminated, or timed out.

        Raises as `state`.
        """
        state = await self.state(run_id)
        if state.phase == "closed" and state.closed_as:
            return state
        with translated(of=self._of(run_id), address=self._address):
            found = await self._handle(run_id).describe()
        how = BEHIND_ITS_BACK.get(found.status)
        if how is None:
            return state
        closing = await self.closing(run_id, found.run_id)
        report = await self._proof(run_id, state, closing)
        told = {"phase": "closed", "closed_as": how, "stop_report": report, "error": str(closing), "approvals": ()}
        return state.model_copy(update=told)

    async def proof(self, run_id: str, closing: Closing) -> StopReport | None:
        """What stopping the agent of a terminated run took, as far as anybody can say now."""
        try:
            return await self._proof(run_id, await self.state(run_id), closing)
        except SteersmanError:
            return None

    async def unlogged(self, run_id: str, execution: str | None) -> TerminalEvent:
        """The one event of a run that has closed and of which no host has a log. Raises RunNotFound, ..."""
        closing = await self.closing(run_id, execution)
        if isinstance(closing, RunTerminated):
            state = await self.state(run_id)
            unbegun = state.host is None or state.phase == "queued"
            closing.stop_report = never_began(closing) if unbegun else None
        with translated(of=self._of(run_id), address=self._address):
            found = await self._handle(run_id, execution).describe()
        return terminal_event(closing, found.close_time or found.start_time)

    async def _proof(self, run_id: str, state: RunState, closing: Closing) -> StopReport:
        unknown = StopReport(outcome="unverified", phase=state.phase, reason=_reason(closing))
        if state.host is None or state.execution is None:
            return never_began(closing)
        log = RunLog(self._client, Place(RunKey(run=run_id, execution=state.execution), state.host))
        with suppress(SteersmanError, TimeoutError):
            end = await asyncio.wait_for(log.end(), PROOF_S)
            if not end.known and state.phase == "queued":
                return never_began(closing)
            return (end.event and end.event.stop_report) or unknown
        return unknown


def never_began(closing: Closing) -> StopReport:
    """Of a run that no worker had taken: no process can exist."""
    return StopReport(outcome="stopped", phase="queued", how="exited", reason=_reason(closing))


def _reason(closing: Closing) -> str | None:
    return (closing.reason if isinstance(closing, RunCancelled) else str(closing)) or None
