"""The seam to what is kept of a run elsewhere while it works on a machine that can be lost. How it is kept must not
live here.
"""

from typing import Protocol


class Backup(Protocol):
    """The files and the agent's sessions of a run, as they were at some moment."""

    @property
    def interval_s(self) -> float:
        """Seconds from one to the next."""
        ...

    async def take(self) -> str | None:
        """Keep them as they are now; why it could not be done. Raises nothing."""
        ...
