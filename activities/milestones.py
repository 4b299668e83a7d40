"""What a session tells its workflow, and when. What is told is history: seldom, and in order."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from activities.ports import Notifier
from steersman.contracts.activities import Progressed


class Milestones:
    """What the workflow is told: in order, each until it is heard, and of progress little, because each costs history.

    Progress is told at the first sight of a session and then after 2, 4, 8 ... 64 s and thrice as late each time, so
    that a run of days stays under 100 history events. The heartbeat carries what happens between.

    `taken_over`: another worker has led the run. What that one has told is not told again, and its pauses are gone on
    with: else each deploy would cost what a run's beginning costs.
    """

    def __init__(self, notifier: Notifier, *, taken_over: bool = False) -> None:
        self._notifier = notifier
        self._queue: deque[Callable[[], Awaitable[None]]] = deque()
        self._wake = asyncio.Event()
        self._pause = due = 2.0
        while due <= notifier.age_s:
            self._lengthen()
            due += self._pause
        self._next = time.monotonic() + due - notifier.age_s
        self._said: Progressed | None = None
        self._said_session = taken_over

    def put(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Tell this as soon as everything before it is told."""
        self._queue.append(tell)
        self._wake.set()

    def consider(self, snapshot: Callable[[], Progressed]) -> None:
        """Tell how far the run is, if it is time for it."""
        now = time.monotonic()
        if now < self._next and self._said_session:
            return
        progress = snapshot()
        first_sight = progress.session_id is not None and not self._said_session
        if (now < self._next and not first_sight) or progress == self._said:
            return
        self._said, self._said_session = progress, self._said_session or first_sight
        if now >= self._next:
            self._lengthen()
            self._next = now + self._pause
        self.put(lambda: self._notifier.progressed(progress))

    def _lengthen(self) -> None:
        self._pause *= 2 if self._pause < 64 else 3

    async def run(self) -> None:
        """Carry the news until cancelled. The notifier waits out failures of the server."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._queue[0]()
                self._queue.popleft()
