"""A new loop that begins where another one was."""

from typing import Any

import pytest

from steersman.contracts.loop_activities import AdmitLoop, Restored, RestoreInput
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, Loop, refusal
from tests.workflows.loop_client import cancelled, checkpoints, ended, failed, kinds, reaches, state, tell
from tests.workflows.loop_results import exits

pytestmark = pytest.mark.integration


async def source(loop_fake: FakeLoopHost, iterations: int = 2, **fields: Any) -> Loop:
    """A loop that has stopped after so many iterations."""
    loop_fake.verdicts = [exits(1)] * 20
    loop = await loop_fake.start(limits={"iterations": iterations}, **fields)
    await ended(loop)
    return loop


def fork(loop: Loop, number: int, workspace: str = "/w", **more: Any) -> dict[str, Any]:
    return {
        "run": {"agent": "claude", "workspace": {"path": workspace}, **more},
        "from_checkpoint": {"loop": loop.id, "number": number},
    }


async def test_files_session_and_what_was_used_up(uncached_fake: FakeLoopHost) -> None:
    loop = await source(uncached_fake)
    uncached_fake.verdicts = []
    uncached_fake.surveys.clear()
    fresh = await uncached_fake.start(**fork(loop, 1), limits={"iterations": 5, "cost_usd": 1})
    outcome = await ended(fresh)
    assert (outcome.stop_reason, outcome.iterations, outcome.cost_usd) == ("done", 2, 0.02)
    assert outcome.usage.input_tokens == 200
    assert [(each.key.loop, each.source, each.number) for each in uncached_fake.restores] == [(fresh.id, loop.id, 1)]
    begun = uncached_fake.asked[2]
    assert (begun["session"], begun["fork_session"], begun["limits"]["cost_usd"]) == ("s-1", True, 0.99)
    assert begun["prompt"].startswith("Go on with the plan: iteration 2 of at most 5.")
    assert "The workspace was taken back to how it was after iteration 1: what you remember" in begun["prompt"]
    assert begun["labels"]["loop"] == fresh.id
    made = await checkpoints(fresh)
    assert [(each.kind, each.iteration, each.note) for each in made] == [
        ("rescue", 0, f"before taking over checkpoint 1 of {loop.id}"),
        ("baseline", 1, f"from checkpoint 1 of {loop.id}"),
        ("iteration", 2, None),
    ]
    assert made[-1].totals.active_s > made[1].totals.active_s > 0
    assert (await state(fresh)).iteration == 2


@pytest.mark.exhaustive
async def test_the_limits_count_over_it(loop_fake: FakeLoopHost) -> None:
    loop = await source(loop_fake)
    outcome = await ended(await loop_fake.start(**fork(loop, 2), limits={"iterations": 2}))
    assert (outcome.stop_reason, outcome.iterations, len(loop_fake.asked)) == ("iterations", 2, 2)


async def test_from_a_pause_it_goes_on_in_the_middle(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "pause", now=True)
    fresh = await loop_fake.start(**fork(loop, 1, "/elsewhere"))
    outcome = await ended(fresh)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 1)
    assert loop_fake.asked[1]["prompt"].startswith("You were interrupted in the middle of iteration 1.")
    assert (await state(loop)).status == "paused"


