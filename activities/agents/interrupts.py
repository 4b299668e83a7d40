"""Two interrupts of one turn: the second may come when the first has ended it already."""

import time
from typing import Final

BESIDE_S: Final = 1.0
"""An interrupt that comes so many seconds after another one has ended the turn was said beside it, of that turn."""


class LastInterrupt:
    """The interrupt that has ended the last turn. It is told of each change, as it happens."""

    def __init__(self, id: str | None) -> None:
        """`id`: of the interrupt that has ended the turn before this conversation began, if one has."""
        self._id, self._at = id, float("-inf")

    def note(self, id: str | None) -> None:
        """Whether, and by which interrupt, the last turn was ended, as it is now."""
        if id != self._id:
            self._id, self._at = id, time.monotonic()

    def beside(self) -> str | None:
        """The one that ended the turn just now."""
        return self._id if time.monotonic() - self._at < BESIDE_S else None
