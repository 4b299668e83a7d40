"""What a run's controller tells the workflow, and when. Each signal is history: they are few, and in order."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from activities.ports.workflow import Notifier
from activities.running.starts import Starts
from steersman.contracts.activities import Progressed
from steersman.contracts.events import EventBase, MessageEvent, ProgressEvent
from steersman.contracts.run import LastEvent

LATE_S = 10.0
"""While the worker starts runs, progress is told at the first look that comes so much later: that of 200 that were
started at once would have the server write half as much again as their starts do, before the last of them is at work.
"""


class ProgressReporter:
    """Tells the workflow of the run's progress, throttled, and of everything else in order, each until it is heard.

    Progress is told at the first sight of the agent's session and then after 2, 4, 8 ... 64 s and thrice as late each
    time, so that a run of days stays under 100 history events. The heartbeat carries what happens between.

    Args:
        notifier: the way to the workflow.
        starts: those of the worker.
        taken_over: another worker has led the run. What that one has told is not told again, and its intervals are
            continued: else each deploy would cost what a run's beginning costs.
    """

    def __init__(self, notifier: Notifier, starts: Starts, *, taken_over: bool = False) -> None:
        self._notifier, self._starts = notifier, starts
        self._queue: deque[Callable[[], Awaitable[None]]] = deque()
        self._wake = asyncio.Event()
        self._interval = due = 2.0
        while due <= notifier.age_s:
            self._lengthen()
            due += self._interval
        self._next = time.monotonic() + due - notifier.age_s
        self._said: Progressed | None = None
        self._said_session = taken_over

    def put(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Tell this as soon as everything before it is told."""
        self._queue.append(tell)
        self._wake.set()

    def consider(self, snapshot: Callable[[], Progressed], *, has_session: bool = False, at_once: bool = False) -> bool:
        """Tell how far the run is, if it is time for it, the agent's session is seen first, or it is to be told
        `at_once`. Returns whether the workflow is told all of it.
        """
        now, first_sight = time.monotonic(), has_session and not self._said_session
        is_due = now >= self._next + (LATE_S if self._starts.go_on else 0)
        if not (is_due or first_sight or at_once):
            return False
        progress = snapshot()
        if progress == self._said:
            return True
        self._said, self._said_session = progress, self._said_session or first_sight
        if now >= self._next:
            self._lengthen()
            self._next = now + self._interval
        self.put(lambda: self._notifier.progressed(progress))
        return True

    def _lengthen(self) -> None:
        self._interval *= 2 if self._interval < 64 else 3

    async def run(self) -> None:
        """Tell what is queued until cancelled. The notifier waits out failures of the server."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._queue[0]()
                self._queue.popleft()


def is_blank(event: EventBase) -> bool:
    """Whether it is a text without any character to show, such as an empty line of a program's output."""
    return isinstance(event, MessageEvent | ProgressEvent) and not event.text.strip()


def last_event(event: EventBase) -> LastEvent:
    """The event in one line, for the run's state and the Web UI."""
    body: dict[str, Any] = event.model_dump(mode="json")
    kind = str(body.get("type", ""))
    named = {"tool_use": "name", "tool_result": "text", "file_change": "path", "permission": "tool", "usage": "turns"}
    summary = str(body.get(named.get(kind, "text")) or body.get("message") or body.get("session_id") or kind)
    said = "to the agent: " if kind == "message" and body["role"] == "user" else ""
    return LastEvent(seq=event.seq, type=kind, summary=(said + summary.strip())[:200], time=event.time)
