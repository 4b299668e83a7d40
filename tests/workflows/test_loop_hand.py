"""Runs that end otherwise: they fail, lose their session, or are stopped by somebody from outside."""

import pytest

from steersman.contracts.run import RunState, Usage
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, FakeRun
from tests.workflows.loop_client import checkpoints, ended, kinds, reaches, state, tell, wait
from tests.workflows.loop_results import fails, never_began, result

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("how", ["cancelled", "terminated"])
async def test_a_run_stopped_from_outside_pauses_the_loop(loop_fake: FakeLoopHost, how: str) -> None:
    loop_fake.script = [HELD]
    loop_fake.known = RunState(session_id="s-9", cost_usd=0.25, turns=3, usage=Usage(output_tokens=7))
    loop = await loop_fake.start(limits={"failures": 1})
    await loop_fake.at_hold()
    run = loop_fake.client.get_workflow_handle(f"{loop.id}-1")
    await (run.cancel() if how == "cancelled" else run.terminate("enough"))
    now = await reaches(loop, "paused")
    assert now.waits_for is not None
    assert now.waits_for.startswith("iteration 1: its run was ")
    assert (now.failures, now.last_error, now.session_id, now.totals.cost_usd) == (0, None, "s-9", 0.25)
    assert now.totals.usage.output_tokens == 7
    made = now.checkpoints[-1]
    assert (made.kind, made.run, made.session_id, made.cost_usd) == ("pause", f"{loop.id}-1", "s-9", 0.25)
    assert made.took_s > 0
    await tell(loop, "resume")
    outcome = await ended(loop)
    assert (outcome.iterations, outcome.cost_usd, loop_fake.asked[1]["session"]) == (1, 0.26, "s-9")


