"""When a loop stops for a person's decision: its mode, its phases, items that no agent can work on."""

from typing import Any

import pytest
from temporalio.service import RPCError

from steersman.contracts.loop_activities import Survey, SurveyInput
from steersman.contracts.loop_state import Phase
from tests.workflows.fake_loop_host import HELD, FakeLoopHost
from tests.workflows.loop_client import decision, ended, reaches, state, tell
from tests.workflows.loop_results import exits, fails, items

ITEMS = {"kind": "json", "path": "items.json"}
UNTIL_NEVER = {"no_progress": 0, "iterations": 50}

pytestmark = pytest.mark.integration


async def test_checkpoint_mode_waits_after_every_iteration(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1), exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    for number in (1, 2):
        now = await reaches(loop, decision(number))
        assert now.waits_for == f"iteration {number} is finished"
        assert len(loop_fake.asked) == number
        await tell(loop, "resume")
    assert (await ended(loop)).iterations == 3


async def test_a_failed_iteration_is_decided_on_too(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [fails("AgentCrashed", "it fell over")]
    loop = await loop_fake.start(mode="checkpoint")
    now = await reaches(loop, "waiting_for_decision")
    assert now.waits_for == "iteration 1 failed: it fell over"
    assert (now.failures, now.checkpoints[-1].kind, now.checkpoints[-1].error) == (1, "failure", "it fell over")
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 2


async def test_what_a_person_did_meanwhile_is_in_the_next_prompt(loop_fake: FakeLoopHost) -> None:
    plan, found = ["a"], [items(closed=0, left=2)]

    async def survey(wanted: SurveyInput) -> Survey:
        commit = None if wanted.number is None else f"c{wanted.number}"
        return Survey(commit=commit, head="h", files=str(len(loop_fake.asked)), items=found[0], plan_hash=plan[0])

    loop_fake.play_survey = survey  # type: ignore[method-assign]
    loop = await loop_fake.start(mode="checkpoint", plan={"path": "PLAN.md"}, done={"items": ITEMS}, limits=UNTIL_NEVER)
    await reaches(loop, decision(1))
    found[0] = items(closed=2, left=1)
    await tell(loop, "resume")
    await reaches(loop, decision(2))
    assert "- #1: step 1" in loop_fake.asked[1]["prompt"]
    assert "- #2: step 2" not in loop_fake.asked[1]["prompt"]
    assert "revised" not in loop_fake.asked[1]["prompt"]
    plan[0] = "b"
    await tell(loop, "resume")
    now = await reaches(loop, decision(3))
    assert "The plan was revised: read `PLAN.md` again." in loop_fake.asked[2]["prompt"]
    assert now.plan_versions == 2
    await tell(loop, "resume")
    await reaches(loop, decision(4))
    assert "revised" not in loop_fake.asked[3]["prompt"]


@pytest.mark.exhaustive
async def test_batch_mode_waits_after_every_batch(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)] * 5
    loop = await loop_fake.start(mode="batch", batch_size=2)
    now = await reaches(loop, "waiting_for_decision")
    assert (now.iteration, now.batch_size) == (2, 2)
    await tell(loop, "resume")
    now = await reaches(loop, decision(4))
    assert now.iteration == 4
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 6


@pytest.mark.exhaustive
async def test_the_mode_given_on_resume_takes_effect(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)] * 4
    loop = await loop_fake.start(mode="autonomous", batch_size=2)
    await tell(loop, "pause", now=True)
    await tell(loop, "resume", mode="checkpoint")
    now = await reaches(loop, "waiting_for_decision")
    assert (now.mode, now.totals.iterations) == ("checkpoint", 1)
    await tell(loop, "resume", mode="batch")
    now = await reaches(loop, decision(3))
    assert (now.mode, now.iteration) == ("batch", 3)
    await tell(loop, "resume", mode="autonomous")
    assert (await ended(loop)).iterations == 5


