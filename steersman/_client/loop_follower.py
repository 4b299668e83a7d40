"""A loop, followed across its runs: its states, and the events of each run, in order.

A state that comes after a run is handed on only when the run's last event has been.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Any, Final, Protocol

from steersman._client.backoff import OUTAGE_S, Backoff
from steersman._client.loop_calls import LoopCalls
from steersman.contracts.events import AgentEvent
from steersman.contracts.loop_state import Checkpoint, LoopState
from steersman.errors import RunNotFound, Unreachable
from steersman.loop_items import LoopItem, RunBegun, RunEvent

FIRST_POLL_S: Final = 0.05
POLL_S: Final = 1.0
"""Seconds between queries of the state: the first pause after a change, doubled up to this."""
READ_AHEAD: Final = 500
"""This many items wait for a slow caller; then reading pauses."""
LAST_RUN_S: Final = 30.0
"""The last run of a loop that has closed may take this many seconds to end."""
RUN_START_S: Final = 15.0
"""A loop names its run a moment before it starts the run: a run that is not found is retried for this many seconds."""


class Attach(Protocol):
    """Steersman.attach, or what stands for it."""

    def __call__(self, run_id: str, *, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """The run's events with a number greater than `after`."""


class LoopFollower:
    """Follows one loop, once."""

    def __init__(self, loop: str, calls: LoopCalls, attach: Attach, wake: asyncio.Event) -> None:
        """`wake` is set by the caller to have the state queried now."""
        self._loop = loop
        self._calls = calls
        self._attach = attach
        self._wake = wake
        self._items: asyncio.Queue[LoopItem] = asyncio.Queue(READ_AHEAD)
        self._backoff = Backoff(0)
        self._last_state: LoopState | None = None
        self._runs_read: set[str] = set()
        self._reading: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def follow(self) -> AsyncGenerator[LoopItem, None]:
        """Every item from now on, until the loop has closed and its last run has ended."""
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                while not self._items.empty():
                    yield self._items.get_nowait()
                if watching.done():
                    watching.result()
                    return
                ready = asyncio.ensure_future(self._items.get())
                await asyncio.wait({ready, watching}, return_when=asyncio.FIRST_COMPLETED)
                if ready.done():
                    yield ready.result()
                else:
                    ready.cancel()
        finally:
            tasks = [each for each in (watching, self._reading, self._closed) if each]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        self._closed = asyncio.ensure_future(self._calls.outcome(self._loop))
        pause = FIRST_POLL_S
        while True:
            self._wake.clear()
            closed = self._closed.done()
            if closed:
                self._closed.result()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._finish_reading(), LAST_RUN_S)
            changed = await self._poll()
            if closed:
                return
            pause = FIRST_POLL_S if changed else min(pause * 2, POLL_S)
            if await self._sleep(pause):
                pause = FIRST_POLL_S

    async def _sleep(self, seconds: float) -> bool:
        """Sleep until the loop has closed, the run being read has ended, or `wake` is set; whether one of these was."""
        woken = asyncio.ensure_future(self._wake.wait())
        waits: set[asyncio.Future[Any]] = {woken, self._closed}
        if self._reading is not None and not self._reading.done():
            waits.add(self._reading)
        try:
            done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        if self._reading in done:
            await self._finish_reading()
        return bool(done)

    async def _poll(self) -> bool:
        """Query the state and hand on what has changed; whether anything has."""
        try:
            state = await self._calls.state(self._loop)
        except Unreachable as error:
            await self._backoff.pause_after(error)
            return False
        self._backoff.limit_s = OUTAGE_S
        self._backoff.reset()
        if self._last_state is not None and _without_clock(state) == _without_clock(self._last_state):
            return False
        if state.run is None or state.run not in self._runs_read:
            await self._finish_reading()
        for each in await self._ended_runs(state):
            if self._last_state is None:
                self._runs_read.add(each.run)  # it ended before the loop was followed
            elif each.run not in self._runs_read and each.run != state.run:
                # It began and ended between two polls.
                self._begin_reading(each)
                await self._finish_reading()
        self._last_state = state
        await self._items.put(state)
        if state.run is not None and state.run not in self._runs_read:
            self._begin_reading(RunBegun(state.run, state.iteration, verifies=state.status == "verifying"))
        return True

    async def _ended_runs(self, state: LoopState) -> Iterator[RunBegun]:
        """Runs that have a checkpoint, oldest first."""
        recent = state.checkpoints
        last = self._last_state.checkpoints[-1].number if self._last_state and self._last_state.checkpoints else None
        if last is not None and recent and recent[0].number > last + 1:
            # There are more new checkpoints than a state holds.
            return _runs_of(await self._calls.checkpoints(self._loop, last))
        return _runs_of(recent)

    def _begin_reading(self, begun: RunBegun) -> None:
        self._runs_read.add(begun.run)
        self._reading = asyncio.create_task(self._read_run(begun))

    async def _finish_reading(self) -> None:
        if self._reading is not None:
            await self._reading

    async def _read_run(self, begun: RunBegun) -> None:
        await self._items.put(begun)
        last, starting, outage = 0, Backoff(RUN_START_S), Backoff(OUTAGE_S)
        while True:
            try:
                async with aclosing(self._attach(begun.run, after=last)) as events:
                    async for event in events:
                        last = event.seq
                        outage.reset()
                        await self._items.put(RunEvent(begun.run, event))
                return
            except RunNotFound as error:
                if self._closed.done() or self._last_state is None or self._last_state.run != begun.run:
                    return  # it was never started
                await starting.pause_after(error)
            except Unreachable as error:
                await outage.pause_after(error)


def _without_clock(state: LoopState) -> LoopState:
    """The state without what changes all the time."""
    return state.model_copy(update={"as_of": None, "totals": state.totals.model_copy(update={"active_s": 0.0})})


def _runs_of(checkpoints: Iterable[Checkpoint]) -> Iterator[RunBegun]:
    """The run of each checkpoint, and the run of its verification."""
    for each in checkpoints:
        if each.run is not None:
            yield RunBegun(each.run, each.iteration, verifies=False)
            if each.verification is not None:
                yield RunBegun(f"{each.run}-verify", each.iteration, verifies=True)
