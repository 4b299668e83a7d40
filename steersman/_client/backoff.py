"""Retries with growing pauses, bounded in time. What counts as transient is the caller's to say."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from steersman.errors import SteersmanError, Unreachable

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
OUTAGE_S: Final = 60.0
"""A host or the Temporal server may be unreachable this many seconds while a run or loop is followed or awaited."""


class Backoff:
    """Pauses of 50 ms, doubled up to 1 s, for at most `limit_s` seconds of failures in a row."""

    def __init__(self, limit_s: float = math.inf) -> None:
        self.limit_s = limit_s
        self._since: float | None = None
        """When the first of the failures in a row came."""
        self._pause = FIRST_PAUSE_S

    def reset(self) -> None:
        """Start over, after a success."""
        self._since, self._pause = None, FIRST_PAUSE_S

    async def pause(self) -> None:
        """Wait before the next try."""
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)

    async def pause_after(self, error: SteersmanError) -> None:
        """Wait before the next try. Raises `error` where failures have lasted for `limit_s` seconds."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self.limit_s:
            raise error
        await self.pause()


async def while_unreachable(ask: Callable[[], Awaitable[T]], limit_s: float = math.inf) -> T:
    """The answer, asked for again while nobody can be reached, for at most `limit_s` seconds. Raises as `ask`."""
    backoff = Backoff(limit_s)
    while True:
        try:
            return await ask()
        except Unreachable as error:
            await backoff.pause_after(error)
