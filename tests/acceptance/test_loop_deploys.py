"""Loops, and what people do with them, go through deploys: a worker ends every second or two, whatever it is at."""

import sys
from functools import partial
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.loop_state import LoopState
from tests.acceptance.deploys import WAYS, Deploys
from tests.acceptance.loops import PLAN, ended, process_loop, reaches, refs, tick
from tests.acceptance.site import Site, answered
from tests.loops.loop_site import on_disk, repository, seen
from tests.support.processes import marked

FILES = 4000
"""So many that git needs a while for each step."""
REWRITE = f"""
import sys
for i in range({FILES}):
    with open(f"d{{i % 40}}/f{{i}}", "w") as file:
        file.write(f"{{sys.argv[1]}} {{i}}\\n" * 20)
"""
WORK = """
n=$(($(cat ../count 2>/dev/null || echo 0) + 1)); echo $n > ../count
sleep 1
{python} ../rewrite.py $n
test $n -lt 5 || {{ {finish}; }}
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", WAYS)
async def test_each_step_of_a_loop_goes_through_deploys(site: Site, mark: str, way: str) -> None:
    steersman = await site.steersman()
    workspace = repository(site.workspace(), {"PLAN.md": PLAN, **{f"d{i % 40}/f{i}": f"0 {i}\n" for i in range(FILES)}})
    (workspace.parent / "rewrite.py").write_text(REWRITE)
    script = WORK.format(python=sys.executable, finish=tick("one", "two"))
    deploys = Deploys(site.worker, way)
    async with deploys.going_on():
        loop = await steersman.loops.start(process_loop(site, script, workspace, mark, mode="checkpoint"))
        await used(steersman, loop, workspace)
        result = await ended(steersman, loop, 120)
        assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", 5)
        kept = {each.number: each for each in await answered(lambda: steersman.loops.checkpoints(loop))}
        assert [each.kind for each in kept.values()] == [
            *("iteration", "rescue", "iteration", "rescue", "iteration", "iteration")
        ]
        assert refs(workspace, loop) == {number: each.commit for number, each in kept.items()}
        assert seen(workspace, refs(workspace, loop)[max(kept)]) == on_disk(workspace)
        for number in range(1, 6):
            assert (await answered(partial(steersman.result, f"{loop}-{number}"))).attempts == 1
        changes = {"mode": "autonomous", "limits": {"iterations": 9}}
        fork = await answered(lambda: steersman.loops.fork(loop, max(kept), changes))
        assert (await ended(steersman, fork, 120)).status == "completed"
        assert (await answered(lambda: steersman.loops.clean(loop, all=True))).kept == 0
        assert refs(workspace, loop) == {}
    assert deploys.count > 5
    assert not list(workspace.glob(".git/**/*.lock"))
    assert not marked(mark)


async def used(steersman: Steersman, loop: str, workspace: Path) -> None:
    """Go on twice, go back, go on, start over, delete the two oldest checkpoints, and let it finish."""
    loops = steersman.loops
    await decision(steersman, loop, 1)
    await answered(lambda: loops.resume(loop))
    await decision(steersman, loop, 2)
    ruined = on_disk(workspace)

    back = await answered(lambda: loops.rollback(loop, 1))
    assert (back.status, back.checkpoint, back.rescue) == ("paused", 1, 3)
    assert (workspace / "d0/f0").read_text() == "1 0\n" * 20
    kept = refs(workspace, loop)
    assert (seen(workspace, kept[1]), seen(workspace, kept[3])) == (on_disk(workspace), ruined)
    assert "d0/f0" in (await answered(lambda: loops.diff(loop, 0, 1))).stat

    await answered(lambda: loops.resume(loop))
    assert (await decision(steersman, loop, 3)).iteration == 2
    over = await answered(lambda: loops.restart(loop))
    assert (over.checkpoint, over.rescue) == (0, 5)
    assert (await decision(steersman, loop, 4)).iteration == 1
    assert (await answered(lambda: loops.clean(loop, oldest=2))).deleted == (0, 1)
    await answered(lambda: loops.resume(loop))


async def decision(steersman: Steersman, loop: str, iterations: int) -> LoopState:
    """Wait until a person is to decide after so many iterations, each of which was made once and failed nothing."""

    def is_there(now: LoopState) -> bool:
        return now.status == "waiting_for_decision" and now.totals.iterations == iterations

    state = await reaches(steersman, loop, is_there, 120)
    assert (state.failures, state.last_error) == (0, None)
    assert state.workspace is not None
    assert int((Path(state.workspace).parent / "count").read_text()) == iterations
    return state
