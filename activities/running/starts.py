"""Whether a worker is starting runs. Somebody waits for each of them: what can wait, waits."""

import time
from collections.abc import Callable

PAUSE_S = 1.0
"""Of many runs that are started at once, a worker gets the next one sooner than this."""


class Starts:
    """One for all runs of a worker. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def note(self) -> None:
        """The worker has got a run, and starts it."""
        self._last = self._clock()

    @property
    def go_on(self) -> bool:
        """Whether there may be more to come: the last one is not long ago."""
        return self._last is not None and self._clock() - self._last < PAUSE_S
