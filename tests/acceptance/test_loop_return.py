"""A loop is taken back to one of its checkpoints: files byte for byte, session, counters; nothing is lost by it."""

from pathlib import Path

import pytest

from steersman._client.host_calls import call_host
from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop_activities import LoopKey, Restored, RestoreInput
from steersman.contracts.names import RESTORE_CHECKPOINT
from steersman.contracts.request import RunRequest
from steersman.errors import MessageRefused
from tests.acceptance.loops import FILES, claude_loop, ended, project, reaches, refs, tick, told
from tests.acceptance.site import Site
from tests.loops.loop_site import git, on_disk, put, seen, standing
from tests.scripted_model import ScriptedModel, say, tool

AWKWARD: dict[str, bytes | str] = {
    "crlf.txt": b"one\r\ntwo\n\r\n",
    "binary": bytes(range(256)) * 3,
    "no newline": b"the end",
    "d/\xe4.txt": "umlaut",
}
RUINS = (
    "printf 'lost' > binary; rm crlf.txt; rm -r d; mkdir new; echo x > new/file; "
    "echo changed > ignored/kept; git add -A; git commit -q -m agent; echo more > untracked"
)


def keeping(workspace: Path) -> dict[str, bytes | str]:
    """The files that are there now, those that git ignores aside."""
    return {name: content for name, content in on_disk(workspace).items() if not name.startswith("ignored/")}


async def test_rollback_restores_files_and_nothing_else(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    put(workspace, {**AWKWARD, "ignored/kept": "as it was"})
    git(workspace, "config", "user.name", "agent")
    git(workspace, "config", "user.email", "agent@example.com")
    script = model.script(
        "back",
        tool("Bash", command=f"{tick('one')}; ln -s binary link; chmod +x binary"),
        say("one is done"),
        tool("Bash", command=RUINS),
        say("ruined"),
        tool("Bash", command=tick("two")),
        say("two is done"),
    )
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mode="checkpoint"))
    await reaches(steersman, loop, "waiting_for_decision")
    good, first = keeping(workspace), await steersman.loops.state(loop)
    await steersman.loops.resume(loop)
    await reaches(steersman, loop, lambda now: now.status == "waiting_for_decision" and now.iteration == 2)
    ruined, before = keeping(workspace), standing(workspace)

    receipt = await steersman.loops.rollback(loop, 1)

    assert (receipt.status, receipt.checkpoint, receipt.rescue) == ("paused", 1, 3)
    assert keeping(workspace) == good
    assert not (workspace / "new").exists()
    assert (workspace / "ignored/kept").read_text() == "changed\n"
    after = standing(workspace)
    assert {name for name in before if before[name] != after[name]} == {"status"}
    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "iteration", "iteration", "rescue"]
    assert seen(workspace, refs(workspace, loop)[3]) == ruined
    state = await steersman.loops.state(loop)
    assert (state.status, state.iteration, state.totals.iterations) == ("paused", 1, 2)
    assert state.session_id == first.session_id
    assert state.items is not None
    assert (state.items.count.closed, state.items.count.open) == (1, 1)

    await steersman.loops.resume(loop, mode="autonomous")
    result = await ended(steersman, loop)
    assert (result.status, result.iterations) == ("completed", 3)
    said = told(script.requests[4])
    assert "The workspace was taken back to how it was after iteration 1" in said
    assert "iteration 2 of at most" in said
    assert script.requests[4].saw("one is done")
    # What was ruined can be had back, even now.
    assert seen(workspace, refs(workspace, loop)[3])["new/file"] == b"x\n"
    with pytest.raises(MessageRefused, match="no checkpoint 9"):
        await _refused_rollback(shared, steersman, model)


