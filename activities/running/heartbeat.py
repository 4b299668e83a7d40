"""How far a run has come, as one attempt of run_agent tells the next by heartbeat.

What follows where less than that is found must not live here.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from steersman.contracts.activities import RunAgentInput
from steersman.contracts.model import TolerantModel


class HeartbeatDetails(TolerantModel):
    """How many processes the run has had, in which store, and whether this execution has begun it anew."""

    attempt: int = 0
    store: str = ""
    anew: bool = False

    @classmethod
    def of(cls, details: Sequence[Any], run: RunAgentInput) -> "HeartbeatDetails":
        """What the attempt before told, which may have been an older worker's; else what the workflow told."""
        try:
            told = cls.model_validate(details[0]) if details else cls()
        except ValidationError:
            told = cls()
        return told if told.store else told.model_copy(update={"store": run.store})

    @property
    def begins_anew(self) -> bool:
        """This execution has ended the log before, and has started no process since."""
        return self.anew and not self.attempt

    def with_attempts(self, attempts: int) -> "HeartbeatDetails":
        """The same with at least this many processes."""
        return self.model_copy(update={"attempt": max(self.attempt, attempts)})
