"""How a workflow closed, as a result, an exception, or a run's terminal event.

Translation only: waiting for a workflow and asking hosts is the callers'.
"""

from contextlib import suppress
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, TimeoutError  # noqa: A004

from steersman.contracts.errors import ERRORS, AgentFailed, ErrorType, RunError, RunTimedOut
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent, TerminalEvent
from steersman.contracts.model import TolerantModel
from steersman.contracts.run import MAX_REASON, RunResult, StopReport
from steersman.errors import HostUnreachable, RunCancelled, RunInterrupted, RunTerminated

WorkflowOutcome = RunResult | RunError | RunCancelled
"""How a run's workflow closed: it returned, failed, or was cancelled or terminated."""


def outcome_of(failure: WorkflowFailureError, of: str, result: type[TolerantModel]) -> RunError | RunCancelled:
    """The exception that stands for the failure of `of` (e.g. "run run-1").

    `result` is the model of the failure's first detail.
    """
    cause: BaseException | None = failure.cause
    if isinstance(cause, CancelledError):
        return RunInterrupted(of)
    if isinstance(cause, TerminatedError):
        return RunTerminated(of, cause.message[:MAX_REASON])
    if isinstance(cause, TimeoutError):
        return RunTimedOut(f"{of}: Temporal's own timeout for the workflow was reached")
    while cause is not None:
        if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
            return _run_error(cause, result)
        cause = cause.__cause__
    return AgentFailed(f"{of}: {failure.cause}")


def _run_error(failure: ApplicationError, result: type[TolerantModel]) -> RunError:
    found: Any = None
    with suppress(ValidationError):
        found = result.model_validate(failure.details[0]) if failure.details else None
    error = ERRORS[ErrorType(failure.type or "")](failure.message, **getattr(found, "facts", {}))
    error.result = found
    error.code = getattr(found, "code", None)
    return error


def terminal_event(outcome: WorkflowOutcome, closed_at: datetime) -> TerminalEvent:
    """The only event of a run of which no host has a log: it never began, or its log was pruned.

    It follows from how the workflow closed alone, so that every client makes the same event.
    """
    if isinstance(outcome, RunResult):
        return DoneEvent(
            seq=1,
            time=closed_at,
            attempt=max(outcome.attempts, 1),
            text=outcome.text,
            structured=outcome.structured,
            stop_reason=outcome.stop_reason,
            stop_report=outcome.stop_report,
        )
    if isinstance(outcome, RunCancelled):
        return CancelledEvent(
            seq=1,
            time=closed_at,
            stop_report=outcome.stop_report,
            terminated=isinstance(outcome, RunTerminated),
            reason=outcome.reason or None,
        )
    report: StopReport | None = getattr(outcome.result, "stop_report", None)
    return FailedEvent(
        seq=1, time=closed_at, error=outcome.type, message=outcome.message, code=outcome.code, stop_report=report
    )


def log_unreachable(outcome: WorkflowOutcome, error: HostUnreachable) -> HostUnreachable:
    """`error` with how the run closed in its message, for a run that has closed and whose host does not answer."""
    if isinstance(outcome, RunTerminated):
        return HostUnreachable(f"{outcome}; nothing is known of its processes: {error}", error.host)
    how = f"it failed: {outcome}" if isinstance(outcome, RunError) else outcome
    how = "it succeeded" if isinstance(outcome, RunResult) else how
    return HostUnreachable(f"the run has closed ({how}), and its events cannot be read: {error}", error.host)