async def test_a_run_interrupted_by_its_own_id_pauses_the_loop(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop_fake.client.get_workflow_handle(f"{loop.id}-1").signal("interrupt", {"end": True})
    now = await reaches(loop, "paused")
    assert (now.waits_for, now.failures, now.last_error) == ("iteration 1 was interrupted", 0, None)


async def test_a_verification_stopped_from_outside_pauses_the_loop(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [HELD, HELD]
    loop = await loop_fake.start()
    for number in (1, 2):
        await loop_fake.at_hold()
        await loop_fake.client.get_workflow_handle(f"{loop.id}-1-verify").cancel()
        now = await reaches(loop, "paused")
        assert now.waits_for == "the verification of iteration 1 was stopped"
        assert (now.verification, len(loop_fake.verified)) == (None, number)
        await tell(loop, "resume")
    assert (await ended(loop)).iterations == 1


async def test_a_run_of_that_id_that_is_at_work_already_is_left_alone(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop_id = f"loop-{loop_fake.host}"
    other = await loop_fake.client.start_workflow(
        FakeRun.run, {"mine": True}, id=f"{loop_id}-1", task_queue=loop_fake.queue
    )
    await loop_fake.at_hold()
    loop = await loop_fake.start(loop=loop_id)
    now = await reaches(loop, "paused")
    assert now.waits_for is not None
    assert now.waits_for.startswith(f"iteration 1: a workflow {loop_id}-1 is open, one of")
    assert (now.totals.cost_usd, now.failures) == (0, 0)
    await tell(loop, "resume")
    outcome = await ended(loop)
    assert (outcome.iterations, outcome.last_checkpoint and outcome.last_checkpoint.run) == (1, f"{loop_id}-2")
    assert (await other.describe()).close_time is None
    await other.terminate()


async def test_a_verification_whose_id_is_taken_pauses_the_loop_with_that_id(loop_fake: FakeLoopHost) -> None:
    loop_id = f"loop-{loop_fake.host}"
    loop_fake.verdicts = [HELD]
    other = await loop_fake.client.start_workflow(
        FakeRun.run, {"mine": True}, id=f"{loop_id}-1-verify", task_queue=loop_fake.queue
    )
    await loop_fake.at_hold()
    loop = await loop_fake.start(loop=loop_id)
    now = await reaches(loop, "paused")
    assert now.waits_for is not None
    assert now.waits_for.startswith(f"the verification of iteration 1: a workflow {loop_id}-1-verify is open")
    await other.terminate()
    await tell(loop, "resume")
    assert (await ended(loop)).iterations == 1


async def test_a_failed_run_is_in_the_state_and_the_next_goes_on(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [fails("AgentCrashed", "claude ended with exit code 3", session_id="s-2")]
    loop = await loop_fake.start()
    now = await reaches(loop, lambda now: now.wakes_at)
    assert (now.failures, now.last_error, now.cost_usd) == (1, "claude ended with exit code 3", 0.01)
    assert (now.waits_for, now.status) == ("after a failure: claude ended with exit code 3", "running")
    assert kinds(now) == ["baseline", "failure"]
    await tell(loop, "skip_wait")
    outcome = await ended(loop)
    assert (outcome.iterations, outcome.error) == (2, None)
    now = await state(loop)
    assert (now.failures, now.last_error) == (0, None)
    assert loop_fake.asked[1]["session"] == "s-2"


async def test_a_session_in_which_runs_keep_failing_is_left(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [result(session_id="s-1"), fails(), fails(session_id="s-1"), result(session_id="s-2")]
    loop_fake.verdicts = [{**fails("AgentCrashed"), "result": None}]
    loop = await loop_fake.start()
    for iteration in (2, 3):
        await reaches(loop, wait(iteration))
        await tell(loop, "skip_wait")
    await ended(loop)
    assert [each.get("session") for each in loop_fake.asked] == [None, "s-1", "s-1", None]
    assert "make it work" in loop_fake.asked[3]["prompt"]


async def test_a_given_session_is_briefed_and_gone_on_with(loop_fake: FakeLoopHost) -> None:
    run = {"agent": "claude", "workspace": {"path": "/w"}, "session": "mine", "fork_session": True}
    loop_fake.script = [never_began(), result(session_id="s-2")]
    loop_fake.verdicts = [{**fails("AgentCrashed"), "result": None}]
    loop = await loop_fake.start(run=run)
    await reaches(loop, lambda now: now.wakes_at)
    await tell(loop, "skip_wait")
    await ended(loop)
    assert [(each.get("session"), each.get("fork_session")) for each in loop_fake.asked] == [
        ("mine", True),
        ("mine", True),
        ("s-2", None),
    ]
    assert ["make it work" in each["prompt"] for each in loop_fake.asked] == [True, True, False]


async def test_an_agent_that_counts_no_turns_is_told_the_plan_once(loop_fake: FakeLoopHost) -> None:
    run = {"agent": "gemini", "workspace": {"path": "/w"}}
    loop_fake.script = [result(turns=0), result(turns=0)]
    loop_fake.verdicts = [{**fails("AgentCrashed"), "result": None}]
    await ended(await loop_fake.start(run=run))
    assert [each.get("session") for each in loop_fake.asked] == [None, "s-1"]
    assert ["make it work" in each["prompt"] for each in loop_fake.asked] == [True, False]


async def test_with_isolated_homes_every_run_begins_a_session(loop_fake: FakeLoopHost) -> None:
    """The second one of an iteration, too, which is told everything again."""
    run = {"agent": "claude", "workspace": {"path": "/w"}, "home": "isolated"}
    loop_fake.script = [result(session_id="s-1"), HELD, result(session_id="s-3")]
    loop_fake.verdicts = [{**fails("AgentCrashed"), "result": None}]
    loop = await loop_fake.start(run=run)
    await loop_fake.at_hold()
    await tell(loop, "feedback", text="mind the gap")
    await tell(loop, "pause", now=True)
    await tell(loop, "resume")
    await ended(loop)
    assert [each.get("session") for each in loop_fake.asked] == [None, None, None]
    assert all(each["home"] == "isolated" for each in loop_fake.asked)
    assert all("make it work" in each["prompt"] for each in loop_fake.asked)
    assert "mind the gap" in loop_fake.asked[2]["prompt"]


async def test_a_fresh_session_for_each_iteration(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [result(session_id="s-1"), HELD]
    loop_fake.verdicts = [{**fails("AgentCrashed"), "result": None}]
    loop = await loop_fake.start(session="fresh")
    await loop_fake.at_hold()
    await tell(loop, "pause", now=True)
    await tell(loop, "resume")
    await ended(loop)
    assert [each.get("session") for each in loop_fake.asked] == [None, None, "s-1"]
    assert ["make it work" in each["prompt"] for each in loop_fake.asked] == [True, True, False]
    assert [each.session_id for each in await checkpoints(loop)] == [None, "s-1", "s-1", "s-1"]
