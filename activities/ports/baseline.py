"""The seam to what is kept of a run's workspace before its first process. How it is kept must not live here."""

from typing import Protocol


class Baseline(Protocol):
    """The files of a run's workspace as the run found them."""

    @property
    def commit(self) -> str | None:
        """The commit that holds them; None where none was made."""
        ...

    async def changes(self, limit: int) -> str:
        """What differs now, as a diff of at most so many characters; empty where nobody can tell. Raises nothing."""
        ...

    async def keep(self) -> str | None:
        """Make the commit, unless there is one; what a person is told where it cannot be made. Raises nothing."""
        ...
