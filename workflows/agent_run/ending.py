"""How a run ends: pure judgement of what the agent's activity or its absence means."""

from dataclasses import dataclass
from datetime import datetime

from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout

from steersman.contracts.activities import RunOutcome
from steersman.contracts.errors import ErrorType, RunError
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent, TerminalEvent
from steersman.contracts.run import Phase, RunStatus, StopReport

NOTHING = RunOutcome(status="stopped")
"""The outcome of a run whose agent never came to work, or could not be asked."""

INTERRUPTED = "interrupted"
"""The stop reason of a run that a person ended together with its turn; the code of one that failed all the same."""
LIMITS = (ErrorType.RUN_TIMED_OUT, ErrorType.BUDGET_EXCEEDED)


@dataclass(frozen=True)
class Ending:
    """A judged end."""

    status: RunStatus
    outcome: RunOutcome = NOTHING
    error: ErrorType | None = None
    message: str = ""

    @classmethod
    def of(cls, outcome: RunOutcome) -> "Ending":
        """The agent ended by itself, or run_agent stopped it for a limit."""
        if outcome.status == "succeeded":
            return cls("succeeded", outcome)
        error = outcome.error or ErrorType.AGENT_FAILED
        return cls("failed", outcome, error, outcome.message or "the agent failed")

    @classmethod
    def interrupted(cls, outcome: RunOutcome) -> "Ending":
        """A person ended the run before its agent had come to work."""
        return cls("succeeded", outcome.model_copy(update={"status": "succeeded", "stop_reason": INTERRUPTED}))

    def code(self, *, ended: bool) -> str | None:
        """What a program can tell a failure by. `ended`: a person had ended the run, which a limit outdoes."""
        return INTERRUPTED if self.status == "failed" and ended and self.error not in LIMITS else None

    @property
    def was_interrupted(self) -> bool:
        """A person ended the run together with its turn."""
        return self.status == "succeeded" and self.outcome.stop_reason == INTERRUPTED

    @classmethod
    def failed(cls, error: BaseException, outcome: RunOutcome = NOTHING) -> "Ending":
        """Something raised instead of answering."""
        if isinstance(error, RunError):
            return cls("failed", outcome, error.type, error.message)
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
            return cls("failed", outcome, ErrorType(cause.type), cause.message)
        if isinstance(cause, TemporalTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START:
            return cls(
                "failed", outcome, ErrorType.INVALID_REQUEST, "runtime.host: no worker of that host took the run"
            )
        return cls("failed", outcome, ErrorType.AGENT_FAILED, f"{error}: {cause}" if cause is not error else str(error))

    def terminal_event(self, now: datetime, report: StopReport | None, code: str | None = None) -> TerminalEvent:
        """The one event that closes the run's log."""
        attempt = max(self.outcome.attempts, 1)
        if self.status == "succeeded":
            return DoneEvent(
                time=now,
                attempt=attempt,
                text=self.outcome.text,
                structured=self.outcome.structured,
                stop_reason=self.outcome.stop_reason,
                stop_report=report,
            )
        if self.status == "cancelled":
            reason = report.reason if report else None
            return CancelledEvent(time=now, attempt=attempt, stop_report=report, reason=reason)
        return FailedEvent(
            time=now,
            attempt=attempt,
            error=self.error or ErrorType.AGENT_FAILED,
            message=self.message,
            code=code,
            stop_report=report,
        )


def never_started(phase: Phase, reason: str | None = None) -> StopReport:
    """The report of a stop that came before any process existed."""
    return StopReport(outcome="stopped", phase=phase, how="exited", processes=0, took_ms=0, reason=reason)


def unverified(phase: Phase) -> StopReport:
    """The report of a stop that nobody could carry out: no worker on the host took it."""
    return StopReport(outcome="unverified", phase=phase)
