"""How long a loop has been active: without the time that it was paused or waited for a person."""

from datetime import datetime


class Clock:
    """Counts active seconds; every reading is given the time, which is the workflow's."""

    def __init__(self, active_s: float, now: datetime) -> None:
        self._active_s = active_s
        self._since: datetime | None = now

    def rest(self, now: datetime) -> None:
        """From now on time does not count."""
        self._active_s = self.active_s(now)
        self._since = None

    def work(self, now: datetime) -> None:
        """From now on it does."""
        if self._since is None:
            self._since = now

    def active_s(self, now: datetime) -> float:
        """Seconds so far."""
        return self._active_s + ((now - self._since).total_seconds() if self._since else 0.0)
