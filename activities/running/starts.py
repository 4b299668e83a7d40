"""Whether a worker is starting runs. Somebody waits for each of them: what can wait, waits."""

import math
import time

PAUSE_S = 1.0
"""Of many runs that are started at once, a worker gets the next one sooner than this."""


class Starts:
    """One for all runs of a worker."""

    def __init__(self) -> None:
        self._last = -math.inf

    def note(self) -> None:
        """The worker has got a run, and starts it."""
        self._last = time.monotonic()

    @property
    def go_on(self) -> bool:
        """Whether there may be more to come: the last one is not long ago."""
        return time.monotonic() - self._last < PAUSE_S
