"""Whom a loop tells that it waits for a person, and how it ended. Its runs tell what they ask, and no more."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.workflows.fake_host import until
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, Loop
from tests.workflows.loop_client import cancelled, checkpoints, decision, ended, reaches, tell
from tests.workflows.loop_results import exits
from tests.workflows.test_notices import URL

pytestmark = pytest.mark.integration


def told(fake: FakeLoopHost) -> list[tuple[str, Any]]:
    """What was told, in its order: of waits the iteration, of the end the status."""
    found: list[tuple[str, Any]] = []
    for each in fake.notices:
        notice = each.notice
        assert notice.loop
        found.append((notice.type, notice.result.status if notice.result else notice.loop.iteration))
    return found


def _count(fake: FakeLoopHost, number: int) -> Callable[[], bool]:
    return lambda: len(fake.notices) == number


async def start(fake: FakeLoopHost, **fields: Any) -> Loop:
    run = {"agent": "claude", "workspace": {"path": "/w"}, "notify": [{"url": URL}]}
    return await fake.start(run=run, **fields)


async def test_each_wait_for_a_decision_is_told_and_the_end(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1), exits(1)]
    loop = await start(loop_fake, mode="checkpoint")
    for number in (1, 2):
        await reaches(loop, decision(number))
        await until(_count(loop_fake, number))
        await tell(loop, "resume")
    assert (await ended(loop)).iterations == 3
    await until(lambda: len(loop_fake.notices) == 3)
    assert told(loop_fake) == [("waiting", 1), ("waiting", 2), ("end", "completed")]
    notice = loop_fake.notices[0].notice
    assert notice.loop
    assert (notice.run, notice.loop.waits_for) == (loop.id, "iteration 1 is finished")


async def test_a_pause_is_told_each_time(uncached_fake: FakeLoopHost) -> None:
    fake = uncached_fake
    fake.script = [HELD]
    loop = await start(fake)
    for number in (1, 2):
        await tell(loop, "pause", now=True, reason="lunch")
        await until(_count(fake, number))
        await tell(loop, "resume")
        await reaches(loop, "running")
    await loop.cancel(reason="enough")
    await cancelled(loop)
    await until(lambda: len(fake.notices) == 3)
    assert [kind for kind, _ in told(fake)] == ["waiting", "waiting", "end"]
    assert told(fake)[-1] == ("end", "cancelled")


async def test_its_runs_are_asked_to_tell_what_they_ask(loop_fake: FakeLoopHost) -> None:
    loop = await start(loop_fake)
    await ended(loop)
    assert [each["notify"] for each in loop_fake.asked] == [[{"url": URL}]]
    assert all("notify" not in each for each in loop_fake.verified)


async def test_most_of_a_budget_is_told_once(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)] * 4
    loop = await start(loop_fake, limits={"cost_usd": 0.03, "no_progress": 0})
    await ended(loop)
    await until(lambda: "end" in [kind for kind, _ in told(loop_fake)])
    assert [kind for kind, _ in told(loop_fake)] == ["budget", "end"]


async def test_most_of_its_time_is_told_after_an_iteration(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)]
    loop = await start(loop_fake, mode="checkpoint")
    await reaches(loop, decision(1))
    active_s = (await checkpoints(loop))[-1].totals.active_s
    await tell(loop, "set_limits", duration_s=active_s / 0.9)
    await until(lambda: "budget" in [kind for kind, _ in told(loop_fake)])
    (budget,) = (each.notice.budget for each in loop_fake.notices if each.notice.budget)
    assert (budget.of, budget.spent) == ("duration_s", active_s)


async def test_who_is_told_nothing_costs_no_history(loop_fake: FakeLoopHost) -> None:
    loop = await loop_fake.start()
    await ended(loop)
    events = (await loop.fetch_history()).to_json()
    assert loop_fake.notices == []
    assert "RunNotice" not in events
