"""How a run ends: what the result of `run_agent`, or its failure, means. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime

from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout

from steersman.contracts.activities import RunOutcome
from steersman.contracts.errors import ErrorType, RunError
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent, TerminalEvent
from steersman.contracts.run import Finalize, Phase, RunProgress, RunStatus, StopReport
from steersman.contracts.workspace_hold import Steered

NOTHING = RunOutcome(status="stopped")
"""The outcome of a run whose agent never started, or could not be asked."""

INTERRUPTED = "interrupted"
"""The stop reason of a run that a person ended together with its turn; the error code if it failed all the same."""
STEERED = "steered"
"""The stop reason of a run whose prompt was given to another one, which has its workspace."""
LIMITS = (ErrorType.RUN_TIMED_OUT, ErrorType.BUDGET_EXCEEDED)


@dataclass(frozen=True)
class Ending:
    """How a run ends."""

    status: RunStatus
    outcome: RunOutcome = NOTHING
    error: ErrorType | None = None
    message: str = ""

    @classmethod
    def of(cls, outcome: RunOutcome) -> "Ending":
        """The agent ended by itself, or `run_agent` stopped it for a limit."""
        if outcome.status == "succeeded":
            return cls("succeeded", outcome)
        error = outcome.error or ErrorType.AGENT_FAILED
        unsaid = "the agent was stopped, and not by this run" if outcome.status == "stopped" else "the agent failed"
        return cls("failed", outcome, error, outcome.message or unsaid)

    @classmethod
    def interrupted(cls, outcome: RunOutcome) -> "Ending":
        """A person ended the run."""
        return cls("succeeded", outcome.model_copy(update={"status": "succeeded", "stop_reason": INTERRUPTED}))

    @classmethod
    def steered(cls, steered: Steered) -> "Ending":
        """The run's prompt was given to whoever has its workspace."""
        text = f"given to {steered.kind} {steered.id}, which has the workspace: {steered.state}"
        outcome = RunOutcome(
            status="succeeded",
            text=text + (f" ({steered.how})" if steered.how else ""),
            stop_reason=STEERED,
            facts={"steered": steered.id, "state": steered.state},
        )
        return cls("succeeded", outcome)

    def code(self, *, ended: bool) -> str | None:
        """The code by which a program can tell a failure. `ended`: a person had ended the run; limits precede that."""
        return INTERRUPTED if self.status == "failed" and ended and self.error not in LIMITS else None

    def carried_back(self, finalize: Finalize) -> "Ending":
        """The same, or a failure where what the run has changed is not in the workspace. A cancelled run stays so."""
        if finalize.status != "failed" or self.status != "succeeded":
            return self
        message = f"workspace: what the run changed could not be carried back: {finalize.error}"
        return Ending("failed", self.outcome, ErrorType.WORKSPACE_ERROR, message)

    def at_least(self, told: RunProgress) -> "Ending":
        """The same, having consumed no less than the run has told of."""
        return replace(self, outcome=self.outcome.at_least(told))

    @property
    def was_interrupted(self) -> bool:
        """Whether a person ended the run together with its turn."""
        return self.status == "succeeded" and self.outcome.stop_reason == INTERRUPTED

    @classmethod
    def failed(cls, error: BaseException, outcome: RunOutcome = NOTHING) -> "Ending":
        """An activity, or the check of the request, raised this error."""
        if isinstance(error, RunError):
            return cls("failed", outcome, error.type, error.message)
        if (said := told(error)) is not None:
            facts = said.details[0] if said.details and isinstance(said.details[0], dict) else {}
            known = outcome.model_copy(update={"facts": {**outcome.facts, **facts}})
            return cls("failed", known, ErrorType(str(said.type)), said.message)
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, TemporalTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START:
            return cls(
                "failed", outcome, ErrorType.INVALID_REQUEST, "workspace.host: no worker of that host took the run"
            )
        return cls("failed", outcome, ErrorType.AGENT_FAILED, f"{error}: {cause}" if cause is not error else str(error))

    def terminal_event(self, now: datetime, report: StopReport | None, code: str | None = None) -> TerminalEvent:
        """The one event that closes the run's event log."""
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


def told(error: BaseException) -> ApplicationError | None:
    """The error that a worker has told of, which leaves no agent at work then; None where it is another one."""
    cause = error.cause if isinstance(error, ActivityError) else error
    return cause if isinstance(cause, ApplicationError) and cause.type in set(ErrorType) else None


def never_started(phase: Phase, reason: str | None = None) -> StopReport:
    """The report of a stop before any process existed."""
    return StopReport(outcome="stopped", phase=phase, how="exited", processes=0, took_ms=0, reason=reason)


def unverified(phase: Phase) -> StopReport:
    """The report of a stop that no worker of the host carried out."""
    return StopReport(outcome="unverified", phase=phase)
