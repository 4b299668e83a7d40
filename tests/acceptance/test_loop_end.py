"""However a loop is ended from outside, nothing of its run is left, and what it has done is kept."""

import asyncio

import pytest

from steersman.client import Steersman
from steersman.contracts.run import StopReport
from steersman.errors import RunCancelled, RunTerminated
from tests.acceptance.loops import LONG_TOOL, claude_loop, ended, in_tool, project, reaches, refs
from tests.acceptance.site import Site, gone
from tests.loops.loop_site import seen
from tests.scripted_model import Answer, ScriptedModel, say, tool
from tests.support.processes import marked

WAITS = "touch verifying; python3 -c 'import time; time.sleep(600)'"
AT_WORK = tool("Bash", command=f"echo half > half.txt; {LONG_TOOL}")


async def start(shared: Site, model: ScriptedModel, steersman: Steersman, mark: str, *steps: Answer) -> str:
    """A loop of which the agent, or else its verification, works for ever."""
    script = model.script(f"script-{mark[-4:]}-{len(steps)}", *steps)
    done = {"verify": {"command": WAITS}}
    loop = await steersman.loops.start(claude_loop(shared, script, project(shared), mark, done=done))
    await in_tool(mark)
    return loop


async def report(steersman: Steersman, run: str) -> StopReport:
    """The proof, as the run's own state has it."""
    found = (await steersman.state(run)).stop_report
    assert found is not None
    assert found.left == ()
    return found


async def test_exit_ends_the_turn_and_keeps_everything(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    loop = await start(shared, model, steersman, mark, AT_WORK)

    receipt = await steersman.loops.exit(loop, reason="enough for today")
    result = await ended(steersman, loop, 30)

    assert receipt.note == "it exits"
    assert not marked(mark)
    assert (result.status, result.stop_reason, result.iterations) == ("exited", "exit", 1)
    assert result.session_id is not None
    run = await steersman.result(f"{loop}-1")
    assert (run.stop_reason, run.session_id) == ("interrupted", result.session_id)
    kept = await steersman.loops.checkpoints(loop)
    assert [(each.kind, each.note, each.error) for each in kept] == [
        ("baseline", None, None),
        ("pause", "exit: enough for today", None),
    ]
    state = await steersman.loops.state(loop)
    assert (state.status, state.run, state.stop_reason, state.failures) == ("exited", None, "exit", 0)


@pytest.mark.parametrize("status", ["running", "verifying"])
async def test_cancel_stops_the_run_with_proof(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, status: str
) -> None:
    steps = (say("done"),) if status == "verifying" else (AT_WORK,)
    loop = await start(shared, model, steersman, mark, *steps)
    state = await reaches(steersman, loop, status)
    assert state.run == (f"{loop}-1-verify" if status == "verifying" else f"{loop}-1")

    await shared.temporal("workflow", "cancel", "--workflow-id", loop)
    with pytest.raises(RunCancelled) as raised:
        await ended(steersman, loop, 15)

    assert not marked(mark)
    proof = await report(steersman, state.run or "")
    assert (proof.outcome, proof.phase) == ("stopped", "running")
    assert proof.processes >= 1
    description = await steersman.temporal.get_workflow_handle(loop).describe()
    assert description.status is not None
    assert description.status.name == "CANCELED"
    after = await steersman.loops.state(loop)
    assert (after.status, after.run, after.failures) == ("cancelled", None, 0)
    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", *(["iteration"] if status == "verifying" else []), "end"]
    if status == "running":
        assert raised.value.stop_report == proof
        assert kept[-1].run == f"{loop}-1"
        assert kept[-1].session_id == (await steersman.state(f"{loop}-1")).session_id is not None


@pytest.mark.exhaustive
async def test_stop_says_what_it_found(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    loops = [await start(shared, model, steersman, f"{mark}-a", AT_WORK)]
    loops.append(await start(shared, model, steersman, f"{mark}-b", say("done")))
    await reaches(steersman, loops[1], "verifying")

    stops = await asyncio.gather(*map(steersman.loops.stop, loops))

    assert not marked(mark)
    assert [(each.run, each.outcome, each.left) for each in stops] == [(loop, "stopped", ()) for loop in loops]
    assert all(each.processes >= 1 for each in stops)
    assert (await steersman.loops.stop(loops[0])).outcome == "already_finished"


@pytest.mark.exhaustive
async def test_a_loop_that_waits_is_cancelled_at_once(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("waits", say("one"))
    workspace = project(shared)
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mark, mode="checkpoint"))
    await reaches(steersman, loop, "waiting_for_decision")

    with pytest.raises(RunCancelled):
        await asyncio.gather(steersman.loops.stop(loop), ended(steersman, loop, 30))

    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "iteration", "end"]
    assert set(refs(workspace, loop)) == {0, 1, 2}


@pytest.mark.exhaustive
@pytest.mark.parametrize("status", ["running", "verifying"])
async def test_a_terminated_loop_takes_its_run_along(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, status: str
) -> None:
    steps = (say("done"),) if status == "verifying" else (AT_WORK,)
    loop = await start(shared, model, steersman, mark, *steps)
    await reaches(steersman, loop, status)

    await shared.temporal("workflow", "terminate", "--workflow-id", loop, "--reason", "enough")

    with pytest.raises(RunTerminated, match="enough"):
        await ended(steersman, loop, 30)
    await gone(mark)
    run = f"{loop}-1-verify" if status == "verifying" else f"{loop}-1"
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(steersman.result(run), 30)
    assert (await report(steersman, run)).outcome == "stopped"


@pytest.mark.exhaustive
async def test_what_the_agent_had_done_is_in_the_last_checkpoint(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    workspace = project(shared)
    script = model.script("half", AT_WORK)
    request = claude_loop(shared, script, workspace, mark, done={"verify": {"command": "false"}})
    loop = await steersman.loops.start(request)
    await in_tool(mark)

    await steersman.loops.stop(loop, reason="no more")

    assert seen(workspace, refs(workspace, loop)[1])["half.txt"] == b"half\n"
