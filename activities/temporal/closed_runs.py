"""Runs whose workflow closed without ending their log: how it closed, by the server, and the end that the log gets.

No agent is stopped here: the caller brings the report of the stop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.ports.runtime import Runtime
from activities.running import run_log
from activities.store import disk
from activities.store.event_reader import is_ended
from activities.store.eventlog import end_log
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.temporal.execution import QUERY_ERRORS, started, state_of
from steersman.contracts import names
from steersman.contracts.activities import CarriedBack, Finalized, FinalizeInput, RunKey
from steersman.contracts.errors import AgentFailed, ErrorType
from steersman.contracts.events import CancelledEvent, FailedEvent, TerminalEvent
from steersman.contracts.request import RunRequest, parse_request
from steersman.contracts.run import MAX_REASON, Changes, RunState, StopReport

log = logging.getLogger("steersman.closings")

PAGE: Final = 50
"""Events of one page of a history: a workflow mostly closes within fewer after it asked for the end of its log."""
DELETED: Final = "the workflow was deleted from Temporal"
FORGOTTEN: Final = "Temporal no longer knows the run (deleted, or past its retention): how it ended is not known"
TIMED_OUT: Final = "Temporal's own timeout for the workflow was reached"


CarryBack = Callable[[RunDirectory, CarriedBack | None], Awaitable[CarriedBack | None]]
"""Carries back the copy of the workspace in which a run has worked; None where it had none. What the run's workflow has
heard of that counts: the state directory may be older.
"""
KeepEnd = Callable[[RunDirectory, RunState | None], Awaitable[Changes | None]]
"""Keeps the files of the workspace in which a run has worked, and says what the run has changed; None where nothing was
kept before its first process. The state is that of the run's workflow; None where it cannot be had.
"""


@dataclass(frozen=True)
class WorkflowClose:
    """How a workflow closed, and when. `asked`: the terminal event that the workflow itself asked to have written, and
    `carried_back` what it has heard of its copy by then.
    """

    how: Literal["by itself", "terminated", "timed_out", "gone"]
    time: datetime
    reason: str | None = None
    by: str | None = None
    asked: TerminalEvent | None = None
    carried_back: CarriedBack | None = None

    def terminal_event(self, report: StopReport, attempt: int) -> TerminalEvent:
        """The event that says so. A function of the close and of the one stop: whoever writes it writes the same."""
        if self.asked is not None:
            return self.asked
        if self.how == "terminated" or (self.how == "gone" and report.outcome != "already_finished"):
            reason = DELETED if self.how == "gone" else self.reason
            proof = report.model_copy(update={"reason": reason})
            return CancelledEvent(
                time=self.time, attempt=attempt, stop_report=proof, terminated=True, reason=reason, by=self.by
            )
        error = ErrorType.RUN_TIMED_OUT if self.how == "timed_out" else ErrorType.AGENT_FAILED
        message = {"timed_out": TIMED_OUT, "gone": FORGOTTEN}.get(self.how, "the workflow closed without a word")
        proof = report.model_copy(update={"reason": message})
        return FailedEvent(time=self.time, attempt=attempt, error=error, message=message, stop_report=proof)


class ClosedRuns:
    """Asks the server how runs closed, and ends the logs of those that could not do it themselves."""

    def __init__(
        self, client: Client, runtime: Runtime, store: RunStore, carry_back: CarryBack, keep_end: KeepEnd
    ) -> None:
        self._client, self._runtime, self._store = client, runtime, store
        self._carry_back, self._keep_end = carry_back, keep_end

    async def close_of(self, key: RunKey) -> WorkflowClose | None:
        """How the run's workflow closed; None while it is open, or where the server does not answer.

        Raises AgentFailed where what it says cannot be decoded.
        """
        try:
            found = await self._execution(key)
            return await self._close(key, found) if found.status != WorkflowExecutionStatus.RUNNING else None
        except RPCError as error:
            return WorkflowClose("gone", datetime.now(UTC)) if error.status == RPCStatusCode.NOT_FOUND else None

    async def request_of(self, key: RunKey) -> RunRequest | None:
        """The run's request; None where the server does not have it, or it cannot be decoded here.

        Raises RPCError where the server does not answer.
        """
        try:
            began = await started(self._client, key.run, key.execution)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
        try:
            (fields,) = await self._client.data_converter.decode(began.input.payloads, [object])
            return parse_request(fields)
        except Exception as error:  # noqa: BLE001 - a codec raises what it likes; the log is then closed as it is
            facts = {"run": key.run, "error": f"{type(error).__name__}: {error}"}
            log.warning("a run's request cannot be had", extra={"action": "log_incomplete", "facts": facts})
            return None

    async def end_log(self, directory: RunDirectory, close: WorkflowClose, report: StopReport) -> None:
        """End the log of a run whose agent was stopped with this report, and let its shims go. Twice is fine."""
        attempt = self._runtime.attempts(directory.key)
        known = report.model_copy(update={"phase": "running" if attempt else "preparing"})
        gone_on = False
        try:
            event = close.terminal_event(known, max(attempt, 1))
            if not await asyncio.to_thread(is_ended, directory.events):
                event = await self._with_changes(directory, event, close)
                # Looking at the files took its time: a reset may have come, and its execution has the run then.
                gone_on = event.changes is not None and await self.close_of(directory.key) is None
            if not gone_on and await asyncio.to_thread(end_log, directory.events, event):
                run_log.run_closed(directory, event)
        finally:
            if not gone_on:
                await self.release(directory)

    async def _with_changes(self, directory: RunDirectory, event: TerminalEvent, close: WorkflowClose) -> TerminalEvent:
        """What has become of the workspace, which stays the run's until its log is ended."""
        if event.finalize is not None or event.changes is not None:
            return event
        if back := await self._carry_back(directory, close.carried_back):
            return event.model_copy(update={"finalize": back.finalize, "changes": back.changes})
        if not self._runtime.attempts(directory.key):
            return event
        state = await self._state_of(directory.key)
        if state and state.worktree:
            event = event.model_copy(update={"worktree": state.worktree})
        changes = await self._keep_end(directory, state)
        if changes is None:
            return event
        late = max((datetime.now(UTC) - close.time).total_seconds(), 0.0)
        return event.model_copy(update={"changes": changes.model_copy(update={"late_s": round(late, 1)})})

    async def _state_of(self, key: RunKey) -> RunState | None:
        """The state in which the run's workflow has closed; None where nobody can tell."""
        try:
            found = await self._execution(key)
            state = await state_of(self._client.get_workflow_handle(key.run, run_id=found.run_id))
        except QUERY_ERRORS:
            return None
        return state if state.execution == key.execution else None

    async def release(self, directory: RunDirectory) -> None:
        """Let go of what only kept the run's processes readable, and give back its workspace."""
        await self._runtime.release(directory.key)
        await self.give_back(directory)

    async def give_back(self, directory: RunDirectory) -> None:
        """Give back the run's workspace, and remove its private files."""
        with suppress(OSError):  # what stays of a closed run counts for nobody
            await self._store.holds.remove(self._store.owner, directory.key)
        await asyncio.to_thread(clear_files, directory)

    async def _execution(self, key: RunKey) -> WorkflowExecutionDescription:
        """The run's newest execution. Its id may have been used again since. Raises RPCError."""
        newest = await self._client.get_workflow_handle(key.run).describe()
        if await self._is_same(key, newest.run_id):
            return newest
        return await self._client.get_workflow_handle(key.run, run_id=key.execution).describe()

    async def _is_same(self, key: RunKey, run_id: str) -> bool:
        if run_id == key.execution:
            return True
        began = await started(self._client, key.run, run_id)
        if began.original_execution_run_id == key.execution:
            return True
        if began.first_execution_run_id != key.execution:
            return False
        # Begun by a retry policy or a cron schedule: older versions gave all of those one key.
        try:
            state = await state_of(self._client.get_workflow_handle(key.run, run_id=run_id))
        except QUERY_ERRORS:
            return True  # nobody can tell: an open run must not be taken for a closed one
        return state.execution == key.execution

    async def _close(self, key: RunKey, found: WorkflowExecutionDescription) -> WorkflowClose:
        time = found.close_time or datetime.now(UTC)
        if found.status == WorkflowExecutionStatus.TERMINATED:
            last = await self._last_event(key, found.run_id)
            terminated = last.workflow_execution_terminated_event_attributes
            return WorkflowClose(
                "terminated", time, terminated.reason[:MAX_REASON] or None, terminated.identity or None
            )
        if found.status == WorkflowExecutionStatus.TIMED_OUT:
            return WorkflowClose("timed_out", time)
        asked, back = await self._asked(key, found.run_id)
        return WorkflowClose("by itself", time, asked=asked, carried_back=back)

    async def _last_event(self, key: RunKey, run_id: str) -> HistoryEvent:
        handle = self._client.get_workflow_handle(key.run, run_id=run_id)
        close = WorkflowHistoryEventFilterType.CLOSE_EVENT
        return [event async for event in handle.fetch_history_events(event_filter_type=close)][-1]

    async def _asked(self, key: RunKey, run_id: str) -> tuple[TerminalEvent | None, CarriedBack | None]:
        """The terminal event that the workflow asked this host to write, and what had become of its copy. Mostly no
        worker took the task in time; where one has written it, and the state directory is older, with its changes.
        """
        results: dict[int, Payloads] = {}
        async for event in self._backwards(key, run_id):
            completed = event.activity_task_completed_event_attributes
            results[completed.scheduled_event_id] = completed.result
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == names.FINALIZE_RUN:
                asked = await self._decoded(key, scheduled.input)
                written = await self._written(results.get(event.event_id))
                if written and not asked.carried_back:
                    return asked.event.model_copy(update={"changes": written.changes}), None
                return asked.event, asked.carried_back
        return None, None

    async def _decoded(self, key: RunKey, payloads: Payloads) -> FinalizeInput:
        try:
            inputs: list[FinalizeInput] = await self._client.data_converter.decode(payloads.payloads, [FinalizeInput])
        except Exception as error:  # a codec raises what it likes, and its key may come later
            raise AgentFailed(f"how run {key.run} ended cannot be read here: {error}") from error
        return inputs[0]

    async def _written(self, payloads: Payloads | None) -> Finalized | None:
        """What the host answered; None where it did not, or somebody else did by hand."""
        if payloads is None or not payloads.payloads:
            return None
        try:
            answers: list[Finalized] = await self._client.data_converter.decode(payloads.payloads, [Finalized])
        except Exception:  # noqa: BLE001 - it is looked at anew, then
            return None
        return answers[0]

    async def _backwards(self, key: RunKey, run_id: str) -> AsyncIterator[HistoryEvent]:
        """The history, newest event first."""
        execution = WorkflowExecution(workflow_id=key.run, run_id=run_id)
        token = b""
        while True:
            request = GetWorkflowExecutionHistoryReverseRequest(
                namespace=self._client.namespace, execution=execution, maximum_page_size=PAGE, next_page_token=token
            )
            page = await self._client.workflow_service.get_workflow_execution_history_reverse(request)
            for event in page.history.events:
                yield event
            token = page.next_page_token
            if not token:
                return


def clear_files(directory: RunDirectory) -> None:
    """Remove the files that only the agent's processes needed: they may hold secrets. Blocks. Raises OSError."""
    for place in (directory.scratch, *(attempt / "files" for attempt in directory.all_attempts())):
        for name in () if place.is_symlink() else disk.names(place):
            path = place / name
            if path.is_dir() and not path.is_symlink():
                disk.remove_tree(path)
            else:
                path.unlink(missing_ok=True)
