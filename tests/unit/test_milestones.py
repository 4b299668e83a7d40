"""What a workflow is told of its run's progress: seldom, and not again by each worker that takes the run over."""

import asyncio
import itertools
from collections.abc import Callable
from unittest.mock import AsyncMock

import pytest

from activities.running.progress import ProgressReporter
from activities.running.starts import Starts
from steersman.contracts.activities import Progressed

HOUR = 3600.0


class Clock:
    """The loop's monotonic time, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    return clock


def tellings(clock: Clock, *, hours: int, deploy_every_s: float) -> int:
    """How often a run that works all the time is told of, handed over from worker to worker."""
    told: list[Progressed] = []
    count = 0

    def progress() -> Progressed:
        nonlocal count
        count += 1
        return Progressed(session_id="s", turns=count)

    begun = clock.now
    while clock.now - begun < hours * HOUR:
        age = clock.now - begun
        notifier = AsyncMock(age_s=age)
        notifier.progressed.side_effect = told.append
        milestones = ProgressReporter(notifier, Starts(), taken_over=age > 0)
        until = clock.now + deploy_every_s
        while clock.now < until:
            milestones.consider(progress, has_session=True)
            clock.now += 5
        asyncio.run(_carried(milestones))
    return len(told)


async def _carried(milestones: ProgressReporter) -> None:
    task = asyncio.ensure_future(milestones.run())
    for _ in range(100):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.exhaustive
def test_a_run_of_days_is_told_of_as_seldom_with_deploys_as_without(clock: Clock) -> None:
    counted: Callable[[float], int] = lambda every: tellings(clock, hours=72, deploy_every_s=every)  # noqa: E731
    alone, hourly, often = counted(72 * HOUR), counted(HOUR), counted(120)
    assert alone <= 15
    assert hourly <= alone + 1
    assert often <= alone + 1


async def test_progress_waits_a_moment_for_runs_that_are_being_started(clock: Clock) -> None:
    starts = Starts()
    reporter = ProgressReporter(AsyncMock(age_s=0.0), starts)
    turns = itertools.count()

    def told(after_s: float) -> bool:
        clock.now += after_s
        return reporter.consider(lambda: Progressed(turns=next(turns)))

    starts.note()
    assert [told(1.9), told(0.2)] == [False, True], "nothing was started for a while"
    starts.note()
    clock.now += 3.9
    starts.note()
    assert [told(0.2), told(0.7), told(0.2)] == [False, False, True], "it waits no longer than starts go on"

    waited = 0
    clock.now += 7
    while not told(0.5):
        starts.note()
        waited += 1
    assert waited * 0.5 == pytest.approx(10, abs=1), "it does not wait for ever"


async def test_what_cannot_wait_is_told_beside_starts(clock: Clock) -> None:
    starts = Starts()
    starts.note()
    reporter = ProgressReporter(AsyncMock(age_s=0.0), starts)
    assert reporter.consider(lambda: Progressed(session_id="s"), has_session=True)
    assert reporter.consider(lambda: Progressed(session_id="s", turns=1), at_once=True)
