"""Taking a loop back: rollback to a checkpoint, starting over."""

from typing import Any

import pytest

from steersman.contracts.loop_activities import Restored, RestoreInput
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, refusal
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
from tests.workflows.loop_results import exits, fails, items, result

pytestmark = pytest.mark.integration

DECIDED = "waiting_for_decision"


async def decided(loop_fake: FakeLoopHost, iterations: int, **fields: Any) -> Any:
    """A loop that waits for a decision after so many iterations, of which none is done."""
    loop_fake.verdicts = loop_fake.verdicts or [exits(1, "it is red")] * 20
    fields = {"mode": "batch", "batch_size": iterations, "limits": {"no_progress": 0}, **fields}
    loop = await loop_fake.start(**fields)
    await reaches(loop, DECIDED)
    return loop


async def test_a_rollback_rescues_restores_and_pauses(uncached_fake: FakeLoopHost) -> None:
    uncached_fake.script = [result(session_id="s-1"), result(session_id="s-2"), HELD]
    loop = await decided(uncached_fake, 2)
    receipt = await tell(loop, "rollback", checkpoint=1)
    assert (receipt.status, receipt.iteration, receipt.checkpoint, receipt.rescue) == ("paused", 1, 1, 3)
    assert [(each.source, each.number) for each in uncached_fake.restores] == [(loop.id, 1)]
    assert [each.number for each in uncached_fake.surveys] == [0, 1, 2, 3, None]
    now = await state(loop)
    assert (now.status, now.waits_for, now.session_id) == ("paused", "taken back to checkpoint 1", "s-1")
    assert (now.verification, now.failures, now.no_progress, now.totals.iterations) == (None, 0, 0, 2)
    assert now.checkpoints[-1].kind == "rescue"
    await tell(loop, "resume")
    await uncached_fake.at_hold()
    again = uncached_fake.asked[2]
    assert again["session"] == "s-1"
    assert "The workspace was taken back to how it was after iteration 1" in again["prompt"]
    assert "it is red" not in again["prompt"]
    assert (await state(loop)).iteration == 2
    await never_retried(loop)


async def test_a_rollback_to_a_pause_goes_on_in_the_middle(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD, result(), result()]
    loop = await loop_fake.start(mode="checkpoint")
    await loop_fake.at_hold()
    await tell(loop, "pause", now=True)
    loop_fake.verdicts = [exits(1)] * 3
    await tell(loop, "resume")
    await reaches(loop, DECIDED)
    await tell(loop, "rollback", checkpoint=1)
    await tell(loop, "resume")
    now = await reaches(loop, DECIDED)
    assert (now.iteration, now.totals.iterations) == (1, 1)
    assert loop_fake.asked[2]["prompt"].startswith("You were interrupted")


async def test_a_rollback_to_a_pause_between_iterations_begins_the_next_one(loop_fake: FakeLoopHost) -> None:
    loop_fake.script, loop_fake.verdicts = [HELD], [exits(1)]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "pause")
    loop_fake.release()
    now = await reaches(loop, "paused")
    assert kinds(now) == ["baseline", "iteration", "pause"]
    await tell(loop, "rollback", checkpoint=now.checkpoints[-1].number)
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 2
    assert loop_fake.asked[1]["prompt"].startswith("Go on with the plan: iteration 2 ")


async def test_a_rollback_that_is_taken_back_goes_on_in_the_middle(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "pause", now=True)
    rescue = (await tell(loop, "rollback", checkpoint=0)).rescue
    await tell(loop, "rollback", checkpoint=rescue)
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 1
    assert loop_fake.asked[1]["prompt"].startswith("You were interrupted in the middle of iteration 1.")


async def test_a_rollback_while_the_agent_works_ends_its_turn_first(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    receipt = await tell(loop, "rollback", checkpoint=0)
    assert (receipt.status, receipt.iteration) == ("paused", 0)
    now = await state(loop)
    assert (kinds(now), now.run, now.session_id, now.failures) == (["baseline", "pause", "rescue"], None, None, 0)
    await tell(loop, "resume")
    await ended(loop)
    assert "make it work" in loop_fake.asked[1]["prompt"]


async def test_unknown_checkpoints_are_refused(loop_fake: FakeLoopHost) -> None:
    loop = await decided(loop_fake, 1)
    assert await refused(loop, "rollback", {"checkpoint": 9}) == ("Refused", "there is no checkpoint 9")
    told = "iteration 2 has not begun: the loop is at iteration 1"
    assert await refused(loop, "restart", {"from": "iteration", "number": 2}) == ("Refused", told)
    await loop.execute_update("checkpoints", {"numbers": [0]})
    told = "there is no checkpoint from before the first iteration"
    assert await refused(loop, "restart", {}) == ("Refused", told)
    told = "there is no checkpoint from before iteration 1"
    assert await refused(loop, "restart", {"from": "iteration", "number": 1}) == ("Refused", told)
    assert (await state(loop)).status == DECIDED
    assert loop_fake.restores == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["it says so", "it fails"])
