"""What comes while a run or a loop is followed on a terminal: its items, remarks of our own, keys, Ctrl-C.

Read ahead of what is shown, so that a question at the terminal never holds up the reading. Shows nothing itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from steersman.cli.terminal.keyboard import Keyboard

T = TypeVar("T")
READ_AHEAD = 2000


@dataclass(frozen=True)
class Note:
    """A line of Steersman's own."""

    text: str
    style: str = "dim"


@dataclass(frozen=True)
class KeyPress:
    """What was typed at once: a key, as a rule."""

    keys: str


class SourceEnded(Exception):
    """Nothing more comes."""


class EventPump(Generic[T]):
    """One source, and what happens beside it."""

    def __init__(self, source: AsyncGenerator[T, None], keyboard: Keyboard, hear: Callable[[T], None]) -> None:
        """`hear` is told of each item when it is read, maybe long before it is shown."""
        self._keyboard = keyboard
        self._hear = hear
        self._waiting: asyncio.Queue[T | Note] = asyncio.Queue(READ_AHEAD)
        self._reading = asyncio.create_task(self._read(source))
        self._reading.add_done_callback(lambda _: keyboard.wake.set())
        self._tasks: list[asyncio.Task[None]] = []

    async def _read(self, source: AsyncGenerator[T, None]) -> None:
        async with aclosing(source) as items:
            async for item in items:
                self._hear(item)
                await self._waiting.put(item)
                self._keyboard.wake.set()

    async def next(self) -> T | Note | KeyPress | None:
        """What is next; None for Ctrl-C. Raises Ended, or what reading raised, once all before it was shown."""
        keyboard = self._keyboard
        while True:
            keyboard.wake.clear()
            if keyboard.ctrl_c.is_set():
                keyboard.clear_interrupt()
                return None
            if not keyboard.keys.empty():
                return KeyPress(keyboard.keys.get_nowait())
            if not self._waiting.empty():
                return self._waiting.get_nowait()
            if self._reading.done():
                self._reading.result()
                raise SourceEnded
            await keyboard.wake.wait()

    def run_beside(self, work: Coroutine[Any, Any, Note | None], *, in_turn: bool = False) -> None:
        """Do something beside the stream: what comes of it is shown among its items, not in the middle of a question.

        `in_turn`: only when the errands before it are done.
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
            await self._waiting.put(note)
            self._keyboard.wake.set()

    async def wait_idle(self, seconds: float) -> bool:
        """Wait for the errands, so long at most; whether all are done."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        return all(each.done() for each in self._tasks)

    async def close(self) -> None:
        """Let go of everything."""
        tasks = [self._reading, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
