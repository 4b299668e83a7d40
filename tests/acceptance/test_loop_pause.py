"""A person takes a loop's agent off its work and puts it back: the session is kept, nothing counts as an error."""

import pytest

from steersman.client import Steersman
from steersman.errors import RunNotRunning
from tests.acceptance.loops import LONG_TOOL, claude_loop, ended, in_tool, project, reaches, refs, tick, told
from tests.acceptance.site import Site, following, gone, phase
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import marked, until


@pytest.mark.parametrize("place", ["stream", "tool"])
async def test_a_pause_now_keeps_the_session_and_leaves_no_process(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, place: str
) -> None:
    workspace = project(shared)
    work = hold("half an answer") if place == "stream" else tool("Bash", command=LONG_TOOL)
    script = model.script("paused", work, tool("Bash", command=tick("one", "two")), say("done"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mark))
    await (script.wait_held() if place == "stream" else in_tool(mark))
    await phase(steersman, f"{loop}-1", "running")
    if place == "stream":  # the agent has read its prompt as soon as it answers
        async with following(steersman, f"{loop}-1") as attached:
            await attached.until(lambda event: event.type == "message" and "half" in event.text)

    receipt = await steersman.loops.pause(loop, now=True, reason="lunch")

    assert (receipt.status, receipt.iteration) == ("paused", 1)
    assert not marked(mark)
    run = await steersman.result(f"{loop}-1")
    assert (run.status, run.stop_reason) == ("succeeded", "interrupted")
    paused = await steersman.loops.state(loop)
    assert (paused.status, paused.run, paused.wakes_at, paused.waits_for) == ("paused", None, None, "lunch")
    assert (paused.failures, paused.last_error) == (0, None)
    assert paused.session_id == run.session_id is not None
    assert [each.kind for each in paused.checkpoints] == ["baseline", "pause"]
    assert set(refs(workspace, loop)) == {0, 1}

    first = await steersman.loops.feedback(loop, "use tabs")
    taken_back = await steersman.loops.feedback(loop, "use spaces")
    await steersman.loops.remove_feedback(loop, taken_back.id or "")
    assert [each.text for each in (await steersman.loops.state(loop)).feedback] == ["use tabs"]
    await steersman.loops.resume(loop, "and be quick")
    result = await ended(steersman, loop)

    assert (result.status, result.iterations, result.session_id) == ("completed", 1, run.session_id)
    said = told(script.requests[1])
    assert "You were interrupted in the middle of iteration 1" in said
    assert "- use tabs\n- and be quick" in said
    assert "use spaces" not in said
    assert script.requests[1].saw("Work on the plan below")
    state = await steersman.loops.state(loop)
    assert (state.failures, state.last_error, state.iteration) == (0, None, 1)
    assert [each.iteration for each in state.feedback_consumed] == [1, 1]
    kept = await steersman.loops.checkpoints(loop)
    assert [(each.kind, each.error) for each in kept] == [("baseline", None), ("pause", None), ("iteration", None)]
    assert first.id in kept[-1].feedback
    with pytest.raises(RunNotRunning):
        await steersman.loops.resume(loop)


@pytest.mark.exhaustive
async def test_a_pause_waits_for_the_iteration_and_can_be_withdrawn(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    workspace = project(shared)
    script = model.script("patient", hold("one"), hold("two"), tool("Bash", command=tick("one", "two")), say("three"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mark))
    await script.wait_held()

    receipt = await steersman.loops.pause(loop)
    assert (receipt.status, receipt.note) == ("running", "it pauses when the iteration has ended")
    assert (await steersman.loops.resume(loop)).note == "the pause is withdrawn"
    await script.release()
    await script.wait_requests(2)
    await script.wait_held()

    # Withdrawn it was; this one is not.
    await steersman.loops.pause(loop)
    await script.release()
    paused = await reaches(steersman, loop, lambda now: now.status == "paused" and now.checkpoints_total == 4)
    assert not marked(mark)
    assert (paused.iteration, len(script.requests)) == (2, 2)
    assert [each.kind for each in paused.checkpoints] == ["baseline", "iteration", "iteration", "pause"]

    await steersman.loops.resume(loop, mode="checkpoint")
    result = await ended(steersman, loop)
    assert (result.status, result.iterations) == ("completed", 3)
    assert (await steersman.loops.state(loop)).mode == "checkpoint"
    assert "Go on with the plan: iteration 3" in told(script.requests[2])


@pytest.mark.exhaustive
async def test_a_person_decides_after_every_iteration(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = project(shared)
    script = model.script("decisions", say("thinking"), tool("Bash", command=tick("one", "two")), say("done"))
    request = claude_loop(shared, script, workspace, mode="checkpoint")
    loop = await steersman.loops.start(request)

    waiting = await reaches(steersman, loop, "waiting_for_decision")
    assert (waiting.iteration, waiting.waits_for) == (1, "iteration 1 is finished")
    revised = await steersman.loops.revise(loop, prompt="Turn {iteration}: {open_items} Hurry. {feedback}")
    assert revised.plan_version == 2
    await steersman.loops.feedback(loop, "never mind the tabs")
    # It was told, but nothing was decided.
    assert (await steersman.loops.state(loop)).status == "waiting_for_decision"
    await steersman.loops.resume(loop, mode="autonomous")

    assert (await ended(steersman, loop)).iterations == 2
    said = told(script.requests[1])
    assert "Turn 2: Open:" in said
    assert "Hurry. Feedback, which goes before the plan:\n- never mind the tabs" in said
    assert "Go on with the plan" not in said


@pytest.mark.exhaustive
async def test_a_sleep_between_iterations_ends_when_somebody_says_so(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    script = model.script("sleeper", say("one"), say("two"), tool("Bash", command=tick("one", "two")), say("three"))
    request = claude_loop(shared, script, workspace, pause_between_s=86400)
    loop = await steersman.loops.start(request)

    asleep = await reaches(steersman, loop, lambda now: now.wakes_at)
    assert (asleep.status, asleep.iteration) == ("running", 1)
    await steersman.loops.skip_wait(loop)
    await reaches(steersman, loop, lambda now: now.iteration == 2 and now.wakes_at)
    await steersman.loops.feedback(loop, "wake up")

    assert (await ended(steersman, loop)).iterations == 3
    assert "- wake up" in told(script.requests[2])


@pytest.mark.exhaustive
async def test_a_pause_now_while_verifying_runs_the_verification_again(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    workspace = project(shared)
    script = model.script("verified", tool("Bash", command=tick("one", "two")), say("done"))
    verify = {"command": "echo x >> ../verifications; until test -e go; do sleep 0.1; done"}
    request = claude_loop(shared, script, workspace, mark, done={"verify": verify})
    loop = await steersman.loops.start(request)
    await reaches(steersman, loop, "verifying")
    count = workspace.parent / "verifications"
    await until(count.exists)

    await steersman.loops.pause(loop, now=True)
    paused = await reaches(steersman, loop, "paused")
    await gone(mark)
    assert (paused.failures, paused.verification) == (0, None)
    (workspace / "go").touch()
    await steersman.loops.resume(loop)

    result = await ended(steersman, loop)
    assert (result.stop_reason, result.iterations, len(script.requests)) == ("done", 1, 2)
    assert count.read_text() == "x\nx\n"
