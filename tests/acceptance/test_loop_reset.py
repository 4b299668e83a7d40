"""A loop is reset by Temporal while a run of it is at work: the new execution knows nothing of that run."""

from functools import partial

from steersman.client import Steersman
from tests.acceptance.loops import ended, process_loop, project, reaches
from tests.acceptance.site import Site, gone
from tests.acceptance.test_reset import reset
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
