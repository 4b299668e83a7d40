"""The limits of a loop: held by the workflow, exact, and acting within an iteration."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.workflows.fake_loop_host import HELD, FakeLoopHost
from tests.workflows.loop_client import ended, failed, reaches, refused, state, tell, wait
from tests.workflows.loop_results import exits, fails, items, limited, result

pytestmark = pytest.mark.integration

NEVER = [exits(1)] * 20


async def test_iterations_are_counted_exactly(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    outcome = await ended(await loop_fake.start(limits={"iterations": 3}))
    assert (outcome.status, outcome.stop_reason, outcome.iterations, len(loop_fake.asked)) == (
        "exited",
        "iterations",
        3,
        3,
    )
    assert outcome.error == "limits.iterations: 3 of 3 are done"
    assert "iteration 3 of at most 3" in loop_fake.asked[2]["prompt"]


async def test_a_child_is_given_what_is_left(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    run = {"agent": "claude", "workspace": {"path": "/w"}, "limits": {"turns": 9, "cost_usd": 0.5, "approval_s": 60}}
    limits = {"cost_usd": 0.525, "tokens": 220, "duration_s": 600, "iteration_duration_s": 60, "idle_s": 30}
    outcome = await ended(await loop_fake.start(run=run, limits=limits))
    assert (outcome.stop_reason, outcome.usage.input_tokens, outcome.usage.output_tokens) == ("tokens", 200, 20)
    first, second = (each["limits"] for each in loop_fake.asked)
    own = {"turns": 9, "approval_s": 60, "idle_s": 30, "rate_limit_s": 60}
    assert first == {**own, "cost_usd": 0.5, "tokens": 220, "duration_s": 60}
    assert second == {**own, "cost_usd": 0.5, "tokens": 110, "duration_s": 60}


async def test_money(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    loop_fake.script = [result(cost_usd=0.1), result(cost_usd=0.2)]
    outcome = await ended(await loop_fake.start(limits={"cost_usd": 0.3}))
    assert (outcome.stop_reason, outcome.iterations) == ("cost", 2)
    assert outcome.error == "limits.cost_usd: $0.3000 of $0.3 are spent"
    assert loop_fake.asked[1]["limits"]["cost_usd"] == pytest.approx(0.2)


async def test_a_limit_that_ends_a_run_ends_the_loop(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [fails("BudgetExceeded", "limits.cost_usd", cost_usd=0.11)]
    loop = await loop_fake.start(limits={"cost_usd": 0.1, "failures": 1})
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason, outcome.cost_usd) == ("exited", "cost", 0.11)


@pytest.mark.exhaustive
async def test_failures_in_a_row(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    loop_fake.script = [fails(), result(), fails("AgentCrashed", "it fell over"), fails("AgentFailed", "no way")]
    loop = await loop_fake.start(limits={"failures": 2})
    for number in (1, 3):
        now = await reaches(loop, wait(number))
        assert (now.failures, now.status) == (1, "running")
        await tell(loop, "skip_wait")
    kind, message, outcome = await failed(loop)
    assert (kind, outcome.stop_reason, outcome.iterations) == ("LoopFailed", "failures", 4)
    assert message == "limits.failures: 2 in a row failed, the last one: no way"
    now = await state(loop)
    assert (now.status, now.last_error, now.failures) == ("failed", message, 2)
    assert [each.error for each in now.checkpoints] == [None, "no way", None, "it fell over", "no way"]


@pytest.mark.exhaustive
async def test_no_progress(loop_fake: FakeLoopHost) -> None:
    """HEAD, files and items: what changes any of them is progress, a commit as well."""
    changes = {2: "head", 3: "files", 4: "items"}
    loop_fake.items = items(0, 3)

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        what = changes.get(number)
        loop_fake.head += "x" if what == "head" else ""
        loop_fake.files += what == "files"
        loop_fake.items = items(1, 2) if what == "items" else loop_fake.items
        return result()

    loop_fake.play_iteration = iterate  # type: ignore[method-assign]
    done = {"items": {"kind": "json", "path": "x"}}
    loop = await loop_fake.start(done=done, limits={"no_progress": 2})
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason, outcome.iterations) == ("exited", "no_progress", 6)
    assert (await state(loop)).no_progress == 2


async def test_no_such_limit(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    loop_fake.script = [result()] * 5
    limits = {"no_progress": 0, "failures": 0, "iterations": 5}
    assert (await ended(await loop_fake.start(limits=limits))).stop_reason == "iterations"


async def test_limits_can_be_changed(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    limits = {"cost_usd": 5, "tokens": 10_000, "duration_s": 100, "iteration_duration_s": 50, "idle_s": 5}
    loop = await loop_fake.start(mode="checkpoint", limits=limits)
    await reaches(loop, "waiting_for_decision")
    said = {"cost_usd": 0, "tokens": 0, "duration_s": 0, "iteration_duration_s": 0, "idle_s": 0}
    await tell(loop, "set_limits", **said, iterations=2, no_progress=0, failures=0)
    now = (await state(loop)).limits
    assert now.model_dump() == {**dict.fromkeys(said), "iterations": 2, "no_progress": 0, "failures": 0}
    await tell(loop, "resume", mode="autonomous")
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("iterations", 2)
    assert loop_fake.asked[1]["limits"] == {"rate_limit_s": 60}


async def test_a_limit_that_is_reached_already_ends_a_loop_that_sleeps(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    loop = await loop_fake.start(pause_between_s=3600)
    await reaches(loop, lambda now: now.wakes_at)
    await tell(loop, "set_limits", cost_usd=0.005)
    assert (await ended(loop)).stop_reason == "cost"


async def test_money_is_no_limit_for_an_agent_that_does_not_tell_it(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    run = {"agent": "process", "command": ["work"], "workspace": {"path": "/w"}}
    loop = await loop_fake.start(run=run)
    await loop_fake.at_hold()
    told = (
        "Refused",
        'tokens is not supported by agent "process": it does not report what it uses; limit its duration instead',
    )
    assert await refused(loop, "set_limits", {"tokens": 5}) == told
    assert (await tell(loop, "set_limits", tokens=0, iterations=3)).status == "running"


@pytest.mark.exhaustive
async def test_an_iteration_that_a_rate_limit_cut_off_is_counted_once(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = NEVER
    loop_fake.script = [limited(), result()]
    loop = await loop_fake.start(limits={"iterations": 1})
    await reaches(loop, "waiting_rate_limit")
    await tell(loop, "skip_wait")
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations, len(loop_fake.asked)) == ("iterations", 1, 2)


@pytest.mark.exhaustive
async def test_duration_counts_work_and_waits_but_no_pause(skipping: WorkflowEnvironment) -> None:
    fake = FakeLoopHost(skipping.client)
    fake.verdicts = [exits(1)] * 100
    async with fake.at_work(cached=0):
        loop = await fake.start(pause_between_s=600, limits={"duration_s": 3600, "no_progress": 0})
        await reaches(loop, lambda now: now.wakes_at)
        await tell(loop, "pause")
        await skipping.sleep(timedelta(days=30))
        now = await state(loop)
        assert now.totals.active_s < 600
        await tell(loop, "resume")
        outcome = await ended(loop)
    took = outcome.ended_at - outcome.started_at
    assert (outcome.status, outcome.stop_reason) == ("exited", "duration")
    assert timedelta(days=30, seconds=3590) < took < timedelta(days=30, seconds=3700)
    assert outcome.iterations in (6, 7)
    left = [each["limits"]["duration_s"] for each in fake.asked]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 1200
