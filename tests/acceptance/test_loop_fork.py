"""A new loop begins as another one was at a checkpoint: files, session, what was used up."""

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import RunNotFound
from tests.acceptance.loops import PLAN, claude_loop, ended, project, reaches, refs, tick, told
from tests.acceptance.site import Site
from tests.loops.loop_site import git, on_disk, seen
from tests.scripted_model import ScriptedModel, say, tool


@pytest.mark.exhaustive
async def test_a_fork_begins_as_the_other_loop_was(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = project(shared)
    script = model.script(
        "forked",
        tool("Bash", command=tick("one")),
        say("the password is swordfish"),
        tool("Bash", command="echo second > second.txt"),
        say("the password is haddock"),
        tool("Bash", command=tick("two")),
        say("done"),
    )
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mode="checkpoint"))
    await reaches(steersman, loop, "waiting_for_decision")
    await steersman.loops.resume(loop)
    await reaches(steersman, loop, lambda now: now.status == "waiting_for_decision" and now.iteration == 2)
    with pytest.raises(InvalidRequest, match=f"loop {loop} is open and has {workspace}"):
        await steersman.loops.fork(loop, 1)
    assert (workspace / "second.txt").exists()
    await steersman.loops.set_limits(loop, iterations=2)
    await steersman.loops.exit(loop)
    other = await ended(steersman, loop)

    fork = await steersman.loops.fork(loop, 1, {"mode": "autonomous"})
    result = await ended(steersman, fork)

    assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", 2)
    assert not (workspace / "second.txt").exists()
    assert (workspace / "PLAN.md").read_text() == PLAN.replace("[ ]", "[x]")
    # The session: another one, which remembers what the other loop's knew at that checkpoint, or later.
    assert result.session_id not in (None, other.session_id)
    assert script.requests[4].saw("swordfish")
    assert "iteration 2 of at most 2" in told(script.requests[4])
    kept = await steersman.loops.checkpoints(fork)
    assert [(each.number, each.kind) for each in kept] == [(0, "rescue"), (1, "baseline"), (2, "iteration")]
    assert seen(workspace, refs(workspace, fork)[0])["second.txt"] == b"second\n"
    assert seen(workspace, refs(workspace, fork)[1]) == seen(workspace, refs(workspace, loop)[1])
    used = (await steersman.loops.checkpoints(loop))[1].totals
    assert result.cost_usd > used.cost_usd > 0
    # The other loop is as it was.
    assert (await steersman.loops.state(loop)).session_id == other.session_id
    assert set(refs(workspace, loop)) == {0, 1, 2}


@pytest.mark.exhaustive
async def test_a_fork_into_a_worktree_leaves_the_open_loop_alone(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    there = workspace.parent / f"{workspace.name}-worktree"
    git(workspace, "worktree", "add", "-q", "--detach", str(there))
    script = model.script("open", tool("Bash", command=f"{tick('one')}; echo kept > kept.txt"), say("swordfish"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mode="checkpoint"))
    await reaches(steersman, loop, "waiting_for_decision")
    mine = on_disk(workspace)

    again = model.script("worktree", tool("Bash", command=tick("two")), say("done"))
    run = claude_loop(shared, again, there)["run"]
    fork = await steersman.loops.fork(loop, 1, {"run": run, "mode": "autonomous"})
    result = await ended(steersman, fork)

    assert result.status == "completed"
    assert (there / "kept.txt").read_text() == "kept\n"
    assert (there / "PLAN.md").read_text() == PLAN.replace("[ ]", "[x]")
    assert on_disk(workspace) == mine
    assert (await steersman.loops.state(loop)).status == "waiting_for_decision"
    # Claude Code knows its sessions in all worktrees of a repository.
    assert again.requests[0].saw("swordfish")
    assert result.session_id not in (None, (await steersman.loops.state(loop)).session_id)
    await steersman.loops.exit(loop)


@pytest.mark.exhaustive
async def test_a_fork_of_nothing_is_refused(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    script = model.script("nothing", tool("Bash", command=tick("one", "two")), say("done"))
    loop = await steersman.loops.start(claude_loop(shared, script, project(shared)))
    await ended(steersman, loop)

    with pytest.raises(InvalidRequest, match=f"from_checkpoint.*: loop {loop} has no checkpoint 7"):
        await ended(steersman, await steersman.loops.fork(loop, 7))
    with pytest.raises(RunNotFound):
        await steersman.loops.fork("loop-nobody", 1)
    request = claude_loop(shared, script, project(shared), from_checkpoint={"loop": "loop-nobody", "number": 1})
    with pytest.raises(InvalidRequest, match=r"from_checkpoint.*: no loop loop-nobody"):
        await ended(steersman, await steersman.loops.start(request))


async def test_a_session_of_a_run_is_gone_on_with_or_forked(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    script = model.script("given", say("the password is swordfish"))
    first = await steersman.run(shared.claude(script, workspace=workspace))

    for forks in (True, False):
        (workspace / "PLAN.md").write_text(PLAN)
        script = model.script(f"fork-{forks}", tool("Bash", command=tick("one", "two")), say("done"))
        given = {"session": first.session_id, "fork_session": forks}
        result = await ended(steersman, await steersman.loops.start(claude_loop(shared, script, workspace, run=given)))

        assert result.status == "completed"
        assert script.requests[0].saw("swordfish")
        # It knows nothing of the plan yet.
        assert "Work on the plan below" in told(script.requests[0])
        assert (result.session_id == first.session_id) != forks
