"""A loop is reset by Temporal while a run of it is at work: the new execution knows nothing of that run. Or the run is
reset: its new execution is not the one that the loop has started.
"""

from functools import partial

import pytest

from steersman import RunCancelled
from steersman.client import Steersman
from tests.acceptance.loops import LONG_TOOL, claude_loop, ended, in_tool, process_loop, project, reaches
from tests.acceptance.site import Site, gone
from tests.acceptance.test_reset import reset
from tests.scripted_model import ScriptedModel, say, tool
from tests.support.processes import marked, until

WORK = "n=$(wc -l < log); echo begin >> log; [ $n != 2 ] || exec sleep 600; echo end >> log"


async def test_no_other_run_of_it_works_beside_that_one(shared: Site, steersman: Steersman, mark: str) -> None:
    workspace = project(shared)
    (workspace / "log").touch()
    asked = process_loop(shared, WORK, workspace, mark, limits={"iterations": 3, "no_progress": 0})
    loop = await steersman.loops.start(asked)
    await reaches(steersman, loop, lambda state: state.iteration == 2)
    await until(lambda: (workspace / "log").read_text().split() == ["begin", "end", "begin"])
    await until(lambda: any("sleep 600" in line for line in marked(mark).values()))
    await reset(shared, loop)
    await until(partial(waits_for, steersman, f"{loop}-1", f"{loop}-2"))
    assert (workspace / "log").read_text().split() == ["begin", "end", "begin"]
    assert len(marked(mark)) == 1
    await steersman.stop(f"{loop}-2")
    result = await ended(steersman, loop)
    assert (result.status, result.iterations) == ("exited", 3)
    assert (workspace / "log").read_text().split()[3:] == ["begin", "end"] * 3
    await gone(mark)


async def waits_for(steersman: Steersman, run: str, other: str) -> bool:
    """Whether the run waits for the other's workspace."""
    return [each.id for each in (await steersman.state(run)).workspace_held_by] == [other]


@pytest.fixture
async def of_a_reset_run(shared: Site, steersman: Steersman, mark: str) -> str:
    """A loop whose run was reset while its program worked."""
    loop = await steersman.loops.start(process_loop(shared, "exec sleep 600", project(shared), mark))
    await until(lambda: any("sleep 600" in line for line in marked(mark).values()))
    await reset(shared, f"{loop}-1")
    return loop


async def test_a_cancel_reaches_a_run_of_it_that_was_reset(
    steersman: Steersman, of_a_reset_run: str, mark: str
) -> None:
    await steersman.temporal.get_workflow_handle(of_a_reset_run).cancel(reason="enough")
    with pytest.raises(RunCancelled):
        await ended(steersman, of_a_reset_run)
    with pytest.raises(RunCancelled):
        await steersman.result(f"{of_a_reset_run}-1")
    report = (await steersman.state(f"{of_a_reset_run}-1")).stop_report
    assert report
    assert (report.outcome, report.reason) == ("stopped", "enough")
    await gone(mark)


async def test_an_exit_reaches_a_run_of_it_that_was_reset(steersman: Steersman, of_a_reset_run: str, mark: str) -> None:
    await steersman.loops.exit(of_a_reset_run)
    assert (await ended(steersman, of_a_reset_run)).status == "exited"
    report = (await steersman.state(f"{of_a_reset_run}-1")).stop_report
    assert report
    assert (report.outcome, report.reason) == ("stopped", None)
    await gone(mark)


async def test_a_pause_at_once_reaches_a_run_of_it_that_was_reset(
    steersman: Steersman, of_a_reset_run: str, mark: str
) -> None:
    await steersman.loops.pause(of_a_reset_run, now=True)
    await reaches(steersman, of_a_reset_run, "paused")
    await gone(mark)
    await steersman.loops.exit(of_a_reset_run)


async def test_an_agent_that_ends_its_turn_does_so_after_a_reset_of_its_run(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("works", tool("Bash", command=LONG_TOOL), say("a"))
    loop = await steersman.loops.start(claude_loop(shared, script, project(shared), mark))
    await in_tool(mark)
    await reset(shared, f"{loop}-1")
    await steersman.loops.pause(loop, now=True)
    state = await reaches(steersman, loop, "paused")
    assert state.session_id, "which it goes on with"
    await gone(mark)
    await steersman.loops.exit(loop)


async def test_a_run_that_is_reset_while_it_stops_is_cancelled_again(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    stubborn = "trap '' TERM; touch at-work; while :; do sleep 0.1; done"
    workspace = project(shared)
    request = process_loop(shared, stubborn, workspace, mark)
    request["run"]["stop"] = {"kill_after_s": 6}
    loop = await steersman.loops.start(request)
    await until((workspace / "at-work").exists)
    await steersman.temporal.get_workflow_handle(loop).cancel()
    await until(partial(is_stopping, steersman, f"{loop}-1"))
    (workspace / "at-work").unlink()
    await reset(shared, f"{loop}-1")
    with pytest.raises(RunCancelled):
        await ended(steersman, loop)
    await gone(mark)


async def is_stopping(steersman: Steersman, run: str) -> bool:
    return (await steersman.state(run)).phase == "stopping"
