"""Pausing a loop and going on, in every status."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client

from tests.workflows.fake_loop_host import HELD, FakeLoopHost
from tests.workflows.loop_client import (
    checkpoints,
    decision,
    ended,
    kinds,
    never_retried,
    reaches,
    refused,
    state,
    tell,
)
from tests.workflows.loop_results import exits, limited, result

pytestmark = pytest.mark.integration


async def test_pause_now_ends_the_turn_and_resume_goes_on_with_the_session(uncached_fake: FakeLoopHost) -> None:
    uncached_fake.script = [HELD]
    loop = await uncached_fake.start()
    await uncached_fake.at_hold()
    receipt = await tell(loop, "pause", now=True, reason="lunch")
    assert (receipt.status, receipt.iteration) == ("paused", 1)
    now = await state(loop)
    assert (now.status, now.waits_for, now.run, now.session_id) == ("paused", "lunch", None, "s-1")
    assert (now.failures, now.last_error, now.no_progress) == (0, None, 0)
    assert kinds(now) == ["baseline", "pause"]
    assert (now.checkpoints[1].error, now.checkpoints[1].cost_usd) == (None, 0.01)

    await tell(loop, "feedback", text="use tabs")
    receipt = await tell(loop, "resume", text="and be quick")
    assert receipt.status == "running"
    outcome = await ended(loop)
    assert (outcome.iterations, outcome.cost_usd, outcome.error) == (1, 0.02, None)
    again = uncached_fake.asked[1]
    assert again["session"] == "s-1"
    assert again["prompt"].startswith("You were interrupted in the middle of iteration 1.")
    assert "- use tabs\n- and be quick" in again["prompt"]
    assert "make it work" not in again["prompt"]
    assert [each.run for each in await checkpoints(loop)] == [None, f"{loop.id}-1", f"{loop.id}-2"]
    await never_retried(loop)


@pytest.mark.exhaustive
async def test_resume_with_a_fresh_session_tells_it_everything(uncached_fake: FakeLoopHost) -> None:
    uncached_fake.script = [HELD, HELD]
    loop = await uncached_fake.start()
    await uncached_fake.at_hold()
    await tell(loop, "pause", now=True)
    await tell(loop, "resume", text="use tabs")
    await uncached_fake.at_hold()
    await tell(loop, "pause", now=True)
    receipt = await tell(loop, "resume", session="fresh")
    assert receipt.status == "running"
    outcome = await ended(loop)
    assert (outcome.iterations, outcome.error) == (1, None)
    first, second, third = uncached_fake.asked[:3]
    assert (first.get("session"), second["session"], third.get("session")) == (None, "s-1", None)
    assert "use tabs" in second["prompt"]
    # The new session has heard nothing of it.
    assert third["prompt"].startswith("Work on the plan below")
    assert "make it work" in third["prompt"]
    assert "use tabs" in third["prompt"]
    await never_retried(loop)


async def test_a_fresh_session_is_the_one_that_is_gone_on_with(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1), exits(1), exits(1), exits(0)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, decision(1))
    await tell(loop, "resume", session="fresh")
    await reaches(loop, decision(2))
    await tell(loop, "resume")
    await reaches(loop, decision(3))
    await tell(loop, "resume")
    await ended(loop)
    first, second, third, fourth = (each.get("session") for each in loop_fake.asked[:4])
    assert (first, second) == (None, None)
    assert None not in (third, fourth)


async def test_resume_takes_no_other_session(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "pause", now=True)
    kind, reason = await refused(loop, "resume", {"session": "s-1"})
    assert (kind, "session" in reason) == ("InvalidRequest", True)


async def test_pause_waits_for_the_iteration_and_its_verification(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    receipt = await tell(loop, "pause")
    assert (receipt.status, receipt.note) == ("running", "it pauses when the iteration has ended")
    loop_fake.release()
    now = await reaches(loop, "paused")
    assert (now.iteration, now.waits_for) == (1, "a person paused it")
    assert now.verification is not None
    assert now.verification.status == "failed"
    assert kinds(now) == ["baseline", "iteration", "pause"]
    assert (await tell(loop, "pause")).note == "it is paused already"
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 2
    assert kinds(await checkpoints(loop)) == ["baseline", "iteration", "pause", "iteration"]


async def test_a_pause_that_is_withdrawn(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "pause")
    receipt = await tell(loop, "resume", mode="checkpoint")
    assert (receipt.status, receipt.note) == ("running", "the pause is withdrawn")
    loop_fake.release()
    now = await reaches(loop, lambda now: now.status not in {"running", "verifying"})
    assert (now.status, now.mode) == ("waiting_for_decision", "checkpoint")


@pytest.mark.exhaustive
async def test_pause_now_while_verifying_verifies_again_after_resume(uncached_fake: FakeLoopHost) -> None:
    uncached_fake.verdicts = [HELD]
    loop = await uncached_fake.start()
    await uncached_fake.at_hold()
    assert (await state(loop)).status == "verifying"
    assert (await tell(loop, "pause", now=True)).status == "paused"
    now = await state(loop)
    assert (now.verification, now.totals.iterations, now.failures) == (None, 1, 0)
    await tell(loop, "resume")
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 1)
    assert (len(uncached_fake.asked), len(uncached_fake.verified)) == (1, 2)
    assert [(each.kind, each.verification) for each in await checkpoints(loop)] == [
        ("baseline", None),
        ("iteration", "passed"),
        ("pause", None),
    ]


async def test_pause_now_while_an_iteration_ends_starts_no_verification(loop_fake: FakeLoopHost) -> None:
    gate = asyncio.Event()
    survey = loop_fake.play_survey

    async def slow(wanted: Any) -> Any:
        if wanted.number == 1:
            await gate.wait()
        return await survey(wanted)

    loop_fake.play_survey = slow  # type: ignore[method-assign]
    loop = await loop_fake.start()
    await reaches(loop, lambda now: len(loop_fake.surveys) == 2 and now.run is None)
    pausing = asyncio.ensure_future(tell(loop, "pause", now=True))
    await reaches(loop, lambda now: True)
    gate.set()
    await pausing
    assert loop_fake.verified == []
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("after", ["a pause between iterations", "a rate limit"])
async def test_pause_wakes_what_waits(loop_fake: FakeLoopHost, after: str) -> None:
    loop_fake.script = [limited()] if after == "a rate limit" else []
    loop_fake.verdicts = [] if after == "a rate limit" else [exits(1)]
    loop = await loop_fake.start(pause_between_s=3600)
    await reaches(loop, lambda now: now.wakes_at)
    assert (await tell(loop, "pause")).status == "paused"
    now = await state(loop)
    assert (now.wakes_at, now.checkpoints[-1].kind) == (None, "pause")
    receipt = await tell(loop, "resume")
    assert receipt.status == "running"
    assert (await ended(loop)).stop_reason == "done"


async def test_pause_while_waiting_for_a_decision(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, "waiting_for_decision")
    assert (await tell(loop, "pause", reason="later")).status == "paused"
    await tell(loop, "resume", mode="autonomous")
    assert (await ended(loop)).iterations == 2


async def test_pause_before_the_first_iteration(loop_fake: FakeLoopHost) -> None:
    gate = asyncio.Event()

    async def admit(wanted: Any) -> None:
        await gate.wait()

    loop_fake.play_admit = admit  # type: ignore[method-assign]
    loop = await loop_fake.start()
    await reaches(loop, "running")
    await tell(loop, "pause")
    await tell(loop, "set_limits", iterations=7)
    await tell(loop, "revise", plan="another plan")
    gate.set()
    now = await reaches(loop, "paused")
    assert (now.iteration, now.limits.iterations, loop_fake.asked) == (0, 7, [])
    await tell(loop, "resume")
    await ended(loop)
    assert "another plan" in loop_fake.asked[0]["prompt"]
    assert "make it work" not in loop_fake.asked[0]["prompt"]


async def test_a_pause_after_a_resume_that_nobody_has_seen_to_yet(temporal: Client) -> None:
    """Both come while no worker is there, so that one workflow task has both: the last word counts."""
    fake = FakeLoopHost(temporal)
    fake.script = [HELD]
    async with fake.at_work():
        loop = await fake.start()
        await fake.at_hold()
        await tell(loop, "pause", now=True)
    await loop.signal("resume", {"mode": "checkpoint"})
    await loop.signal("pause", {"reason": "no, wait"})
    async with fake.at_work(cached=0):
        now = await reaches(loop, lambda now: now.mode == "checkpoint")
        assert (now.status, len(fake.asked)) == ("paused", 1)
        await tell(loop, "resume")
        assert (await ended(loop)).iterations == 1
    await never_retried(loop)


async def test_resume_of_a_loop_that_is_not_paused(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(pause_between_s=3600)
    await loop_fake.at_hold()
    reason = "the loop is not paused and waits for no decision: "
    assert await refused(loop, "resume") == ("Refused", reason + "it is at work")
    assert await refused(loop, "skip_wait") == ("Refused", "the loop is not waiting for a time")
    loop_fake.release()
    await reaches(loop, lambda now: now.wakes_at)
    assert await refused(loop, "resume") == ("Refused", reason + "skip_wait ends its wait")


async def test_an_agent_that_cannot_interrupt_is_cancelled(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD, result(session_id=None)]
    run = {"agent": "process", "command": ["work"], "workspace": {"path": "/w"}}
    loop = await loop_fake.start(run=run)
    await loop_fake.at_hold()
    await tell(loop, "feedback", text="use tabs")
    receipt = await tell(loop, "pause", now=True)
    assert receipt.status == "paused"
    now = await state(loop)
    assert (now.failures, now.last_error, now.totals.cost_usd) == (0, None, 0.005)
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 1
    assert "use tabs" in loop_fake.asked[1]["prompt"]


async def test_a_run_that_fails_when_it_is_interrupted_is_no_failure(loop_fake: FakeLoopHost) -> None:
    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        if number > 1:
            return result()
        await loop_fake.held()
        raise AssertionError("it is ended first")

    loop_fake.play_iteration = iterate  # type: ignore[method-assign]
    loop = await loop_fake.start(limits={"failures": 1})
    await loop_fake.at_hold()
    child = loop_fake.client.get_workflow_handle(f"{loop.id}-1")
    await child.cancel()
    receipt = await tell(loop, "pause", now=True)
    assert receipt.status == "paused"
    now = await state(loop)
    assert (now.failures, now.last_error) == (0, None)
    await tell(loop, "resume")
    assert (await ended(loop)).stop_reason == "done"
