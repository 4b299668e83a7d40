"""The event pump: items of a followed run or loop, notes of this program, key presses and Ctrl-C in one order.

It reads ahead of what is shown, so that a question at the terminal does not hold up the reading. It shows nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from steersman.cli.terminal.keyboard import Keyboard

T = TypeVar("T")
READ_AHEAD = 2000
"""The pump reads at most this many items that are not shown yet."""
SLICE = 200
"""After this many items in a row the event loop has a turn: for keys, signals, and the reading of more."""


@dataclass(frozen=True)
class Note:
    """A line of this program, among the items."""

    text: str
    style: str = "dim"


@dataclass(frozen=True)
class KeyPress:
    """What one read of the terminal returned: mostly one key."""

    keys: str


class SourceEnded(Exception):
    """The source has no more items, and all of them were returned."""


class EventPump(Generic[T]):
    """One source, and the tasks beside it."""

    def __init__(
        self, source: AsyncGenerator[Sequence[T], None], keyboard: Keyboard, on_read: Callable[[T], None]
    ) -> None:
        """`source`: items, one or more at once. `on_read` is called with each item when it is read, which may be long
        before it is shown.
        """
        self._keyboard = keyboard
        self._on_read = on_read
        self._waiting: deque[T | Note] = deque()
        self._room = asyncio.Event()
        self._taken = 0
        self._reading = asyncio.create_task(self._read(source))
        self._reading.add_done_callback(lambda _: keyboard.wake.set())
        self._tasks: list[asyncio.Task[None]] = []

    async def _read(self, source: AsyncGenerator[Sequence[T], None]) -> None:
        async with aclosing(source) as pages:
            async for items in pages:
                for item in items:
                    self._on_read(item)
                    if len(self._waiting) >= READ_AHEAD:
                        await self._wait_for_room()
                    self._waiting.append(item)
                    self._keyboard.wake.set()

    async def _wait_for_room(self) -> None:
        while len(self._waiting) >= READ_AHEAD:
            self._room.clear()
            await self._room.wait()

    @property
    def has_more(self) -> bool:
        """Whether `next` returns without waiting."""
        return bool(self._waiting)

    def next_at_once(self) -> T | Note | None:
        """The next item, where it is there and no turn of the event loop is due; None where `next` is to be asked.

        A key or a signal is noticed in a turn alone: none can have come since the last one.
        """
        return self._take() if self._waiting and not self._is_turn_due() else None

    async def next(self) -> T | Note | KeyPress | None:
        """The next item, note or key press; None for Ctrl-C.

        Raises SourceEnded, or the error of the source, after the last item.
        """
        keyboard = self._keyboard
        while True:
            keyboard.wake.clear()
            if keyboard.ctrl_c.is_set():
                keyboard.clear_interrupt()
                return None
            if not keyboard.keys.empty():
                return KeyPress(keyboard.keys.get_nowait())
            if self._waiting:
                if self._is_turn_due():
                    self._room.set()
                    await asyncio.sleep(0)
                return self._take()
            if self._reading.done():
                self._reading.result()
                raise SourceEnded
            await keyboard.wake.wait()

    def _is_turn_due(self) -> bool:
        return (self._taken + 1) % SLICE == 0

    def _take(self) -> T | Note:
        self._room.set()
        self._taken += 1
        return self._waiting.popleft()

    def run_beside(self, work: Coroutine[Any, Any, Note | None], *, in_turn: bool = False) -> None:
        """Run a task beside the stream. Its note comes among the items, not in the middle of a question.

        `in_turn`: it starts when the tasks before it are done.
        """
        before = list(self._tasks) if in_turn else []
        self._tasks.append(asyncio.create_task(self._do(work, before)))

    async def _do(self, work: Coroutine[Any, Any, Note | None], before: "list[asyncio.Task[None]]") -> None:
        try:
            if before:
                await asyncio.wait(before)
            note = await work
        finally:
            work.close()
        if note is not None:
            await self._wait_for_room()
            self._waiting.append(note)
            self._keyboard.wake.set()

    def notes(self) -> list[Note]:
        """The notes that nobody has taken yet, of all that waits."""
        notes = [each for each in self._waiting if isinstance(each, Note)]
        self._waiting.clear()
        self._room.set()
        return notes

    async def wait_idle(self, seconds: float) -> bool:
        """Wait at most `seconds` for the tasks; whether all are done."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        return all(each.done() for each in self._tasks)

    async def close(self) -> None:
        """Cancel the reading and the tasks."""
        tasks = [self._reading, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
