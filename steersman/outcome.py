"""How a run's workflow closed, in Steersman's words: a RunResult, an exception, or the run's terminal event.

Only translation; waiting and asking servers is the client's.
"""

from datetime import UTC, datetime

from pydantic import ValidationError
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, TimeoutError  # noqa: A004

from steersman.contracts.errors import ERRORS, AgentFailed, ErrorType, RunError, RunTimedOut
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent, TerminalEvent
from steersman.contracts.run import RunResult, StopReport
from steersman.errors import RunCancelled, RunTerminated

Closing = RunResult | RunError | RunCancelled
"""How a run can close."""


def closing_of(failure: WorkflowFailureError, run_id: str, stop_report: StopReport | None = None) -> Closing:
    """What the workflow's failure means."""
    cause: BaseException | None = failure.cause
    if isinstance(cause, CancelledError):
        return RunCancelled(f"run {run_id} was cancelled", stop_report)
    if isinstance(cause, TerminatedError):
        reason = cause.message
        return RunTerminated(f"run {run_id} was terminated" + (f": {reason}" if reason else ""), reason)
    if isinstance(cause, TimeoutError):
        return _failed(RunTimedOut(f"run {run_id}: Temporal's own timeout for the workflow was reached"), None)
    while cause is not None:
        if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
            result = _result(cause)
            error = ERRORS[ErrorType(cause.type)](cause.message, **(result.facts if result else {}))
            return _failed(error, result)
        cause = cause.__cause__
    return _failed(AgentFailed(f"run {run_id}: {failure.cause}"), None)


def _failed(error: RunError, result: RunResult | None) -> RunError:
    error.result = result
    return error


def _result(error: ApplicationError) -> RunResult | None:
    try:
        return RunResult.model_validate(error.details[0]) if error.details else None
    except ValidationError:
        return None


def terminal_event(closing: Closing, seq: int, stop_report: StopReport | None = None) -> TerminalEvent:
    """The event that ends a run whose log has no end: it never had a host, or its host had no time to write one."""
    now = datetime.now(UTC)
    if isinstance(closing, RunResult):
        return DoneEvent(
            seq=seq,
            time=closing.ended_at,
            attempt=max(closing.attempts, 1),
            text=closing.text,
            structured=closing.structured,
            stop_reason=closing.stop_reason,
        )
    if isinstance(closing, RunTerminated):
        return CancelledEvent(seq=seq, time=now, stop_report=StopReport(outcome="unverified", phase="closed"))
    if isinstance(closing, RunCancelled):
        return CancelledEvent(seq=seq, time=now, stop_report=closing.stop_report or stop_report)
    result: RunResult | None = getattr(closing, "result", None)
    return FailedEvent(seq=seq, time=result.ended_at if result else now, error=closing.type, message=closing.message)
