"""The slots of a worker's runs: `room` at once, and as many more as there are agents at work that nobody leads.

Such an agent is on the machine already, and would be stopped at its lease's end. A slot is reserved before it is known
which run comes: one that has not begun is given back where its place is another's.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from temporalio.worker import CustomSlotSupplier, SlotPermit, SlotReleaseContext, SlotReserveContext

from activities.takeover.detachment import detached
from steersman import timeouts
from steersman.contracts.activities import RunKey

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
"""So many seconds pass before runs without a place are given back, and no others are asked for meanwhile: each attempt
is billed. Longer each time, until one of those comes that places are kept for: the server may not hand it out, as of a
paused run.
"""
AGAIN = timedelta(seconds=2)
"""When such a run is handed out again."""


class RunSlots(CustomSlotSupplier):
    """Made and used in the worker's event loop, but where the SDK releases a slot."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._reserved = 0
        self._change = asyncio.Event()
        """Set at the next change, and replaced."""
        self._led: set[RunKey] = set()
        self._expected: frozenset[RunKey] = frozenset()
        self._paused_until = 0.0
        self._pause_s = FIRST_PAUSE_S

    def expect(self, runs: Collection[RunKey]) -> None:
        """Keep places for these runs, and no others: agents are at work, and the server is about to hand them out."""
        expected = frozenset(runs) - self._led
        if not expected <= self._expected:
            self._pause_s = FIRST_PAUSE_S
        self._expected = expected
        self._changed()

    @contextmanager
    def leading(self, key: RunKey) -> Iterator[None]:
        """Meanwhile the run has a place."""
        if key in self._expected:
            self._pause_s = FIRST_PAUSE_S
        self._led.add(key)
        self._expected -= {key}
        try:
            yield
        finally:
            self._led.discard(key)
            self._changed()

    async def refuse_without_place(self, key: RunKey) -> None:
        """Raises ApplicationError where a run that has not begun has no place now: it is tried again."""
        if not self._has_place(key) and not self._is_paused():
            self._paused_until = self._loop.time() + self._pause_s
            self._pause_s = min(self._pause_s * 2, LAST_PAUSE_S)
        while not self._has_place(key):
            if not self._is_paused():
                raise detached("runs with agents at work go first", AGAIN)
            await self._change_or_pause()

    def _has_place(self, key: RunKey) -> bool:
        return key in self._expected or not self._is_full()

    def _is_full(self) -> bool:
        return len(self._led | self._expected) >= self._room

    def _is_paused(self) -> bool:
        return self._loop.time() < self._paused_until

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """As the SDK asks for it: before each poll."""
        while True:
            if self._reserved >= max(self._room, len(self._led)) + len(self._expected):
                await self._change.wait()
            elif self._is_full() and self._is_paused():
                await self._change_or_pause()
            else:
                break
        self._reserved += 1
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Nothing: no workflows are in the worker whose activities these are."""
        return None

    def mark_slot_used(self, ctx: object) -> None:
        """Which run has it, `leading` says."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Called in any thread; also after the loop's end."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self._reserved -= 1
        self._changed()

    async def _change_or_pause(self) -> None:
        """Until the next change, or the end of the pause."""
        with suppress(TimeoutError):
            async with timeouts.timeout_at(self._paused_until):
                await self._change.wait()

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
