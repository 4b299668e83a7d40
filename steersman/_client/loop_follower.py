"""Following a loop across its runs: what it is doing, and what the agent of each of its runs does, in order.

The order is kept here: a state that comes after a run is told once the run's last event has been.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from steersman._client.event_log import PATIENCE_S
from steersman._client.host_calls import Patience
from steersman._client.loop_calls import LoopCalls
from steersman.contracts.events import AgentEvent
from steersman.contracts.loop_state import Checkpoint, LoopState
from steersman.errors import RunNotFound, Unreachable

FIRST_LOOK_S: Final = 0.05
LOOK_S: Final = 1.0
READ_AHEAD: Final = 500
LAST_RUN_S: Final = 30.0
"""How long the last run of a loop that has closed may take to end."""
START_PATIENCE_S: Final = 15.0
"""A loop names its run a moment before it starts it."""
Attach = Callable[..., AsyncGenerator[AgentEvent, None]]
"""`attach(run, after=number)`: as Steersman.attach."""


@dataclass(frozen=True)
class RunBegun:
    """The events that follow are this run's."""

    run: str
    iteration: int
    verifies: bool


@dataclass(frozen=True)
class RunEvent:
    """An event of one of the loop's runs."""

    run: str
    event: AgentEvent


LoopItem = LoopState | RunBegun | RunEvent


class LoopLog:
    """One loop, followed once."""

    def __init__(
        self,
        loop: str,
        calls: LoopCalls,
        attach: Attach,
        wake: asyncio.Event,
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._attach = attach
        self._wake = wake
        self._items: asyncio.Queue[LoopItem] = asyncio.Queue(READ_AHEAD)
        self._patience = Patience(0)
        self._told: LoopState | None = None
        self._read: set[str] = set()
        self._reading: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def follow(self) -> AsyncGenerator[LoopItem, None]:
        """Everything from now on, until the loop has closed and its last run was told."""
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
        self._closed = asyncio.ensure_future(self._calls.closing(self._loop))
        pause = FIRST_LOOK_S
        while True:
            self._wake.clear()
            over = self._closed.done()
            if over:
                self._closed.result()
            if over:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._finish_reading(), LAST_RUN_S)
            changed = await self._look()
            if over:
                return
            pause = FIRST_LOOK_S if changed else min(pause * 2, LOOK_S)
            if await self._doze(pause):
                pause = FIRST_LOOK_S

    async def _doze(self, seconds: float) -> bool:
        """Until the time is up, or the loop closed, its run ended or somebody is in a hurry: whether one of these."""
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

    async def _look(self) -> bool:
        """Tell what is new; whether anything was."""
        try:
            state = await self._calls.state(self._loop)
        except Unreachable as error:
            await self._patience.bear(error)
            return False
        self._patience.limit_s = PATIENCE_S
        self._patience.reset()
        if self._told is not None and _still(state) == _still(self._told):
            return False
        if state.run is None or state.run not in self._read:
            await self._finish_reading()
        for each in await self._over(state):
            if self._told is None:
                self._read.add(each.run)  # that was before
            elif each.run not in self._read and each.run != state.run:
                # It began and ended between two looks.
                self._begin(each)
                await self._finish_reading()
        self._told = state
        await self._items.put(state)
        if state.run is not None and state.run not in self._read:
            self._begin(RunBegun(state.run, state.iteration, verifies=state.status == "verifying"))
        return True

    async def _over(self, state: LoopState) -> Iterator[RunBegun]:
        """Runs that have a checkpoint by now, oldest first."""
        recent = state.checkpoints
        last = self._told.checkpoints[-1].number if self._told and self._told.checkpoints else None
        if last is not None and recent and recent[0].number > last + 1:
            # More than a state shows since the last look.
            return _runs_of(await self._calls.checkpoints(self._loop, last))
        return _runs_of(recent)

    def _begin(self, begun: RunBegun) -> None:
        self._read.add(begun.run)
        self._reading = asyncio.create_task(self._read_run(begun))

    async def _finish_reading(self) -> None:
        if self._reading is not None:
            await self._reading

    async def _read_run(self, begun: RunBegun) -> None:
        await self._items.put(begun)
        last, starting, outage = 0, Patience(START_PATIENCE_S), Patience(PATIENCE_S)
        while True:
            try:
                async with aclosing(self._attach(begun.run, after=last)) as events:
                    async for event in events:
                        last = event.seq
                        outage.reset()
                        await self._items.put(RunEvent(begun.run, event))
                return
            except RunNotFound as error:
                if self._closed.done() or self._told is None or self._told.run != begun.run:
                    return  # it was never started
                await starting.bear(error)
            except Unreachable as error:
                await outage.bear(error)


def _still(state: LoopState) -> LoopState:
    """What is worth telling when it changes: not the clock."""
    return state.model_copy(update={"totals": state.totals.model_copy(update={"active_s": 0.0})})


def _runs_of(checkpoints: Iterable[Checkpoint]) -> Iterator[RunBegun]:
    """Each with its verification."""
    for each in checkpoints:
        if each.run is not None:
            yield RunBegun(each.run, each.iteration, verifies=False)
            if each.verification is not None:
                yield RunBegun(f"{each.run}-verify", each.iteration, verifies=True)
