"""How a workflow closed, in Steersman's words: a result, an exception, or a run's terminal event.

Only translation; waiting and asking servers is the client's.
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
from steersman.errors import HostUnreachable, RunCancelled, RunTerminated

Closing = RunResult | RunError | RunCancelled
"""How a run can close."""


def closing_of(failure: WorkflowFailureError, of: str, result: type[TolerantModel]) -> RunError | RunCancelled:
    """What the failure means. `of`: whose, e.g. "run run-1"; `result`: the shape of the failure's first detail."""
    cause: BaseException | None = failure.cause
    if isinstance(cause, CancelledError):
        return RunCancelled(of)
    if isinstance(cause, TerminatedError):
        return RunTerminated(of, cause.message[:MAX_REASON])
    if isinstance(cause, TimeoutError):
        return RunTimedOut(f"{of}: Temporal's own timeout for the workflow was reached")
    while cause is not None:
        if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
            return _failed(cause, result)
        cause = cause.__cause__
    return AgentFailed(f"{of}: {failure.cause}")


def _failed(failure: ApplicationError, result: type[TolerantModel]) -> RunError:
    found: Any = None
    with suppress(ValidationError):
        found = result.model_validate(failure.details[0]) if failure.details else None
    error = ERRORS[ErrorType(failure.type or "")](failure.message, **getattr(found, "facts", {}))
    error.result = found
    error.code = getattr(found, "code", None)
    return error


def terminal_event(closing: Closing, closed_at: datetime) -> TerminalEvent:
    """The one event of a run of which no host has a log: it never began, or its log was pruned.

    A function of how the workflow closed alone, so that everybody is told the same.
    """
    if isinstance(closing, RunResult):
        return DoneEvent(
            seq=1,
            time=closed_at,
            attempt=max(closing.attempts, 1),
            text=closing.text,
            structured=closing.structured,
            stop_reason=closing.stop_reason,
            stop_report=closing.stop_report,
        )
    if isinstance(closing, RunCancelled):
        return CancelledEvent(
            seq=1,
            time=closed_at,
            stop_report=closing.stop_report,
            terminated=isinstance(closing, RunTerminated),
            reason=closing.reason or None,
        )
    report: StopReport | None = getattr(closing.result, "stop_report", None)
    return FailedEvent(
        seq=1, time=closed_at, error=closing.type, message=closing.message, code=closing.code, stop_report=report
    )


def unheard(closing: Closing, error: HostUnreachable) -> HostUnreachable:
    """The run has closed, and its host does not answer: what is known, and what is not."""
    if isinstance(closing, RunTerminated):
        return HostUnreachable(f"{closing}; nothing is known of its processes: {error}", error.host)
    how = f"it failed: {closing}" if isinstance(closing, RunError) else closing
    how = "it succeeded" if isinstance(closing, RunResult) else how
    return HostUnreachable(f"the run has closed ({how}), and its events cannot be read: {error}", error.host)
