"""How a loop ends: pure judgement of limits that are reached and of failures that it cannot go on after."""

from dataclasses import dataclass
from typing import Literal

from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from steersman.contracts.errors import ErrorType, RunError
from steersman.contracts.loop_state import StopReason
from workflows.agent_loop import limits
from workflows.agent_loop.carried_state import Memory


@dataclass(frozen=True)
class Ending:
    """A judged end."""

    status: Literal["completed", "stopped", "failed", "cancelled"]
    reason: StopReason | None = None
    message: str = ""
    error: ErrorType | None = None
    said: str = ""
    """Why a person ended it, in their words."""

    @property
    def why(self) -> str | None:
        """Why it was stopped: a person's words, or the limit that was reached."""
        return self.said or (self.message if self.status == "stopped" else "") or None

    @classmethod
    def of_limit(cls, memory: Memory, active_s: float) -> "Ending | None":
        """A limit is reached; None where none is."""
        found = limits.reached(memory, active_s)
        if found is None:
            return None
        reason, message = found
        if reason == StopReason.FAILURES:
            return cls("failed", reason, message, ErrorType.LOOP_FAILED)
        return cls("stopped", reason, message)

    @classmethod
    def of_error(cls, error: FailureError | RunError) -> "Ending":
        """Something raised that the loop cannot go on after."""
        if isinstance(error, RunError):
            return cls("failed", None, error.message, error.type)
        # A local activity's failure comes bare, an activity's wrapped in an ActivityError.
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
            return cls("failed", None, cause.message, ErrorType(cause.type))
        return cls("failed", None, f"{error}: {cause}" if cause is not error else str(error), ErrorType.LOOP_FAILED)
