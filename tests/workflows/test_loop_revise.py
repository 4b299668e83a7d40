"""A plan that changes: revised by a person, or edited in the workspace."""

from typing import Any

import pytest

from steersman.contracts.loop_activities import AdmitLoop, Survey, SurveyInput
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, refusal
from tests.workflows.loop_client import checkpoints, ended, failed, never_retried, reaches, refused, state, tell
from tests.workflows.loop_results import exits, result

pytestmark = pytest.mark.integration

DECIDED = "waiting_for_decision"


async def test_a_new_text_is_the_next_iterations_plan_and_the_old_one_is_kept(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, DECIDED)
    receipt = await tell(loop, "revise", plan="make it {iteration} work better")
    assert (receipt.plan_version, receipt.note, receipt.status) == (2, "for the next iteration", DECIDED)
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.number, now.plan.text, now.plan_versions) == (2, "make it {iteration} work better", 2)
    await tell(loop, "resume")
    await ended(loop)
    assert "The plan was revised. It is now:\n\nmake it {iteration} work better" in loop_fake.asked[1]["prompt"]
    first, second = [each for each in await checkpoints(loop) if each.kind == "iteration"]
    assert (first.plan_version, second.plan_version) == (1, 2)
    assert first.plan_hash != second.plan_hash
    then = await loop.query("fork_point", first.number)
    assert (then["plan"]["number"], then["plan"]["text"]) == (1, "make it work")


@pytest.mark.exhaustive
async def test_a_plan_revised_in_the_last_iteration_gets_another_one(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "revise", plan="make it better")
    loop_fake.release()
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)
    assert "make it better" in loop_fake.asked[1]["prompt"]


async def test_a_prompt_alone(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1, "it is red"), exits(1, "still red")]
    loop = await loop_fake.start(mode="checkpoint", prompt="Iteration {iteration}: {plan}")
    await reaches(loop, DECIDED)
    assert loop_fake.asked[0]["prompt"] == "Iteration 1: make it work"
    await tell(loop, "revise", prompt="Look:\n{verification}")
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.number, now.plan.text, now.plan.prompt) == (2, "make it work", "Look:\n{verification}")
    await tell(loop, "resume", mode="autonomous")
    await ended(loop)
    prompt = loop_fake.asked[1]["prompt"]
    assert prompt.startswith("Look:\nThe verification `true` failed with exit code 1.")
    assert prompt.count("it is red") == 1
    assert "make it work" not in prompt


async def test_a_file_that_somebody_edits_is_a_new_version_and_ticking_is_none(loop_fake: FakeLoopHost) -> None:
    hashes = iter(["a", "a", "b", "b", "a"])

    async def survey(wanted: SurveyInput) -> Survey:
        assert wanted.plan is not None
        assert wanted.plan.path == "PLAN.md"
        return Survey(head="h", files=str(wanted.number), plan_hash=next(hashes))

    loop_fake.play_survey = survey  # type: ignore[method-assign]
    loop_fake.verdicts = [exits(1)] * 3
    await_done = await loop_fake.start(plan={"path": "PLAN.md"}, prompt="{plan} Go.")
    outcome = await ended(await_done)
    assert outcome.iterations == 4
    made = await checkpoints(await_done)
    assert [(each.plan_version, each.plan_hash) for each in made] == [(1, "a"), (1, "a"), (2, "b"), (2, "b"), (3, "a")]
    assert all(each["prompt"].startswith("The plan is in the file `PLAN.md`") for each in loop_fake.asked)
    assert (await state(await_done)).plan_versions == 3


@pytest.mark.exhaustive
async def test_another_file(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(mode="checkpoint", plan={"path": "PLAN.md"})
    await reaches(loop, DECIDED)
    assert (await tell(loop, "revise", plan={"path": "plan", "phase": "02"})).plan_version == 2
    await tell(loop, "resume")
    await ended(loop)
    assert "The plan was revised: read `plan` again." in loop_fake.asked[1]["prompt"]
    last = loop_fake.surveys[-1].plan
    assert last is not None
    assert (last.path, last.phase) == ("plan", "02")
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.hash, now.plan_versions) == ("p", 2)


async def test_a_file_that_is_not_there_is_refused_at_once(loop_fake: FakeLoopHost) -> None:
    async def admit(wanted: AdmitLoop) -> None:
        if not isinstance(wanted.request.plan, str) and wanted.request.plan.path == "nowhere.md":
            raise refusal("plan.path: there is no nowhere.md")

    loop_fake.play_admit = admit  # type: ignore[method-assign]
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    assert await refused(loop, "revise", {"plan": {"path": "nowhere.md"}}) == (
        "InvalidRequest",
        "plan.path: there is no nowhere.md",
    )
    now = await state(loop)
    assert (now.plan_versions, now.plan and now.plan.text) == (1, "make it work")


async def test_a_plan_revised_while_the_old_one_is_looked_at_keeps_its_own_hash(loop_fake: FakeLoopHost) -> None:
    async def survey(wanted: SurveyInput) -> Survey:
        assert wanted.plan is not None
        if wanted.number == 1:
            await loop_fake.held()
        return Survey(head="h", files=str(wanted.number), plan_hash=f"hash of {wanted.plan.path}")

    loop_fake.play_survey = survey  # type: ignore[method-assign]
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(plan={"path": "a.md"}, mode="checkpoint")
    await loop_fake.at_hold()
    await tell(loop, "revise", plan={"path": "b.md"})
    loop_fake.release()
    await reaches(loop, DECIDED)
    await tell(loop, "resume")
    await ended(loop)
    now = await state(loop)
    assert now.plan is not None
    assert (now.plan.number, now.plan.path, now.plan.hash, now.plan_versions) == (2, "b.md", "hash of b.md", 2)


async def test_there_is_only_so_much_room(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    for _ in range(4):
        await tell(loop, "revise", plan="x" * 60_000)
    told = ("Refused", "its versions are too long together: put the plan in a file")
    assert await refused(loop, "revise", {"plan": "x" * 60_000}) == told
    assert (await tell(loop, "revise", plan="short")).plan_version == 6


async def test_a_template_that_is_too_long_once_it_is_filled_in(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start(plan="x" * 60_000)
    await loop_fake.at_hold()
    kind, message = await refused(loop, "revise", {"prompt": "{plan}" * 9_000})
    assert (kind, message[:27]) == ("Refused", "prompt: filled in, it has 5")
    assert (await tell(loop, "revise", prompt="{plan}" * 15)).plan_version == 2


async def test_a_loop_ends_where_its_prompt_is_too_long_once_it_is_filled_in(loop_fake: FakeLoopHost) -> None:
    loop = await loop_fake.start(plan="x" * 60_000, prompt="{plan}" * 40)
    kind, message, _ = await failed(loop)
    assert kind == "InvalidRequest"
    assert message.startswith("prompt: filled in, it has 2,")
    assert message.endswith("have fewer placeholders, or put the plan in a file")
    await never_retried(loop)


async def test_checkboxes_in_the_plan_need_a_file(loop_fake: FakeLoopHost) -> None:
    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        await loop_fake.held()
        return result()

    loop_fake.play_iteration = iterate  # type: ignore[method-assign]
    loop = await loop_fake.start(plan={"path": "PLAN.md"}, done={"items": {"kind": "checkboxes"}})
    await loop_fake.at_hold()
    told = ("Refused", "done.items has no path, so the plan must be a file")
    assert await refused(loop, "revise", {"plan": "a text"}) == told
