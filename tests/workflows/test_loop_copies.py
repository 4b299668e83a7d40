"""Iterations whose work did not all come back from the copy that they worked in."""

import pytest

from tests.workflows.fake_loop_host import HELD, FakeLoopHost
from tests.workflows.loop_client import checkpoints, kinds, never_retried, reaches, state
from tests.workflows.loop_results import exits, fails, result

pytestmark = pytest.mark.integration

LOST = {"status": "failed", "error": "the copy is lost: its pod is gone", "lost": True}
"""As a run's result has it whose pod is gone."""


async def test_a_conflict_is_named_and_the_agent_hears_of_it(uncached_fake: FakeLoopHost) -> None:
    paths = [f"src/{number}\n.py" for number in range(7)]
    back = {"status": "conflicted", "conflicts": paths, "unnamed_conflicts": 2, "ref": "refs/steersman/conflicts/l-1"}
    uncached_fake.script, uncached_fake.verdicts = [result(finalize=back), HELD], [exits(1)]
    loop = await uncached_fake.start()
    await uncached_fake.at_hold()
    names = "src/0 .py, src/1 .py, src/2 .py, src/3 .py, src/4 .py and 4 more, changed there as well"
    told = f"not carried back, kept in refs/steersman/conflicts/l-1: {names}"
    assert (await state(loop)).checkpoints[-1].note == told
    assert told in uncached_fake.asked[1]["prompt"]
    await never_retried(loop)


async def test_a_lost_copy_is_a_failed_iteration(loop_fake: FakeLoopHost) -> None:
    """Nothing waits in it for a person."""
    loop_fake.script = [fails("AgentCrashed", "the pod is gone", finalize={**LOST, "ref": "refs/x"}), HELD]
    loop = await loop_fake.start(pause_between_s=0)
    await loop_fake.at_hold()
    now = await state(loop)
    assert (now.failures, now.iteration, kinds(await checkpoints(loop))) == (1, 2, ["baseline", "failure"])
    assert now.checkpoints[-1].note == "its copy is lost, what the newest backup has is kept in refs/x"
    assert "kept in refs/x" in loop_fake.asked[1]["prompt"]


async def test_a_verification_whose_copy_is_lost_waits_for_a_person(loop_fake: FakeLoopHost) -> None:
    """It says nothing of what it was to verify."""
    loop_fake.verdicts = [fails("AgentCrashed", "the pod is gone", finalize=LOST)]
    loop = await loop_fake.start()
    now = await reaches(loop, "paused")
    assert (now.verification, now.waits_for) == (None, "the verification of iteration 1 waits: the pod is gone")


async def test_a_copy_that_waits_for_a_person_pauses_the_loop(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [fails("CarryBackFailed", "it stays", finalize={**LOST, "lost": False})]
    loop = await loop_fake.start()
    now = await reaches(loop, "paused")
    assert now.failures == 0
