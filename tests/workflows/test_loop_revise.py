"""A plan that changes: revised by a person, or edited in the workspace."""

from typing import Any

import pytest

from steersman.contracts.loop_activities import AdmitLoop, Survey, SurveyInput
from tests.workflows.loop_machine import HELD, LoopMachine, refusal
from tests.workflows.loop_script import exits, result
from tests.workflows.loop_watch import checkpoints, ended, reaches, refused, state, tell

pytestmark = pytest.mark.integration

DECIDED = "waiting_for_decision"


async def test_a_new_text_is_the_next_iterations_plan_and_the_old_one_is_kept(looping: LoopMachine) -> None:
    looping.verdicts = [exits(1)]
    loop = await looping.start(mode="checkpoint")
    await reaches(loop, DECIDED)
    receipt = await tell(loop, "revise", plan="make it {iteration} work better")
    assert (receipt.plan_version, receipt.note, receipt.status) == (2, "for the next iteration", DECIDED)
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.number, now.plan.text, now.plan_versions) == (2, "make it {iteration} work better", 2)
    await tell(loop, "resume")
    await ended(loop)
    assert "The plan was revised. It is now:\n\nmake it {iteration} work better" in looping.asked[1]["prompt"]
    first, second = [each for each in await checkpoints(loop) if each.kind == "iteration"]
    assert (first.plan_version, second.plan_version) == (1, 2)
    assert first.plan_hash != second.plan_hash
    then = await loop.query("fork_point", first.number)
    assert (then["plan"]["number"], then["plan"]["text"]) == (1, "make it work")


async def test_a_plan_revised_in_the_last_iteration_gets_another_one(looping: LoopMachine) -> None:
    looping.script = [HELD]
    loop = await looping.start()
    await looping.at_hold()
    await tell(loop, "revise", plan="make it better")
    looping.release()
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)
    assert "make it better" in looping.asked[1]["prompt"]


async def test_a_prompt_alone(looping: LoopMachine) -> None:
    looping.verdicts = [exits(1, "it is red"), exits(1, "still red")]
    loop = await looping.start(mode="checkpoint", prompt="Iteration {iteration}: {plan}")
    await reaches(loop, DECIDED)
    assert looping.asked[0]["prompt"] == "Iteration 1: make it work"
    await tell(loop, "revise", prompt="Look:\n{verification}")
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.number, now.plan.text, now.plan.prompt) == (2, "make it work", "Look:\n{verification}")
    await tell(loop, "resume", mode="autonomous")
    await ended(loop)
    prompt = looping.asked[1]["prompt"]
    assert prompt.startswith("Look:\nThe verification `true` failed with exit code 1.")
    assert prompt.count("it is red") == 1
    assert "make it work" not in prompt


async def test_a_file_that_somebody_edits_is_a_new_version_and_ticking_is_none(looping: LoopMachine) -> None:
    hashes = iter(["a", "a", "b", "b", "a"])

    async def survey(wanted: SurveyInput) -> Survey:
        assert wanted.plan is not None
        assert wanted.plan.path == "PLAN.md"
        return Survey(head="h", files=str(wanted.number), plan_hash=next(hashes))

    looping.play_survey = survey  # type: ignore[method-assign]
    looping.verdicts = [exits(1)] * 3
    await_done = await looping.start(plan={"path": "PLAN.md"}, prompt="{plan} Go.")
    outcome = await ended(await_done)
    assert outcome.iterations == 4
    made = await checkpoints(await_done)
    assert [(each.plan_version, each.plan_hash) for each in made] == [(1, "a"), (1, "a"), (2, "b"), (2, "b"), (3, "a")]
    assert all(each["prompt"].startswith("The plan is in the file `PLAN.md`") for each in looping.asked)
    assert (await state(await_done)).plan_versions == 3


async def test_another_file(looping: LoopMachine) -> None:
    looping.verdicts = [exits(1)]
    loop = await looping.start(mode="checkpoint", plan={"path": "PLAN.md"})
    await reaches(loop, DECIDED)
    assert (await tell(loop, "revise", plan={"path": "plan", "phase": "02"})).plan_version == 2
    await tell(loop, "resume")
    await ended(loop)
    assert "The plan was revised: read `plan` again." in looping.asked[1]["prompt"]
    last = looping.surveys[-1].plan
    assert last is not None
    assert (last.path, last.phase) == ("plan", "02")
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.hash, now.plan_versions) == ("p", 2)


async def test_a_file_that_is_not_there_is_refused_at_once(looping: LoopMachine) -> None:
    async def admit(wanted: AdmitLoop) -> None:
        if not isinstance(wanted.request.plan, str) and wanted.request.plan.path == "nowhere.md":
            raise refusal("plan.path: there is no nowhere.md")

    looping.play_admit = admit  # type: ignore[method-assign]
    looping.script = [HELD]
    loop = await looping.start()
    await looping.at_hold()
    assert await refused(loop, "revise", {"plan": {"path": "nowhere.md"}}) == (
        "InvalidRequest",
        "plan.path: there is no nowhere.md",
    )
    now = await state(loop)
    assert (now.plan_versions, now.plan and now.plan.text) == (1, "make it work")


async def test_a_plan_revised_while_the_old_one_is_looked_at_keeps_its_own_hash(looping: LoopMachine) -> None:
    async def survey(wanted: SurveyInput) -> Survey:
        assert wanted.plan is not None
        if wanted.number == 1:
            await looping.held()
        return Survey(head="h", files=str(wanted.number), plan_hash=f"hash of {wanted.plan.path}")

    looping.play_survey = survey  # type: ignore[method-assign]
    looping.verdicts = [exits(1)]
    loop = await looping.start(plan={"path": "a.md"}, mode="checkpoint")
    await looping.at_hold()
    await tell(loop, "revise", plan={"path": "b.md"})
    looping.release()
    await reaches(loop, DECIDED)
    await tell(loop, "resume")
    await ended(loop)
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.number, now.plan.path, now.plan.hash, now.plan_versions) == (2, "b.md", "hash of b.md", 2)


async def test_there_is_only_so_much_room(looping: LoopMachine) -> None:
    looping.script = [HELD]
    loop = await looping.start()
    await looping.at_hold()
    for _ in range(4):
        await tell(loop, "revise", plan="x" * 60_000)
    told = ("Refused", "its versions are too long together: put the plan in a file")
    assert await refused(loop, "revise", {"plan": "x" * 60_000}) == told
    assert (await tell(loop, "revise", plan="short")).plan_version == 6


async def test_checkboxes_in_the_plan_need_a_file(looping: LoopMachine) -> None:
    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        await looping.held()
        return result()

    looping.play_iteration = iterate  # type: ignore[method-assign]
    loop = await looping.start(plan={"path": "PLAN.md"}, done={"items": {"kind": "checkboxes"}})
    await looping.at_hold()
    told = ("Refused", "done.items has no path, so the plan must be a file")
    assert await refused(loop, "revise", {"plan": "a text"}) == told
