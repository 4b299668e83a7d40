"""Sleeps, backoffs and rate limits: durable timers that a person ends."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.workflows.fake_host import timers
from tests.workflows.fake_loop_host import HELD, FakeLoopHost
from tests.workflows.loop_client import checkpoints, ended, failed, kinds, never_retried, reaches, state, tell
from tests.workflows.loop_results import exits, fails, limited, never_began, result

pytestmark = pytest.mark.integration


def soon(**times: float) -> str:
    """That long from now, as a provider says it."""
    return (datetime.now(UTC) + timedelta(**times)).isoformat()


@pytest.mark.exhaustive
async def test_a_rate_limit_is_waited_for_and_costs_no_iteration(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [limited(soon(seconds=1))]
    loop = await loop_fake.start(limits={"iterations": 1, "failures": 1})
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations, outcome.cost_usd) == ("done", 1, 0.02)
    first, second = loop_fake.asked
    assert second["session"] == "s-1"
    assert second["prompt"].startswith("You were interrupted")
    assert first["prompt"] != second["prompt"]
    assert kinds(await checkpoints(loop)) == ["baseline", "pause", "iteration"]
    assert (await state(loop)).last_error is None
    assert await timers(loop) == ['"the provider limits the account"']


@pytest.mark.parametrize(
    ("resets_at", "least_s", "most_s"),
    [
        ("in an hour", 3590, 3605),
        ("in a month", 8 * 86400 - 10, 8 * 86400 + 5),
        ("9999-12-31T23:59:59+00:00", 8 * 86400 - 10, 8 * 86400 + 5),
        ("0001-01-01T00:00:00+14:00", 0, 3),
        ("2026-01-01T00:00:00", 50, 61),
        ("tomorrow", 50, 61),
        (12, 50, 61),
        (None, 50, 61),
    ],
)
async def test_when_it_goes_on(loop_fake: FakeLoopHost, resets_at: Any, least_s: float, most_s: float) -> None:
    known = {"in an hour": soon(hours=1), "in a month": soon(days=30)}
    loop_fake.script = [limited(known.get(resets_at, resets_at)), HELD]
    loop = await loop_fake.start()
    if most_s < 10:
        await loop_fake.at_hold()  # a reset that is long past is no reason to wait
        return
    now = await reaches(loop, "waiting_rate_limit")
    assert now.wakes_at is not None
    assert least_s < (now.wakes_at - datetime.now(UTC)).total_seconds() < most_s
    assert now.wakes_at.utcoffset() == timedelta(0)
    assert (now.waits_for, now.failures) == ("the provider limits the account", 0)


async def test_a_limit_that_stays_is_asked_ever_more_seldom(skipping: WorkflowEnvironment) -> None:
    times: list[datetime] = []
    fake = FakeLoopHost(skipping.client)

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        times.append(await skipping.get_current_time())
        return limited("2026-01-01T00:00:00Z") if number < 11 else result()

    fake.play_iteration = iterate  # type: ignore[method-assign]
    async with fake.at_work():
        await ended(await fake.start())
    waits = [round((after - before).total_seconds() / 60) for before, after in pairwise(times)]
    assert waits == [0, 2, 4, 8, 16, 32, 60, 60, 60, 60]


async def test_only_the_structured_fact_is_a_rate_limit(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [fails("AgentFailed", "429 rate limit exceeded, resets at 10pm")]
    loop = await loop_fake.start(limits={"failures": 2})
    now = await reaches(loop, lambda now: now.wakes_at)
    assert (now.status, now.failures) == ("running", 1)


async def test_a_loop_that_stops_at_a_rate_limit(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [limited(soon(hours=1))]
    outcome = await ended(await loop_fake.start(rate_limit="stop"))
    assert (outcome.status, outcome.stop_reason, outcome.error) == ("exited", "rate_limit", "rate limited")
    assert outcome.session_id == "s-1"


@pytest.mark.exhaustive
@pytest.mark.parametrize("ends", ["skip_wait", "exit"])
async def test_a_wait_ended_by_a_person(uncached_fake: FakeLoopHost, ends: str) -> None:
    uncached_fake.script = [limited(soon(hours=1))]
    loop = await uncached_fake.start()
    await reaches(loop, "waiting_rate_limit")
    receipt = await tell(loop, ends)
    outcome = await ended(loop)
    if ends == "exit":
        assert outcome.stop_reason == "exit"
    else:
        assert (receipt.status, receipt.wakes_at, outcome.stop_reason) == ("running", None, "done")
    await never_retried(loop)


async def test_a_failure_backs_off_and_the_next_prompt_begins_anew(skipping: WorkflowEnvironment) -> None:
    times: list[datetime] = []
    fake = FakeLoopHost(skipping.client)

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        times.append(await skipping.get_current_time())
        return never_began() if number < 8 else result()

    fake.play_iteration = iterate  # type: ignore[method-assign]
    async with fake.at_work():
        outcome = await ended(await fake.start(pause_between_s=10, limits={"failures": 0}))
    assert outcome.iterations == 8
    waits = [round((after - before).total_seconds() / 10) for before, after in pairwise(times)]
    assert waits == [1, 2, 4, 8, 16, 32, 60]
    assert all("make it work" in each["prompt"] for each in fake.asked)


@pytest.mark.exhaustive
async def test_the_pause_between_iterations(skipping: WorkflowEnvironment) -> None:
    fake = FakeLoopHost(skipping.client)
    fake.verdicts = [exits(1)] * 3
    async with fake.at_work(cached=0):
        outcome = await ended(await fake.start(pause_between_s=3600))
    assert timedelta(hours=3) <= outcome.ended_at - outcome.started_at < timedelta(hours=3, minutes=2)


@pytest.mark.exhaustive
async def test_weeks_of_pause(skipping: WorkflowEnvironment) -> None:
    fake = FakeLoopHost(skipping.client)
    fake.verdicts = [exits(1)]
    async with fake.at_work(cached=0):
        loop = await fake.start(mode="checkpoint")
        await reaches(loop, "waiting_for_decision")
        await tell(loop, "pause", reason="holidays")
        await skipping.sleep(timedelta(weeks=6))
        assert (await state(loop)).waits_for == "holidays"
        await tell(loop, "feedback", text="I am back")
        await skipping.sleep(timedelta(weeks=6))
        await tell(loop, "resume")
        outcome = await ended(loop)
        found = await checkpoints(loop)
    assert outcome.ended_at - outcome.started_at > timedelta(weeks=12)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)
    assert fake.asked[1]["session"] == "s-1"
    assert "I am back" in fake.asked[1]["prompt"]
    assert found[-1].totals.active_s < 3600
    assert all(each.time.utcoffset() == timedelta(0) for each in found)
    assert len((await loop.fetch_history()).events) < 150


async def test_a_machine_that_is_away_is_waited_for_and_costs_no_session(skipping: WorkflowEnvironment) -> None:
    times: list[datetime] = []
    fake = FakeLoopHost(skipping.client)
    fake.verdicts = [exits(1)] * 4
    away = [
        result(),
        never_began("PlaceError", "m is away"),
        never_began("WorkspaceError", "cannot be copied"),
        result(),
    ]

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        times.append(await skipping.get_current_time())
        return away.pop(0)

    fake.play_iteration = iterate  # type: ignore[method-assign]
    async with fake.at_work():
        loop = await fake.start(limits={"iterations": 4})
        await ended(loop)
    waits = [round((after - before).total_seconds() / 60) for before, after in pairwise(times)]
    assert waits == [0, 1, 2]
    assert [each.get("session") for each in fake.asked] == [None, "s-1", "s-1", "s-1"]


async def test_a_loop_in_which_nothing_has_worked_yet_waits_for_no_machine(skipping: WorkflowEnvironment) -> None:
    """Its request is wrong, mostly."""
    fake = FakeLoopHost(skipping.client)
    fake.script = [never_began("PlaceError", "no such machine")] * 2
    async with fake.at_work():
        loop = await fake.start(limits={"failures": 2})
        outcome = (await failed(loop))[2]
    assert outcome.stop_reason == "failures"
    assert outcome.ended_at - outcome.started_at < timedelta(seconds=30)


NOBODY_VERIFIED = {
    "a machine that is away": fails("PlaceError", "m is away"),
    "a pod that is deleted": fails("AgentCrashed", "sh: SIGTERM", facts={"signal": 15, "cause": "its pod is deleted"}),
    "a machine that dies": fails("AgentCrashed", "nobody saw its end", facts={"exit_code": None, "signal": None}),
}


@pytest.mark.parametrize("verdict", NOBODY_VERIFIED.values(), ids=NOBODY_VERIFIED)
async def test_a_verification_that_nobody_could_make_is_made_again(
    skipping: WorkflowEnvironment, verdict: dict[str, Any]
) -> None:
    fake = FakeLoopHost(skipping.client)
    fake.verdicts = [verdict, verdict, exits(0)]
    async with fake.at_work():
        outcome = await ended(await fake.start(done={"verify": {"command": "make test"}}))
    assert (outcome.stop_reason, outcome.iterations, len(fake.verified)) == ("done", 1, 3)
    assert outcome.verification is not None
    assert outcome.verification.status == "passed"
    assert timedelta(minutes=3) <= outcome.ended_at - outcome.started_at < timedelta(minutes=4)


async def test_a_verification_that_nobody_can_make_ends_at_a_limit(skipping: WorkflowEnvironment) -> None:
    fake = FakeLoopHost(skipping.client)
    fake.verdicts = [NOBODY_VERIFIED["a machine that is away"]] * 100
    async with fake.at_work():
        loop = await fake.start(done={"verify": {"command": "make test"}}, limits={"duration_s": 3600})
        outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason) == ("exited", "duration")
    assert 4 < len(fake.verified) < 9


async def test_a_program_that_a_signal_ended_is_a_failure(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [fails("AgentCrashed", "killed", facts={"exit_code": None, "signal": 11}), exits(0)]
    outcome = await ended(await loop_fake.start(done={"verify": {"command": "make test"}}))
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)
