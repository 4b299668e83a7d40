"""How a workflow closed, in Steersman's words: a result, an exception, or a run's terminal event.

Only translation; waiting and asking servers is the client's.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, TimeoutError  # noqa: A004

from steersman.contracts.errors import ERRORS, AgentFailed, ErrorType, RunError, RunTimedOut
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent, TerminalEvent
from steersman.contracts.model import Answer
from steersman.contracts.run import RunResult, StopReport
from steersman.errors import RunCancelled, RunTerminated

Closing = RunResult | RunError | RunCancelled
"""How a run can close."""


def closing_of(failure: WorkflowFailureError, of: str, result: type[Answer]) -> RunError | RunCancelled:
    """What the failure means. `of`: whose, e.g. "run run-1"; `result`: the shape of the failure's first detail."""
    cause: BaseException | None = failure.cause
    if isinstance(cause, CancelledError):
        return RunCancelled(f"{of} was cancelled")
    if isinstance(cause, TerminatedError):
        reason = cause.message
        return RunTerminated(f"{of} was terminated" + (f": {reason}" if reason else ""), reason)
    if isinstance(cause, TimeoutError):
        return RunTimedOut(f"{of}: Temporal's own timeout for the workflow was reached")
    while cause is not None:
        if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
            return _failed(cause, result)
        cause = cause.__cause__
    return AgentFailed(f"{of}: {failure.cause}")


def _failed(failure: ApplicationError, result: type[Answer]) -> RunError:
    found: Any = None
    with suppress(ValidationError):
        found = result.model_validate(failure.details[0]) if failure.details else None
    error = ERRORS[ErrorType(failure.type or "")](failure.message, **getattr(found, "facts", {}))
    error.result = found
    return error


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
