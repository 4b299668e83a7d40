"""How far a run has come, as one attempt of run_agent tells the next by heartbeat.

What must not live here: what follows where less than that is found.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from steersman.contracts.activities import RunAgentInput
from steersman.contracts.model import TolerantModel


class Begun(TolerantModel):
    """What the next attempt of the activity is told by heartbeat: how far the run has come, and where."""

    attempt: int = 0
    store: str = ""

    @classmethod
    def of(cls, details: Sequence[Any], run: RunAgentInput) -> "Begun":
        """What the attempt before told, or an older worker; of a first attempt, what the workflow did."""
        try:
            told = cls.model_validate(details[0]) if details else cls()
        except ValidationError:
            told = cls()
        return told if told.store else cls(attempt=told.attempt, store=run.store)

    def having(self, attempts: int) -> "Begun":
        """With at least so many processes."""
        return self.model_copy(update={"attempt": max(self.attempt, attempts)})
