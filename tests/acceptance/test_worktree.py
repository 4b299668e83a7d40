"""A run in a git worktree of a branch: work goes on there, the branch stays, the user's own work tree is as it was."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.events import ProgressEvent, is_terminal
from steersman.errors import RunCancelled, RunTerminated
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.acceptance.test_changes import files, git, made
from tests.cli.steer import Steer
from tests.scripted_model import ScriptedModel, say, tool
from tests.support.processes import until

pytestmark = pytest.mark.acceptance

NOTES = "import pathlib; pathlib.Path('edited').write_text('one\\nTWO\\nthree\\n'); pathlib.Path('new').write_text('n')"
COMMITS = (
    "; import subprocess as s; s.run(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qam', 'work'])"
)


@pytest.fixture
def repository(shared: Site) -> Path:
    return made(shared.workspace())


def on_branch(request: dict[str, Any], branch: str = "fix", **workspace: Any) -> dict[str, Any]:
    return {**request, "workspace": {**request["workspace"], "worktree": branch, **workspace}}


def standing(repository: Path) -> tuple[Any, str]:
    return files(repository), git(repository, "status", "--porcelain", "-b")


async def test_work_stays_on_its_branch_and_goes_on_there(shared: Site, steersman: Steersman, repository: Path) -> None:
    before = standing(repository)
    run = await steersman.start(on_branch(shared.process(*python(NOTES + COMMITS), workspace=repository)))
    result = await steersman.result(run)
    assert result.worktree
    where = Path(result.worktree.directory)
    assert (result.worktree.branch, result.worktree.top) == ("fix", str(where))
    assert where.is_relative_to(shared.state / "worktrees")
    assert result.changes
    assert (result.changes.files, result.changes.insertions) == (2, 2)
    assert (await steersman.state(run)).worktree == result.worktree
    assert (await steersman.events(run))[-1].worktree == result.worktree  # type: ignore[union-attr]
    assert standing(repository) == before
    assert git(repository, "log", "--format=%s", "fix") == "work\nfirst\n"
    assert git(where, "status", "--porcelain") == "?? new\n", "what was not committed stays there"

    again = await steersman.run(
        on_branch(shared.process("sh", "-c", "cat edited; echo more >> new", workspace=repository))
    )
    assert again.worktree == result.worktree
    assert "TWO" in again.text
    assert again.changes
    assert again.changes.files == 1
    other = await steersman.run(on_branch(shared.process("cat", "edited", workspace=repository), "other"))
    assert "TWO" not in other.text
    assert standing(repository) == before


@pytest.mark.exhaustive
async def test_it_is_shown_and_taken_back(shared: Site, steersman: Steersman, repository: Path) -> None:
    below = repository / "below"
    below.mkdir()
    (below / "edited").write_text("one\n")
    git(repository, "add", "below")
    git(repository, "commit", "-qm", "below")
    before = standing(repository)
    run = await steersman.start(on_branch(shared.process(*python(NOTES), workspace=below)))
    result = await steersman.result(run)
    assert result.worktree
    where = Path(result.worktree.directory)
    assert where == Path(result.worktree.top) / "below"
    assert "+TWO" in (await steersman.diff(run)).patch
    host = (await steersman.state(run)).host or ""
    assert [each.run for each in (await steersman.checkpoints(host, str(below))).checkpoints] == [run, run]
    assert (await steersman.undo(run)).files == 2
    assert (where / "edited").read_text() == "one\n"
    assert standing(repository) == before


@pytest.mark.exhaustive
async def test_one_run_at_a_time_on_a_branch_and_any_on_others(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    program = shared.process(*python(OBEDIENT), workspace=repository)
    first = await steersman.start(on_branch(program))
    await phase(steersman, first, "running")
    with pytest.raises(InvalidRequest, match=f"run {first} has it"):
        await steersman.run(on_branch(program))
    others = [await steersman.start(on_branch(program, "other")), await steersman.start(program)]
    for other in others:
        await phase(steersman, other, "running")
    host = (await steersman.state(first)).host or ""
    paths = {each.id: each.path for each in (await steersman.workspaces(host)).holders}
    assert paths[first].endswith("/fix")
    waits = await steersman.start(on_branch(shared.process("true", workspace=repository), on_overlap="queue"))
    await phase(steersman, waits, "queued")
    for run in (first, *others):
        await steersman.stop(run)
        with pytest.raises(RunCancelled):
            await steersman.result(run)
    assert (await asyncio.wait_for(steersman.result(waits), 30)).status == "succeeded"


async def test_what_cannot_be_is_said(shared: Site, steersman: Steersman, repository: Path) -> None:
    program = shared.process("true", workspace=repository)
    with pytest.raises(WorkspaceError, match=f"branch main is checked out at {repository}"):
        await steersman.run(on_branch(program, "main"))
    with pytest.raises(InvalidRequest, match="in no git repository"):
        await steersman.run(on_branch(shared.process("true")))
    with pytest.raises(InvalidRequest, match="in a worktree, or in a copy"):
        await steersman.start(on_branch(program, isolation="copy"))
    for name in ("-f", "a..b", "a b", "HEAD", "a.lock", "/a", "a/", "a@{1}", "", ".a", "a\\b", "x" * 201):
        with pytest.raises(InvalidRequest, match="worktree"):
            await steersman.start(on_branch(program, name))


@pytest.mark.exhaustive
async def test_what_a_terminated_run_left_is_there_and_taken_back(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    run = await steersman.start(on_branch(shared.process(*python(NOTES + "\n" + OBEDIENT), workspace=repository)))
    await phase(steersman, run, "running")
    where = Path((await steersman.state(run)).worktree.directory)  # type: ignore[union-attr]
    await until((where / "new").exists)
    await shared.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "enough")
    with pytest.raises(RunTerminated):
        await steersman.result(run)
    state = await steersman.state(run)
    assert state.changes
    assert state.changes.files == 2
    (end,) = [each for each in await steersman.events(run) if is_terminal(each)]
    assert end.worktree == state.worktree
    assert (await steersman.undo(run)).files == 2


@pytest.mark.exhaustive
async def test_it_is_trusted_as_the_workspace_is(site: Site, model: ScriptedModel, tmp_path: Path) -> None:
    repository = made(site.workspace())
    (repository / "CLAUDE.md").write_text("Say moo.\n")
    git(repository, "add", "CLAUDE.md")
    git(repository, "commit", "-qm", "instructions")
    worker = site.worker("--trust", str(repository), "--workspace-root", str(repository))
    steersman = await site.steersman()
    await worker.ready()
    script = model.script("works", tool("Bash", command="pwd; git rev-parse --abbrev-ref HEAD"), say("done"))
    result = await steersman.run(on_branch(site.claude(script, workspace=repository, permissions={"mode": "full"})))
    assert result.worktree
    assert any(result.worktree.directory in text for text in script.requests[1].texts)
    assert not [each for each in await steersman.events(run_of(result, site)) if "not trusted" in str(each)]
    assert result.changes is not None


async def test_an_untrusted_one_says_which_directory_to_trust(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    (repository / ".mcp.json").write_text("{}")
    git(repository, "add", ".mcp.json")
    git(repository, "commit", "-qm", "servers")
    run = await steersman.start(on_branch(shared.claude(model.script("asks", say("done")), workspace=repository)))
    await steersman.result(run)
    (told,) = [each.text for each in await steersman.events(run) if isinstance(each, ProgressEvent)]
    assert told.endswith(f"To trust it: steer trust {repository}")


def run_of(_: Any, site: Site) -> str:
    (run,) = [each.name for each in (site.state / "runs").iterdir()]
    return run


async def test_pruning_leaves_the_worktree_and_takes_the_checkpoints(site: Site) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    host = await worker.ready()
    repository = made(site.workspace())
    kept = await steersman.run(on_branch(site.process(*python(NOTES), workspace=repository)), run_id="run-kept")
    gone = await steersman.run(on_branch(site.process(*python(NOTES), workspace=repository), "gone"), run_id="run-gone")
    assert kept.worktree
    assert gone.worktree
    git(repository, "worktree", "remove", "--force", gone.worktree.top)

    async def pruned() -> bool:
        await steersman.prune(host, keep_days=0)
        return not [*(site.state / "runs").iterdir()]

    await until(pruned)
    assert git(repository, "for-each-ref", "refs/steersman") == ""
    assert (Path(kept.worktree.directory) / "new").exists()
    assert "fix" in git(repository, "worktree", "list")


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_worker_that_goes_away_changes_nothing(site: Site, end: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    repository = made(site.workspace())
    program = NOTES + "\nimport time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\n"
    run = await steersman.start(on_branch(site.process(*python(program), workspace=repository)))
    await phase(steersman, run, "running")
    where = Path((await steersman.state(run)).worktree.directory)  # type: ignore[union-attr]
    await until((where / "new").exists)
    worker.kill() if end == "kill" else await worker.terminate()
    await site.worker().ready()
    (where / "go").write_text("")
    result = await asyncio.wait_for(steersman.result(run), 40)
    assert result.changes
    assert result.changes.files == 3


@pytest.fixture
def slow_git(tmp_path: Path) -> dict[str, str]:
    """The environment of a worker whose git takes for ever over a worktree's files."""
    (tmp_path / "git").write_text(
        f'#!/bin/sh\nif [ "$1" = read-tree ]; then while :; do :; done; fi\nPATH="{os.environ["PATH"]}" exec git "$@"\n'
    )
    (tmp_path / "git").chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_worker_that_goes_away_over_its_making_is_followed_by_another(
    site: Site, slow_git: dict[str, str], end: str
) -> None:
    worker = site.worker(**slow_git)
    steersman = await site.steersman()
    await worker.ready()
    repository = made(site.workspace())
    run = await steersman.start(on_branch(site.process(*python(NOTES), workspace=repository)))
    await until(lambda: any((repository / ".git" / "worktrees").glob("*/HEAD")))
    following = site.worker()
    await following.ready()
    worker.kill() if end == "kill" else await worker.terminate()
    result = await asyncio.wait_for(steersman.result(run), 40)
    assert result.changes
    assert result.changes.files == 2


