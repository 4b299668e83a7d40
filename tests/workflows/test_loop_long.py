"""Loops of a thousand iterations: through new executions with a short history each, and nothing lost."""

from typing import Any

import pytest
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment

from steersman.contracts import names
from steersman.contracts.loop_activities import DropInput, Dropped
from tests.workflows.fake_host import replays
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, Loop, refusal
from tests.workflows.loop_client import (
    checkpoints,
    decision,
    ended,
    executions,
    never_retried,
    reaches,
    refused,
    state,
    tell,
)
from tests.workflows.loop_results import exits, items, result

pytestmark = pytest.mark.integration

ITEMS = {"items": {"kind": "json", "path": "x"}}
ANSWER = result()


@workflow.defn(name=names.RUN_WORKFLOW, sandboxed=False)
class QuickRun:
    """Is over at once."""

    @workflow.run
    async def run(self, request: Any) -> Any:
        return ANSWER


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
async def test_a_thousand_iterations(skipping: WorkflowEnvironment) -> None:
    iterations = 1000
    fake = FakeLoopHost(skipping.client)
    fake.items = items(0, 1)
    async with fake.at_work(run=QuickRun):
        loop = await fake.start(done=ITEMS, limits={"iterations": iterations, "no_progress": 0})
        outcome = await loop.result()
        made, now = await checkpoints(loop), await state(loop)
    assert (outcome["stop_reason"], outcome["iterations"], outcome["checkpoints"]) == ("iterations", 1000, 1001)
    assert [each.number for each in made] == list(range(iterations + 1))
    assert [each.iteration for each in made] == list(range(iterations + 1))
    assert [each.run for each in made[1:]] == [f"{loop.id}-{number}" for number in range(1, iterations + 1)]
    assert [each.commit for each in made] == [f"c{number}" for number in range(iterations + 1)]
    assert [each.totals.iterations for each in made] == list(range(iterations + 1))
    assert now.totals.usage.input_tokens == 100 * iterations
    assert now.totals.cost_usd == pytest.approx(0.01 * iterations)
    chain = await executions(loop, skipping.client)
    sizes = [len((await each.fetch_history()).events) for each in chain]
    assert len(sizes) > 5
    assert max(sizes) < 2200
    assert sum(sizes) < 40 * iterations
    await replays(chain[0])
    await never_retried(chain[0])


async def stopped(loop_fake: FakeLoopHost, iterations: int) -> Loop:
    """A paused loop with so many iterations' checkpoints."""
    loop_fake.verdicts = [exits(1)] * iterations
    loop = await loop_fake.start(mode="batch", batch_size=iterations, limits={"no_progress": 0})
    await reaches(loop, "waiting_for_decision")
    return loop


@pytest.mark.exhaustive
async def test_checkpoints_come_in_pages(loop_fake: FakeLoopHost) -> None:
    loop = await stopped(loop_fake, 4)
    first = await loop.query("checkpoints", {"limit": 2})
    assert ([each["number"] for each in first["checkpoints"]], first["more"]) == ([0, 1], True)
    last = await loop.query("checkpoints", {"after": 2, "limit": 2})
    assert ([each["number"] for each in last["checkpoints"]], last["more"]) == ([3, 4], False)
    everything = await loop.query("checkpoints")
    assert [each["number"] for each in everything["checkpoints"]] == [0, 1, 2, 3, 4]
    assert (await loop.query("checkpoints", {"after": 4}))["checkpoints"] == []


async def test_checkpoints_are_cleaned_up(loop_fake: FakeLoopHost) -> None:
    loop = await stopped(loop_fake, 4)
    clean = loop.execute_update
    assert await clean("checkpoints", {"numbers": [2, 77]}) == {"deleted": [2], "kept": 4}
    assert await clean("checkpoints", {"older_than_s": 3600}) == {"deleted": [], "kept": 4}
    assert await clean("checkpoints", {"oldest": 2}) == {"deleted": [0, 1], "kept": 2}
    assert [each.numbers for each in loop_fake.drops] == [(2,), (0, 1)]
    assert [each.number for each in await checkpoints(loop)] == [3, 4]
    assert await clean("checkpoints", {"older_than_s": 0}) == {"deleted": [3, 4], "kept": 0}
    assert await clean("checkpoints", {"all": True}) == {"deleted": [], "kept": 0}
    loop_fake.verdicts = []
    await tell(loop, "resume")
    outcome = await ended(loop)
    assert outcome.last_checkpoint is not None
    assert (outcome.checkpoints, outcome.last_checkpoint.number, outcome.last_checkpoint.verification) == (
        1,
        5,
        "passed",
    )


async def test_checkpoints_that_go_while_they_are_verified(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.execute_update("checkpoints", {"all": True})
    loop_fake.release()
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.checkpoints) == ("done", 0)
    await never_retried(loop)


async def test_checkpoints_that_the_host_does_not_delete_are_kept(loop_fake: FakeLoopHost) -> None:
    async def drop(wanted: DropInput) -> Dropped:
        raise refusal("the repository is locked", "GitFailed")

    loop_fake.play_drop = drop  # type: ignore[method-assign]
    loop = await stopped(loop_fake, 1)
    told = ("Refused", "the checkpoints could not be deleted: the repository is locked")
    assert await refused(loop, "checkpoints", {"all": True}) == told
    await loop.signal("checkpoints", {"all": True})
    assert (await state(loop)).checkpoints_total == 2


@pytest.mark.exhaustive
async def test_the_state_stays_small(loop_fake: FakeLoopHost) -> None:
    many = [each.model_copy(update={"text": "界" * 300}) for each in items(0, 200).items]
    loop_fake.items = items(0, 200).model_copy(update={"items": tuple(many)})
    loop_fake.script = [result("界" * 100_000)] * 3
    loop_fake.verdicts = [exits(1, "界" * 100_000)] * 3
    loop = await loop_fake.start(mode="checkpoint", plan="界" * 21_000, prompt="{plan}" + "界" * 21_000)
    for iteration in (1, 2):
        await reaches(loop, decision(iteration))
        for _ in range(5):
            await tell(loop, "feedback", text="x" * 20_000)
        if iteration == 1:
            await tell(loop, "resume")
    now = await state(loop)
    assert len(now.feedback) == len(now.feedback_consumed) == 5
    assert len(now.model_dump_json().encode()) < 1_000_000
    await tell(loop, "exit")
    outcome = await ended(loop)
    assert len(outcome.model_dump_json().encode()) < 100_000
