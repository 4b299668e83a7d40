"""A process that has been silent for long is looked at seldom, and yet nothing about it is seen late."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from activities.ports.agent import Transcript
from activities.ports.runtime import Channel, StopTimes
from activities.running.attempt_state import AttemptState
from activities.running.limits import Limit
from activities.running.messages import MessageWriter
from activities.running.observer import AttemptObserver
from activities.running.supervision import Supervisor
from steersman.contracts.run import StopReport

HOUR_S = 3600.0


class Script:
    hopeless = None
    finished = False


class Stops:
    """A channel that notes for what it was stopped."""

    def __init__(self) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def stop(self, times: StopTimes, reason: str) -> StopReport:
        self.reason.set_result(reason)
        return StopReport(outcome="stopped", phase="running", how="killed")


class Looks:
    """An observer that counts how often the process is looked at. `until`: when its silence reaches a limit."""

    stop_times = StopTimes(0, 0)

    def __init__(self, until: float = math.inf) -> None:
        self.number, self._until = 0, until

    def tick(self) -> None:
        self.number += 1

    def limit(self) -> Limit | None:
        return Limit("limits.idle_s: reached") if time.time() >= self._until else None

    def silence_left_s(self) -> float:
        return self._until - time.time()

    def stopping(self, reason: str) -> None: ...


class Idle:
    busy = False


@asynccontextmanager
async def watched(silent_s: float, looks: Looks) -> AsyncIterator[tuple[AttemptState, Stops]]:
    """A live process that has been silent for so long, and its watch."""
    state, stops, tasks = AttemptState(1, last_word=time.time() - silent_s), Stops(), set[asyncio.Task[None]]()
    state.live.set()
    state.open.set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.create_task(work))

    channel, script = cast("Channel", stops), cast("Transcript", Script())
    messages, observer = cast("MessageWriter", Idle()), cast("AttemptObserver", looks)
    watch = asyncio.create_task(Supervisor(state, channel, script, messages, observer, spawn).watch())
    try:
        yield state, stops
    finally:
        watch.cancel()
        await asyncio.gather(watch, *tasks, return_exceptions=True)


async def test_a_process_that_speaks_again_is_looked_at_at_once() -> None:
    looks = Looks()
    async with watched(HOUR_S, looks) as (state, _), asyncio.timeout(10):
        await asyncio.sleep(1.5)
        assert looks.number == 0
        state.last_word = time.time()
        state.woken.set()
        while looks.number < 3:
            await asyncio.sleep(0.01)


async def test_a_limit_of_its_silence_is_not_slept_through() -> None:
    async with watched(HOUR_S, Looks(time.time() + 1)) as (_, stops), asyncio.timeout(10):
        assert (await stops.reason).startswith("limits.idle_s")


async def test_the_end_of_a_turn_that_a_person_ended_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.running.supervision.TURN_END_S", 0.5)
    async with watched(HOUR_S, Looks()) as (state, stops), asyncio.timeout(10):
        await asyncio.sleep(0.1)
        state.ended_at = time.time()
        state.woken.set()
        assert await stops.reason == "interrupted"


async def test_limits_hold_in_a_turn_that_begins_once_stdin_was_closed() -> None:
    """As a background task of Claude Code begins one with its end."""
    async with watched(HOUR_S, Looks(time.time() + 1)) as (state, stops), asyncio.timeout(10):
        state.closed = True
        assert (await stops.reason).startswith("limits.idle_s")


async def test_who_has_done_its_work_reaches_no_limit_as_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Script, "finished", True)
    looks = Looks(time.time())
    async with watched(1, looks) as (state, stops), asyncio.timeout(10):
        state.closed = True
        while looks.number < 2:
            await asyncio.sleep(0.01)
        assert not stops.reason.done()
