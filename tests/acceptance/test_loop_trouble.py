"""What goes wrong around a loop is told, costs no more than it must, and wedges nothing."""

import asyncio
import shutil
import time

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import LoopFailed
from steersman.errors import MessageRefused, RunCancelled
from tests.acceptance.loops import (
    LONG_TOOL,
    claude_loop,
    ended,
    in_tool,
    process_loop,
    project,
    reaches,
    refs,
    tick,
    told,
)
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.loops.loop_site import git, on_disk
from tests.scripted_model import ScriptedModel, say, tool
from tests.support.processes import marked

BOTH = tool("Bash", command=tick("one", "two"))


@pytest.mark.exhaustive
async def test_a_run_that_waits_for_room_is_paused_and_cancelled_at_once(site: Site, mark: str) -> None:
    await site.worker("--max-runs", "1").ready()
    steersman = await site.steersman()
    other = await steersman.start(site.process(*python(OBEDIENT)))
    await phase(steersman, other, "running")
    requests = [process_loop(site, tick("one", "two"), project(site), mark) for _ in range(3)]
    waiting = [await steersman.loops.start(request) for request in requests]
    for loop in waiting:
        await reaches(steersman, loop, lambda now: now.run)
    paused, left, cancelled = waiting

    began = time.monotonic()
    assert (await steersman.loops.pause(paused, now=True)).status == "paused"
    await steersman.loops.exit(left)
    assert (await ended(steersman, left)).stop_reason == "exit"
    await steersman.loops.stop(cancelled)
    with pytest.raises(RunCancelled):
        await ended(steersman, cancelled)
    assert time.monotonic() - began < 40  # else they wait for room, which there is none of
    assert not marked(mark)

    await steersman.stop(other)
    await steersman.loops.resume(paused)
    result = await ended(steersman, paused)
    assert (result.status, result.iterations) == ("completed", 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", ["rollback", "restart"])
async def test_going_back_in_the_middle_of_the_work_ends_it_first(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, verb: str
) -> None:
    workspace = project(shared)
    half = tool("Bash", command=f"echo half > half.txt; {LONG_TOOL}")
    script = model.script(verb, half, BOTH, say("done"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mark))
    before = on_disk(workspace)
    await in_tool(mark)
    await phase(steersman, f"{loop}-1", "running")

    if verb == "rollback":
        receipt = await steersman.loops.rollback(loop, 0)
        assert receipt.status == "paused"
        assert not marked(mark)
        assert on_disk(workspace) == before
        await steersman.loops.resume(loop)
    else:
        receipt = await steersman.loops.restart(loop)
    result = await ended(steersman, loop)

    assert (result.status, result.iterations) == ("completed", 2)
    assert not (workspace / "half.txt").exists()
    assert "This is iteration 1 of" in told(script.requests[1])
    assert not script.requests[1].saw("half.txt")
    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "pause", "rescue", "iteration"]
    assert (await steersman.loops.state(loop)).failures == 0


@pytest.mark.exhaustive
async def test_a_session_that_is_lost_costs_one_iteration(site: Site, model: ScriptedModel) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    script = model.script("lost", tool("Bash", command=tick("one")), say("swordfish"), BOTH, say("done"))
    loop = await steersman.loops.start(claude_loop(site, script, project(site), mode="checkpoint"))
    first = await reaches(steersman, loop, "waiting_for_decision")
    shutil.rmtree(site.root / "claude/projects")

    await steersman.loops.resume(loop, "use tabs", mode="autonomous")
    result = await ended(steersman, loop)

    assert (result.status, result.iterations) == ("completed", 3)
    kinds = [each.kind for each in await steersman.loops.checkpoints(loop)]
    assert kinds == ["baseline", "iteration", "failure", "iteration"]
    # Another session is told the whole task, and what was said to the one that never came to be.
    assert "Work on the plan below" in told(script.requests[2])
    assert told(script.requests[2]).count("use tabs") == 1
    assert not script.requests[2].saw("swordfish")
    assert result.session_id not in (None, first.session_id)


@pytest.mark.exhaustive
async def test_a_workspace_that_goes_away_fails_the_loop_and_says_so(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    request = process_loop(shared, 'rm -rf "$PWD"', workspace, limits={"failures": 2})
    loop = await steersman.loops.start(request)

    with pytest.raises(LoopFailed, match="workspace"):
        await ended(steersman, loop)

    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "iteration", "failure", "failure"]
    assert [each.commit is None for each in kept] == [False, True, True, True]
    assert str(workspace) in (kept[1].note or "")


async def test_a_repository_that_goes_away_is_no_reason_to_give_up(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    command = f"if test -e .git; then rm -rf .git; else {tick('one', 'two')}; fi"
    loop = await steersman.loops.start(process_loop(shared, command, workspace, mode="checkpoint"))
    await reaches(steersman, loop, "waiting_for_decision")
    with pytest.raises(MessageRefused, match="could not be kept: the workspace is in no git repository"):
        await steersman.loops.rollback(loop, 0)
    await steersman.loops.resume(loop)

    result = await ended(steersman, loop)

    assert (result.status, result.iterations) == ("completed", 2)
    kept = await steersman.loops.checkpoints(loop)
    assert [each.commit is None for each in kept] == [False, True, True, True]


@pytest.mark.exhaustive
async def test_loops_in_one_repository_do_not_mix(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    places = [workspace]
    for name in "ab":
        places.append(shared.workspace() / name)
        git(workspace, "worktree", "add", "-q", "-b", name, str(places[-1]))
    command = f"if grep -q '\\[x\\] one' PLAN.md; then {tick('two')}; else {tick('one')}; fi"
    loops = [await steersman.loops.start(process_loop(shared, command, each)) for each in places]
    results = await asyncio.gather(*(ended(steersman, loop) for loop in loops))

    assert {result.status for result in results} == {"completed"}
    for loop in loops:
        kept = await steersman.loops.checkpoints(loop)
        assert refs(workspace, loop) == {each.number: each.commit for each in kept}
        assert None not in [each.commit for each in kept]