async def test_from_where_it_was_cancelled_it_goes_on_in_the_middle(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.cancel()
    last = (await cancelled(loop)).checkpoints[-1]
    assert (last.kind, last.iteration) == ("end", 1)
    fresh = await loop_fake.start(**fork(loop, last.number))
    assert (await ended(fresh)).iterations == 1
    assert loop_fake.asked[1]["prompt"].startswith("You were interrupted in the middle of iteration 1.")


@pytest.mark.exhaustive
async def test_starting_over_goes_back_to_where_it_was_forked(loop_fake: FakeLoopHost) -> None:
    loop = await source(loop_fake)
    fresh = await loop_fake.start(**fork(loop, 1), mode="checkpoint", limits={"no_progress": 0})
    await reaches(fresh, "waiting_for_decision")
    receipt = await tell(fresh, "restart")
    assert (receipt.checkpoint, receipt.iteration) == (1, 1)
    now = await reaches(fresh, "waiting_for_decision")
    assert (now.iteration, loop_fake.restores[-1].source, loop_fake.restores[-1].number) == (2, fresh.id, 1)


@pytest.mark.exhaustive
async def test_another_plan_is_told_to_the_session(loop_fake: FakeLoopHost) -> None:
    loop = await source(loop_fake)
    loop_fake.verdicts = []
    await ended(await loop_fake.start(**fork(loop, 1), plan="make it fast"))
    assert "The plan was revised. It is now:\n\nmake it fast" in loop_fake.asked[2]["prompt"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", ["/w", "/w/", "/x/../w"])
async def test_not_while_the_other_is_open_in_the_same_place(loop_fake: FakeLoopHost, path: str) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    kind, message, _ = await failed(await loop_fake.start(**fork(loop, 0, path)))
    told = f"from_checkpoint: loop {loop.id} is still open in {path}: end it, or give another workspace"
    assert (kind, message, loop_fake.restores) == ("InvalidRequest", told, [])


async def test_an_unknown_checkpoint(loop_fake: FakeLoopHost) -> None:
    loop = await source(loop_fake, 1)
    kind, message, _ = await failed(await loop_fake.start(**fork(loop, 7)))
    assert (kind, message) == ("InvalidRequest", f"from_checkpoint: loop {loop.id} has no checkpoint 7")


@pytest.mark.exhaustive
async def test_files_that_cannot_be_had(loop_fake: FakeLoopHost) -> None:
    async def restore(wanted: RestoreInput) -> Restored:
        return Restored(error="its files are gone")

    loop = await source(loop_fake, 1)
    loop_fake.play_restore = restore  # type: ignore[method-assign]
    fresh = await loop_fake.start(**fork(loop, 1))
    kind, message, outcome = await failed(fresh)
    assert (kind, message) == ("InvalidRequest", "from_checkpoint: its files are gone")
    assert (outcome.checkpoints, kinds(await state(fresh))) == (1, ["rescue"])


async def test_files_are_on_one_host(loop_fake: FakeLoopHost) -> None:
    loop = await source(loop_fake, 1)
    there = loop_fake.host
    loop_fake.host = "another-host"
    try:
        fresh = await loop_fake.start(**fork(loop, 1, runtime={"kind": "local", "host": "another-host"}))
        async with loop_fake.hosting():
            kind, message, _ = await failed(fresh)
    finally:
        loop_fake.host = there
    assert (kind, message) == ("InvalidRequest", f"run.workspace.host: the files of the checkpoint are on host {there}")


@pytest.mark.exhaustive
async def test_a_plan_that_only_the_checkpoint_has(loop_fake: FakeLoopHost) -> None:
    async def admit(wanted: AdmitLoop) -> None:
        if not loop_fake.restores:
            raise refusal("plan.path: there is no PLAN.md")

    loop = await source(loop_fake, 1)
    loop_fake.play_admit, loop_fake.verdicts = admit, []  # type: ignore[method-assign]
    outcome = await ended(await loop_fake.start(**fork(loop, 1), plan={"path": "PLAN.md"}))
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)


@pytest.mark.exhaustive
async def test_a_plan_that_the_checkpoint_has_not_either(loop_fake: FakeLoopHost) -> None:
    async def admit(wanted: AdmitLoop) -> None:
        raise refusal("plan.path: there is no PLAN.md")

    loop = await source(loop_fake, 1)
    loop_fake.play_admit = admit  # type: ignore[method-assign]
    kind, message, outcome = await failed(await loop_fake.start(**fork(loop, 1), plan={"path": "PLAN.md"}))
    assert (kind, message) == ("InvalidRequest", "plan.path: there is no PLAN.md")
    assert outcome.last_checkpoint is not None
    assert outcome.last_checkpoint.kind == "rescue"
