"""Loops of plain programs: in a directory without git, and with items that other programs print."""

import os

import pytest

from steersman.client import Steersman
from steersman.contracts.loop_state import ItemCount
from steersman.errors import ServerRefused
from tests.acceptance.loops import ended, process_loop, project, reaches, tick
from tests.acceptance.site import Site
from tests.loops.loop_site import on_disk, put

BD = """#!/bin/sh
# As much of beads as a loop needs: `bd show IDS --json` of what is in issues.json.
[ "$1" = show ] && cat issues.json
"""
ISSUES = """[{"id": "app-1", "title": "first", "status": "%s"}, {"id": "app-2", "title": "second", "status": "%s"}]"""


@pytest.mark.exhaustive
async def test_a_directory_without_git_is_watched_but_not_kept(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    put(workspace, {"PLAN.md": "- [ ] one\n- [ ] two\n", "data": b"\0\1"})
    # It changes one byte of a file twice, then nothing any more.
    command = "n=$(cat n 2>/dev/null || echo 0); test $n -ge 2 || echo $((n + 1)) > n"
    request = process_loop(shared, command, workspace, limits={"no_progress": 2}, mode="checkpoint")
    loop = await steersman.loops.start(request)
    await reaches(steersman, loop, "waiting_for_decision")
    await steersman.loops.resume(loop, mode="autonomous")
    result = await ended(steersman, loop)

    assert (result.status, result.stop_reason, result.iterations) == ("exited", "no_progress", 4)
    kept = await steersman.loops.checkpoints(loop)
    assert [(each.commit, each.head) for each in kept] == [(None, None)] * 5
    prints = [each.files for each in kept]
    assert len(set(prints)) == 3
    assert prints[2] == prints[3] == prints[4] != ""
    assert sorted(on_disk(workspace)) == ["PLAN.md", "data", "n"]
    with pytest.raises(ServerRefused):
        await steersman.loops.diff(loop, 0, 1)


async def test_a_plan_that_the_agent_removes_is_no_empty_list(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    put(workspace, {"PLAN.md": "- [ ] one\n"})
    loop = await steersman.loops.start(process_loop(shared, "rm PLAN.md", workspace, limits={"iterations": 1}))
    result = await ended(steersman, loop)
    assert (result.stop_reason, result.items) == ("iterations", None)
    assert [each.items for each in await steersman.loops.checkpoints(loop)] == [ItemCount(open=1), None]
    items = (await steersman.loops.state(loop)).items
    assert items is not None
    assert items.error == "PLAN.md does not exist in the workspace"


async def test_going_back_without_git_leaves_the_files_and_says_so(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    put(workspace, {"PLAN.md": "- [ ] one\n- [ ] two\n"})
    loop = await steersman.loops.start(process_loop(shared, "echo x >> work", workspace, mode="checkpoint"))
    await reaches(steersman, loop, "waiting_for_decision")

    receipt = await steersman.loops.rollback(loop, 0)

    assert (receipt.status, receipt.checkpoint, receipt.rescue) == ("paused", 0, 2)
    assert "no files were kept with that checkpoint: they are as they were" in receipt.note
    assert (workspace / "work").read_text() == "x\n"
    state = await steersman.loops.state(loop)
    assert (state.iteration, state.totals.iterations) == (0, 1)
    await steersman.loops.resume(loop)
    await reaches(steersman, loop, "waiting_for_decision")
    assert (workspace / "work").read_text() == "x\nx\n"
    await steersman.loops.exit(loop)


@pytest.mark.exhaustive
async def test_a_command_prints_what_is_left(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    prints = 'test -e two && s=closed || s=open; printf \'[{"id": "a", "title": "A", "done": true}, '
    prints += '{"id": "b", "title": "B", "status": "%s"}]\' $s'
    done = {"items": {"kind": "command", "command": prints}}
    request = process_loop(shared, "test -e one && touch two; touch one", workspace, done=done, mode="checkpoint")
    loop = await steersman.loops.start(request)

    waiting = await reaches(steersman, loop, "waiting_for_decision")
    assert waiting.items is not None
    assert waiting.items.count == ItemCount(open=1, closed=1)
    assert next((each.id, each.text, each.state) for each in waiting.items.items) == ("b", "B", "open")
    await steersman.loops.resume(loop)

    result = await ended(steersman, loop)
    assert (result.stop_reason, result.iterations, result.items) == ("done", 2, ItemCount(closed=2))


@pytest.mark.exhaustive
async def test_a_command_that_cannot_say_proves_nothing(shared: Site, steersman: Steersman, mark: str) -> None:
    workspace = project(shared)
    done = {"items": {"kind": "command", "command": "test -e fixed && echo '[]' || { echo broken >&2; exit 3; }"}}
    request = process_loop(shared, "echo x >> work", workspace, mark, done=done, limits={"iterations": 2})
    result = await ended(steersman, loop := await steersman.loops.start(request))

    assert (result.status, result.stop_reason) == ("exited", "iterations")
    state = await steersman.loops.state(loop)
    assert state.items is not None
    assert "exit code 3: broken" in (state.items.error or "")
    # Nothing at all to do is no proof either.
    (workspace / "fixed").touch()
    result = await ended(steersman, await steersman.loops.start(request))
    assert (result.status, result.stop_reason) == ("exited", "iterations")
    done["items"]["allow_empty"] = True  # type: ignore[assignment]
    result = await ended(steersman, await steersman.loops.start(request))
    assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", 1)


@pytest.mark.exhaustive
async def test_beads_are_the_items(site: Site) -> None:
    tools = site.root / "bin"
    put(tools, {"bd": BD})
    (tools / "bd").chmod(0o755)
    await site.worker(PATH=f"{tools}{os.pathsep}{os.environ['PATH']}").ready()
    steersman = await site.steersman()
    workspace = project(site, {"issues.json": ISSUES % ("closed", "in_progress")})
    done = {"items": {"kind": "beads", "ids": ["app-1", "app-2"]}}
    command = "test -e one && sed -i s/in_progress/closed/ issues.json; touch one"
    request = process_loop(site, command, workspace, plan="the issues", done=done, mode="checkpoint")
    loop = await steersman.loops.start(request)

    waiting = await reaches(steersman, loop, "waiting_for_decision")
    assert waiting.items is not None
    assert waiting.items.count == ItemCount(in_progress=1, closed=1)
    await steersman.loops.resume(loop)
    assert (await ended(steersman, loop)).iterations == 2

    done["items"]["ids"] = ["app-1", "app-9"]
    unknown = await steersman.loops.start({**request, "done": done, "mode": "autonomous", "limits": {"iterations": 1}})
    assert (await ended(steersman, unknown)).stop_reason == "iterations"
    items = (await steersman.loops.state(unknown)).items
    assert items is not None
    assert items.error == "bd knows no issue app-9"


@pytest.mark.exhaustive
async def test_an_iteration_is_short_in_history_and_leaves_nothing(site: Site) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    workspace = project(site)
    command = f"echo x >> n; test $(wc -l < n) -lt 10 || {{ {tick('one', 'two')}; }}"
    done = {"items": {"kind": "checkboxes"}, "verify": {"command": "true"}}
    loop = await steersman.loops.start(process_loop(site, command, workspace, done=done))
    result = await ended(steersman, loop)

    assert (result.status, result.iterations) == ("completed", 10)
    history = await steersman.temporal.get_workflow_handle(loop).fetch_history()
    assert len(history.events) <= 40 * 10
    assert sorted(on_disk(workspace)) == [".gitignore", "PLAN.md", "n", "src/app.py"]
    assert list((site.root / "tmp").iterdir()) == []