async def test_the_last_allowed_iteration_needs_no_decision(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(mode="checkpoint", limits={"iterations": 1})
    assert (await ended(loop)).stop_reason == "iterations"


async def test_phases_are_shown_and_the_current_one_is_in_the_prompt(loop_fake: FakeLoopHost) -> None:
    done = {"01-base": "open", "02-api": "open"}

    async def survey(wanted: SurveyInput) -> Survey:
        assert wanted.plan is not None
        phases = [Phase(name=name, state=state) for name, state in done.items()]  # type: ignore[arg-type]
        left = sum(state != "closed" for state in done.values())
        return Survey(head="h", files=f"f{left}", phases=tuple(phases), items=items(2 - left, left), plan_hash="p")

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        done[list(done)[number - 1]] = "closed"
        return await FakeLoopHost.play_iteration(loop_fake, number, request)

    loop_fake.play_survey, loop_fake.play_iteration = survey, iterate  # type: ignore[method-assign]
    loop = await loop_fake.start(plan={"path": "plan"}, done={"items": {"kind": "checkboxes"}}, mode="checkpoint")
    now = await reaches(loop, "waiting_for_decision")
    assert now.phase == "02-api"
    assert [(each.name, each.state) for each in now.phases] == [("01-base", "closed"), ("02-api", "open")]
    assert [each.phase for each in now.checkpoints] == ["01-base", "02-api"]
    await tell(loop, "resume")
    assert (await ended(loop)).stop_reason == "done"
    assert "The plan is in the directory `plan`" in loop_fake.asked[0]["prompt"]
    assert "Now it is the turn of phase `01-base`" in loop_fake.asked[0]["prompt"]


async def test_items_that_only_a_person_can_move_on_are_decided_on(loop_fake: FakeLoopHost) -> None:
    loop_fake.items = items(3, 0, blocked=2, needs_review=1)
    loop = await loop_fake.start(done={"items": ITEMS}, limits=UNTIL_NEVER)
    now = await reaches(loop, "waiting_for_decision")
    assert now.waits_for == "nothing that is left can be worked on: 2 blocked, 1 to be reviewed"
    loop_fake.items = items(6)
    await tell(loop, "resume", text="I reviewed it")
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)


async def test_one_that_can_be_worked_on_is_enough_to_go_on(loop_fake: FakeLoopHost) -> None:
    loop_fake.items = items(1, 1, blocked=2)
    loop = await loop_fake.start(done={"items": ITEMS}, limits={"iterations": 2})
    assert (await ended(loop)).stop_reason == "iterations"


async def test_exit_while_waiting_for_a_decision(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, "waiting_for_decision")
    assert (await tell(loop, "exit", reason="good enough")).note == "it exits"
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason, outcome.error) == ("exited", "exit", None)
    assert outcome.last_checkpoint is not None
    assert outcome.last_checkpoint.note == "exit: good enough"
    assert (await state(loop)).last_error is None


async def test_exit_ends_the_turn_and_keeps_what_there_is(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start(limits={"failures": 1})
    await loop_fake.at_hold()
    await tell(loop, "exit")
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason, outcome.iterations) == ("exited", "exit", 1)
    assert (outcome.session_id, outcome.cost_usd, outcome.error) == ("s-1", 0.01, None)
    assert outcome.last_checkpoint is not None
    assert (outcome.last_checkpoint.kind, outcome.last_checkpoint.number) == ("pause", 1)


@pytest.mark.parametrize("status", ["paused", "verifying"])
async def test_exit_without_the_agent_at_work(loop_fake: FakeLoopHost, status: str) -> None:
    loop_fake.verdicts = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    if status == "paused":
        await tell(loop, "pause", now=True)
    assert (await state(loop)).status == status
    await tell(loop, "exit")
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason, outcome.verification) == ("exited", "exit", None)
    with pytest.raises(RPCError, match="already completed"):
        await tell(loop, "resume")