async def test_files_that_cannot_be_restored_leave_the_loop_paused(loop_fake: FakeLoopHost, how: str) -> None:
    async def restore(wanted: RestoreInput) -> Restored:
        if how == "it fails":
            raise refusal("the disk is full")
        return Restored(error="the disk is full")

    loop_fake.play_restore = restore  # type: ignore[method-assign]
    loop = await decided(loop_fake, 1)
    error = "the files of checkpoint 0 cannot be restored: the disk is full"
    told = f"{error}; checkpoint 2 has the files as they were before that"
    assert await refused(loop, "rollback", {"checkpoint": 0}) == ("Refused", told)
    now = await state(loop)
    assert (now.status, now.waits_for, now.iteration, now.session_id) == ("paused", told, 1, "s-1")
    assert await refused(loop, "restart", {}) == ("Refused", told.replace("checkpoint 2", "checkpoint 3"))
    await tell(loop, "resume")
    assert (await reaches(loop, DECIDED)).iteration == 2


async def test_starting_over_from_the_plan(loop_fake: FakeLoopHost) -> None:
    loop_fake.items = items(1, 1)
    loop_fake.script = [result(), fails(), HELD]
    loop = await loop_fake.start(
        mode="checkpoint", done={"items": {"kind": "json", "path": "x"}}, limits={"failures": 2, "no_progress": 0}
    )
    await reaches(loop, DECIDED)
    await tell(loop, "resume")
    now = await reaches(loop, decision(2))
    assert now.failures == 1
    loop_fake.items = items(0, 2)
    receipt = await tell(loop, "restart", **{"from": "plan"})
    assert (receipt.status, receipt.checkpoint, receipt.rescue) == ("running", 0, 3)
    await loop_fake.at_hold()
    now = await state(loop)
    assert (now.iteration, now.totals.iterations, now.session_id, now.failures, now.last_error) == (1, 3, None, 0, None)
    assert (now.totals.cost_usd, now.items and now.items.count.open) == (0.02, 2)
    assert loop_fake.restores[0].number == 0
    again = loop_fake.asked[2]
    assert again.get("session") is None
    assert "make it work" in again["prompt"]
    assert "taken back" not in again["prompt"]


async def test_starting_over_from_an_iteration_with_the_files_as_they_are(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [result(session_id="s-1"), fails(session_id="s-2"), result(session_id="s-3"), HELD]
    loop = await loop_fake.start(mode="checkpoint", limits={"no_progress": 0})
    loop_fake.verdicts = [exits(1)] * 20
    for iteration in (1, 2, 3):
        await reaches(loop, decision(iteration))
        if iteration < 3:
            await tell(loop, "resume")
    await tell(loop, "restart", **{"from": "iteration"}, number=3, files=False)
    await loop_fake.at_hold()
    now = await state(loop)
    assert (now.iteration, now.totals.iterations, loop_fake.asked[3]["session"]) == (3, 4, "s-2")
    assert loop_fake.restores == []
    assert "taken back" not in loop_fake.asked[3]["prompt"]
    assert [(each.iteration, each.kind) for each in await checkpoints(loop)] == [
        (0, "baseline"),
        (1, "iteration"),
        (2, "failure"),
        (3, "iteration"),
        (3, "rescue"),
    ]


async def test_starting_over_goes_before_being_done(loop_fake: FakeLoopHost) -> None:
    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        if number == 1:
            await loop_fake.held()
        return result()

    loop_fake.items = items(1)
    loop_fake.play_iteration = iterate  # type: ignore[method-assign]
    loop = await loop_fake.start(done={"items": {"kind": "json", "path": "x"}})
    await loop_fake.at_hold()
    receipt = await tell(loop, "restart")
    assert (receipt.checkpoint, receipt.rescue) == (0, 2)
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)


async def test_a_given_session_is_forked_again(loop_fake: FakeLoopHost) -> None:
    run = {"agent": "claude", "workspace": {"path": "/w"}, "session": "mine", "fork_session": True}
    loop = await decided(loop_fake, 1, run=run)
    await tell(loop, "restart")
    await reaches(loop, lambda now: len(loop_fake.asked) == 2)
    assert [(each["session"], each["fork_session"]) for each in loop_fake.asked] == [("mine", True), ("mine", True)]


async def test_a_plan_goes_back_with_the_loop(loop_fake: FakeLoopHost) -> None:
    loop = await decided(loop_fake, 1, prompt="{plan}, I say")
    await tell(loop, "revise", plan="make it better", prompt="{plan}, they say")
    await tell(loop, "resume")
    await reaches(loop, decision(2))
    await tell(loop, "rollback", checkpoint=1)
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.number, now.plan.text, now.plan.prompt) == (1, "make it work", "{plan}, I say")
    await tell(loop, "resume")
    await reaches(loop, lambda now: len(loop_fake.asked) == 3)
    assert [each["prompt"].partition("\n")[0] for each in loop_fake.asked] == [
        "make it work, I say",
        "make it better, they say",
        "make it work, I say",
    ]


async def test_a_pause_during_a_restart_pauses(loop_fake: FakeLoopHost) -> None:
    async def restore(wanted: RestoreInput) -> Restored:
        await loop_fake.held()
        return Restored()

    loop_fake.play_restore = restore  # type: ignore[method-assign]
    loop = await decided(loop_fake, 1)
    await tell(loop, "pause")
    await loop.signal("restart", {})
    await loop_fake.at_hold()
    await loop.signal("pause", {"reason": "wait"})
    loop_fake.release()
    now = await reaches(loop, lambda now: now.waits_for == "wait")
    assert (now.status, now.iteration, len(loop_fake.asked)) == ("paused", 0, 1)