async def _refused_rollback(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    script = model.script("refused", say("one"))
    loop = await steersman.loops.start(claude_loop(shared, script, project(shared), mode="checkpoint"))
    await reaches(steersman, loop, "waiting_for_decision")
    try:
        await steersman.loops.rollback(loop, 9)
    finally:
        await steersman.loops.exit(loop)


async def test_what_cannot_be_rescued_is_not_taken_back(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    loop = await steersman.loops.start(
        claude_loop(shared, model.script("one", say("one")), workspace, mode="checkpoint")
    )
    await reaches(steersman, loop, "waiting_for_decision")
    put(workspace, {"precious": "a person's"})
    for number in range(2, 6):  # a directory of refs, where a ref is to be
        git(workspace, "update-ref", f"refs/steersman/{loop}/{number}/x", "HEAD")
    await steersman.loops.pause(loop, reason="lunch")
    with pytest.raises(MessageRefused, match=r"cannot be restored: .*now could not be kept: the files could not"):
        await steersman.loops.rollback(loop, 0)
    with pytest.raises(MessageRefused, match=r"cannot be restored: .*now could not be kept"):
        await steersman.loops.restart(loop, files=True)
    assert (workspace / "precious").read_text() == "a person's"
    blocked = (await steersman.loops.checkpoints(loop))[2:]
    assert [(each.kind, each.commit) for each in blocked] == [("pause", None), ("rescue", None), ("rescue", None)]
    assert all(": the files could not be kept" in (each.note or "") for each in blocked)
    assert (blocked[0].note or "").startswith("lunch: ")
    git(workspace, "update-ref", "-d", f"refs/steersman/{loop}/5/x")
    receipt = await steersman.loops.rollback(loop, 0)
    assert git(workspace, "show", f"refs/steersman/{loop}/{receipt.rescue}:precious") == "a person's"
    assert not (workspace / "precious").exists()
    await steersman.loops.exit(loop)

    git(workspace, "update-ref", f"refs/steersman/fork-of-{loop}/0/x", "HEAD")
    put(workspace, {"precious": "a person's"})
    source = {"loop": loop, "number": 1}
    fork = claude_loop(shared, model.script("two", say("two")), workspace, from_checkpoint=source)
    await steersman.loops.start(fork, loop_id=f"fork-of-{loop}")
    with pytest.raises(InvalidRequest, match="from_checkpoint: what is there now could not be kept"):
        await steersman.loops.result(f"fork-of-{loop}")
    assert (workspace / "precious").read_text() == "a person's"


async def test_only_the_loop_itself_has_its_files_put_into_a_workspace(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    request = claude_loop(shared, model.script("one", say("one")), workspace, mode="checkpoint")
    loop = await steersman.loops.start(request)
    state = await reaches(steersman, loop, "waiting_for_decision")
    put(workspace, {"mine": "a person's"})
    run = RunRequest.model_validate({**request["run"], "prompt": "x"})
    asked = RestoreInput(key=LoopKey(loop=loop, execution="e"), run=run, source=loop, number=0)
    assert state.host
    restored = await call_host(steersman.temporal, state.host, RESTORE_CHECKPOINT, asked, Restored)
    assert "loop's own workflow" in (restored.error or "")
    assert (workspace / "mine").read_text() == "a person's"
    await steersman.loops.exit(loop)


async def test_a_worker_that_lets_nobody_change_a_workspace_restores_nothing(site: Site, model: ScriptedModel) -> None:
    await site.worker("--max-permission", "read_only", "--agent", "claude").ready()
    steersman, workspace = await site.steersman(), project(site)
    reads, script = {"permissions": {"mode": "read_only"}}, model.script("one", say("one"))
    loop = await steersman.loops.start(claude_loop(site, script, workspace, mode="checkpoint", run=reads))
    await reaches(steersman, loop, "waiting_for_decision")
    put(workspace, {"mine": "a person's"})
    with pytest.raises(MessageRefused, match="allows nobody to change a workspace"):
        await steersman.loops.rollback(loop, 0)
    assert (workspace / "mine").read_text() == "a person's"
    await steersman.loops.exit(loop)


@pytest.mark.exhaustive
async def test_starting_over_forgets_what_was_done(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = project(shared)
    script = model.script(
        "over",
        tool("Bash", command=f"{tick('one')}; echo 1 > wrong.txt"),
        say("wrong"),
        tool("Bash", command=f"{tick('one')}; echo 2 > right.txt"),
        say("better"),
        tool("Bash", command="echo 3 > right.txt"),
        say("worse"),
        tool("Bash", command=tick("two")),
        say("well"),
    )
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mode="checkpoint"))
    first = await reaches(steersman, loop, "waiting_for_decision")
    assert first.session_id is not None

    receipt = await steersman.loops.restart(loop)
    assert (receipt.checkpoint, receipt.rescue) == (0, 2)
    second = await reaches(steersman, loop, lambda now: now.status == "waiting_for_decision")
    assert (second.iteration, second.totals.iterations) == (1, 2)
    assert second.session_id not in (None, first.session_id)
    assert sorted(on_disk(workspace)) == sorted([*FILES, "right.txt"])
    assert "Work on the plan below until it is done. This is iteration 1" in told(script.requests[2])
    assert not script.requests[2].saw("wrong")

    # Only the second iteration over again: the first one's work and its session are kept.
    await steersman.loops.resume(loop)
    await reaches(steersman, loop, lambda now: now.status == "waiting_for_decision" and now.iteration == 2)
    assert (workspace / "right.txt").read_text() == "3\n"
    await steersman.loops.restart(loop, from_iteration=2)
    result = await ended(steersman, loop)

    assert (result.status, result.iterations, result.session_id) == ("completed", 4, second.session_id)
    assert (workspace / "right.txt").read_text() == "2\n"
    assert "was taken back to how it was after iteration 1" in told(script.requests[6])
    kinds = [each.kind for each in await steersman.loops.checkpoints(loop)]
    assert kinds == ["baseline", "iteration", "rescue", "iteration", "iteration", "rescue", "iteration"]


@pytest.mark.exhaustive
async def test_checkpoints_are_compared_and_deleted(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = project(shared)
    steps = [each for n in (1, 2) for each in (tool("Bash", command=f"echo {n} > n.txt"), say("next"))]
    script = model.script("compared", *steps, tool("Bash", command=tick("one", "two")), say("done"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace))
    await ended(steersman, loop)

    diff = await steersman.loops.diff(loop, 1, 2)
    assert "-1\n+2\n" in diff.patch
    assert "n.txt" in diff.stat
    (workspace / "n.txt").write_text("now\n")
    assert "+now" in (await steersman.loops.diff(loop, 2)).patch
    assert (await steersman.loops.clean(loop, numbers=(1,))).deleted == (1,)
    assert set(refs(workspace, loop)) == {0, 2, 3}
    assert (await steersman.loops.clean(loop, all=True)).kept == 0
    assert refs(workspace, loop) == {}