async def test_a_stop_does_not_wait_for_its_making(site: Site, slow_git: dict[str, str]) -> None:
    worker = site.worker(**slow_git)
    steersman = await site.steersman()
    await worker.ready()
    repository = made(site.workspace())
    run = await steersman.start(on_branch(site.process("true", workspace=repository)))
    await until(lambda: any((repository / ".git" / "worktrees").glob("*/HEAD")))
    assert (await asyncio.wait_for(steersman.stop(run), 15)).outcome in ("stopped", "already_finished")
    await until(lambda: git(repository, "worktree", "list").count("\n") == 1)
    git(repository, "checkout", "-q", "fix")


async def test_a_worker_that_lets_nobody_write_makes_none(site: Site, model: ScriptedModel) -> None:
    worker = site.worker("--max-permission", "read_only")
    steersman = await site.steersman()
    await worker.ready()
    repository = made(site.workspace())
    request = site.claude(model.script("no"), workspace=repository, permissions={"mode": "read_only"})
    with pytest.raises(InvalidRequest, match="allows nobody to change a workspace"):
        await steersman.run(on_branch(request))
    assert git(repository, "branch", "--list", "fix") == ""


@pytest.fixture
async def steer(shared: Site, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(shared.namespace.address, tmp_path, shared.namespace.name)
    yield command
    await command.close()


@pytest.mark.exhaustive
async def test_what_a_person_sees(steer: Steer, repository: Path, tmp_path: Path) -> None:
    run = f"run-{tmp_path.name}"
    said = await steer("run", "process", "-w", str(repository), "--worktree", "fix", "--id", run, "--", *python(NOTES))
    shown = (await steer("show", run)).out
    where = json.loads((await steer("show", run, "--json")).out)["worktree"]["top"]
    assert said.out.splitlines()[-1].endswith(f" · 2 files, +2 -1 · branch fix in {where}")
    assert f"branch fix in {where}" in shown
    refused = await steer("run", "process", "-w", str(repository), "--worktree", "fix", "--isolated", "--", "true")
    assert refused.code == 2
    assert "in a worktree, or in a copy" in refused.err
