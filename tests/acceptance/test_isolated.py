"""A run that works in a copy of its workspace: what it changed is merged, and nothing of either side is ever lost."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import AgentCrashed, WorkspaceError
from steersman.contracts.events import DoneEvent
from steersman.contracts.run import Finalize, RunResult
from steersman.errors import NothingKept, RunCancelled, RunTerminated, ServerRefused
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, gone, phase
from tests.acceptance.test_changes import EDIT, files, git, made
from tests.acceptance.test_reset import reset
from tests.cli.steer import Steer
from tests.scripted_model import ScriptedModel, say, tool
from tests.support.processes import until

pytestmark = pytest.mark.acceptance

COMMIT = """
import subprocess
subprocess.run("git add -A; git -c user.name=a -c user.email=a@b commit -qm second", shell=True, check=True)
"""
WAIT = """
import pathlib, time
while not pathlib.Path("{go}").exists(): time.sleep(0.02)
"""


@pytest.fixture
def repository(shared: Site) -> Path:
    return made(shared.workspace())


def isolated(site: Site, path: Path, program: str, **fields: Any) -> dict[str, Any]:
    request = site.process(*python(program), workspace=path, **fields)
    return {**request, "workspace": {**request["workspace"], "isolation": "copy"}}


async def copy_of(steersman: Steersman, run: str) -> Path:
    """The run's copy, once its process is at work."""
    await phase(steersman, run, "running")
    carried = (await steersman.state(run)).carried
    assert carried
    return Path(carried.directory)


async def finalized(steersman: Steersman, run: str) -> Finalize:
    result = await steersman.result(run)
    assert result.finalize
    return result.finalize


async def test_it_works_beside_and_what_it_did_comes_back(shared: Site, steersman: Steersman, repository: Path) -> None:
    go = repository.parent / f"{repository.name}.go"
    run = await steersman.start(
        isolated(shared, repository, EDIT + COMMIT + "open('later','w').close()" + WAIT.format(go=go))
    )
    copy = await copy_of(steersman, run)
    await until((copy / "later").exists)
    assert copy != repository
    assert git(copy, "remote") == ""
    assert (copy / "dirty").read_text() == "a person's own\n"
    assert not (repository / "later").exists()
    (repository / "mine").write_text("meanwhile\n")
    go.touch()
    result = await steersman.result(run)
    assert result.finalize == Finalize(status="succeeded", commit=git(repository, "rev-parse", "HEAD").strip())
    assert result.changes
    assert result.changes.files == 6
    assert git(repository, "log", "--format=%s") == "second\nfirst\n"
    assert git(repository, "status", "--porcelain") == "?? later\n?? mine\n"
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"
    assert not copy.exists()
    last = (await steersman.events(run))[-1]
    assert isinstance(last, DoneEvent)
    assert (last.finalize, last.changes) == (result.finalize, result.changes)
    assert (await steersman.state(run)).finalize == result.finalize
    assert "+TWO" in (await steersman.diff(run)).patch
    assert (await steersman.undo(run)).files == 6
    assert (repository / "edited").read_text() == "one\ntwo\nthree\n"
    assert (repository / "mine").read_text() == "meanwhile\n"


@pytest.mark.exhaustive
async def test_ten_at_once(shared: Site, steersman: Steersman, repository: Path) -> None:
    program = "import pathlib; pathlib.Path('n{0}').write_text('{0}')" + COMMIT.replace("second", "'of {0}'")
    runs = [await steersman.start(isolated(shared, repository, program.format(n))) for n in range(10)]
    found = [await finalized(steersman, run) for run in runs]
    assert [each.status for each in found] == ["succeeded"] * 10
    assert sorted(path.name for path in repository.glob("n*")) == [f"n{n}" for n in range(10)]
    subjects = git(repository, "log", "--format=%s").splitlines()
    assert {f"of {n}" for n in range(10)} <= set(subjects)
    assert git(repository, "status", "--porcelain") == ""


async def test_what_both_changed_is_named_and_kept(shared: Site, steersman: Steersman, repository: Path) -> None:
    go = repository.parent / f"{repository.name}.go"
    run = await steersman.start(isolated(shared, repository, EDIT + WAIT.format(go=go)))
    await copy_of(steersman, run)
    (repository / "edited").write_text("mine\n")
    go.touch()
    found = await finalized(steersman, run)
    assert (found.status, found.conflicts, found.ref) == ("conflicted", ("edited",), f"refs/steersman/conflicts/{run}")
    assert (repository / "edited").read_text() == "mine\n"
    assert not (repository / "deleted").exists()
    assert git(repository, "show", f"{found.ref}:edited") == "one\nTWO\nthree\n"


async def test_without_a_repository(shared: Site, steersman: Steersman) -> None:
    path = shared.workspace()
    (path / "a").write_text("one\n")
    run = await steersman.start(isolated(shared, path, "open('a','w').write('two\\n'); open('b','w').write('new\\n')"))
    result = await steersman.result(run)
    assert (result.finalize, result.changes) == (Finalize(status="succeeded"), None)
    assert ((path / "a").read_text(), (path / "b").read_text()) == ("two\n", "new\n")


async def test_a_directory_of_a_repository(shared: Site, steersman: Steersman, repository: Path) -> None:
    (repository / "sub").mkdir()
    secret = repository / ".env.local"
    secret.write_text("s")
    secret.chmod(0o600)
    program = (
        "import os, pathlib; pathlib.Path('n').write_text(os.getcwd()); pathlib.Path('../m').touch(); "
        "pathlib.Path('../.env.local').unlink()"
    )
    run = await steersman.start(isolated(shared, repository / "sub", program))
    result = await steersman.result(run)
    assert (repository / "sub" / "n").read_text().endswith("/sub")
    assert (repository / "m").exists()
    assert result.changes
    assert result.changes.files == 3
    assert "| 1 +" in (await steersman.diff(run)).stat
    assert "b/m" in (await steersman.diff(run)).patch
    assert (await steersman.undo(run)).files == 3
    assert not (repository / "m").exists()
    assert list((repository / "sub").iterdir()) == []
    assert (secret.read_text(), oct(secret.stat().st_mode)) == ("s", "0o100600")


async def failed(steersman: Steersman, run: str) -> RunResult:
    with pytest.raises(AgentCrashed) as error:
        await steersman.result(run)
    assert error.value.result
    return error.value.result


@pytest.mark.exhaustive
async def test_a_failed_run_is_carried_back(shared: Site, steersman: Steersman, repository: Path) -> None:
    run = await steersman.start(isolated(shared, repository, EDIT + "raise SystemExit(3)"))
    result = await failed(steersman, run)
    assert result.finalize
    assert result.finalize.status == "succeeded"
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"


@pytest.mark.exhaustive
async def test_a_cancelled_run_is_carried_back(shared: Site, steersman: Steersman, repository: Path, mark: str) -> None:
    run = await steersman.start(isolated(shared, repository, EDIT + OBEDIENT, mark=mark))
    copy = await copy_of(steersman, run)
    await until((copy / "link").is_symlink)
    assert (await steersman.stop(run)).outcome == "stopped"
    await gone(mark)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"
    state = await steersman.state(run)
    assert state.finalize
    assert state.finalize.status == "succeeded"


async def test_a_terminated_run_is_carried_back(
    shared: Site, steersman: Steersman, repository: Path, mark: str
) -> None:
    run = await steersman.start(isolated(shared, repository, EDIT + OBEDIENT, mark=mark))
    copy = await copy_of(steersman, run)
    await until((copy / "link").is_symlink)
    await steersman.temporal.get_workflow_handle(run).terminate("enough")
    with pytest.raises(RunTerminated):
        await steersman.result(run)
    await gone(mark)
    await until(lambda: (repository / "edited").read_text() == "one\nTWO\nthree\n")
    last = (await steersman.events(run))[-1]
    assert last.type == "cancelled"
    assert last.finalize
    assert last.finalize.status == "succeeded"


NESTED = "import subprocess; subprocess.run('git init -q lib; touch lib/f new', shell=True, check=True)"


@pytest.mark.exhaustive
async def test_what_cannot_be_carried_back_waits_and_is_a_gate(
    shared: Site, steersman: Steersman, repository: Path, steer: Steer
) -> None:
    run = await steersman.start(isolated(shared, repository, NESTED))
    with pytest.raises(
        WorkspaceError, match="could not be carried back: a repository of its own lies in the copy: lib"
    ):
        await steersman.result(run)
    state = await steersman.state(run)
    assert state.finalize
    assert state.finalize.status == "failed"
    assert state.carried
    copy = Path(state.carried.directory)
    assert (copy / "new").exists()
    for place in (repository, repository.parent, repository / "sub"):
        place.mkdir(exist_ok=True)
        other = await steersman.start(shared.process("true", workspace=place))
        with pytest.raises(WorkspaceError, match=f"what run {run} changed .* `steer workspace retry {run}`"):
            await steersman.result(other)
    patient = shared.process("true", workspace=repository)
    waiting = await steersman.start({**patient, "workspace": {**patient["workspace"], "on_gate": "wait"}})
    again = await steersman.retry_workspace(run)
    assert again.finalize.status == "failed"
    assert (await steersman.describe_workspace(run)).waits
    with pytest.raises(NothingKept, match="its copy was not carried back"):
        await steersman.diff(run)
    subprocess.run(["rm", "-rf", "lib"], cwd=copy, check=True)
    assert (await steersman.state(waiting)).closed_as is None
    back = await steersman.retry_workspace(run)
    assert back.finalize.status == "succeeded"
    assert (repository / "new").exists()
    assert not copy.exists()
    assert (await asyncio.wait_for(steersman.result(waiting), 30)).status == "succeeded"
    with pytest.raises(ServerRefused, match="has no changes that wait"):
        await steersman.retry_workspace(run)
    described = await steersman.describe_workspace(run)
    assert (described.finalize.status, described.waits) == ("succeeded", False)
    shown = (await steer("show", run)).out
    assert "carried back" in shown
    assert "not carried back" not in shown
    assert "new" in (await steersman.diff(run)).patch
    undone = await steersman.undo(run)
    assert not undone.conflicts
    assert not (repository / "new").exists()


@pytest.mark.exhaustive
async def test_what_cannot_be_carried_back_can_be_given_up(
    shared: Site, steersman: Steersman, repository: Path, steer: Steer
) -> None:
    run = await steersman.start(isolated(shared, repository, NESTED))
    with pytest.raises(WorkspaceError):
        await steersman.result(run)
    await steersman.discard_workspace(run)
    assert not (repository / "new").exists()
    shown = (await steer("show", run)).out
    assert "not carried back: it was discarded\n" in shown
    assert (await steersman.run(shared.process("true", workspace=repository))).status == "succeeded"
    plain = await steersman.start(shared.process("true", workspace=repository))
    await steersman.result(plain)
    with pytest.raises(NothingKept, match="had no copy"):
        await steersman.discard_workspace(plain)


@pytest.mark.parametrize("decision", ["retry", "discard"])
async def test_what_is_carried_back_in_part_is_called_that(
    shared: Site, steersman: Steersman, repository: Path, steer: Steer, decision: str
) -> None:
    broken = repository / ".git" / "refs" / "heads" / "x"
    broken.write_text("no ref\n")  # git leaves it out, and makes no branch below it
    program = "open('edited','w').write('theirs\\n'); import os; os.system('git branch x/y')"
    run = await steersman.start(isolated(shared, repository, program))
    with pytest.raises(WorkspaceError) as failed:
        await steersman.result(run)
    partly = "a part of it is in the workspace already, and a retry brings the rest"
    assert f"could not be carried back: {partly}: refs/heads/x/y could not be set: " in str(failed.value)
    assert str(shared.state) not in str(failed.value)
    assert (repository / "edited").read_text() == "theirs\n"
    again = await steersman.retry_workspace(run)
    assert str(again.finalize.error).count(partly) == 1
    if decision == "discard":
        said = await steer("workspace", "discard", run, "--yes")
        stays = "what had been carried back of it stays in the workspace"
        assert f"discarded; {stays}" in said.out + said.err
        assert f"not carried back: it was discarded; {stays}\n" in (await steer("show", run)).out
        assert git(repository, "show", f"refs/steersman/conflicts/{run}:edited") == "theirs\n"
        return
    broken.unlink()
    assert (await steersman.retry_workspace(run)).finalize.status == "succeeded"
    assert git(repository, "branch", "--list", "x/y").strip() == "x/y"


async def test_a_workspace_that_cannot_be_copied(shared: Site, steersman: Steersman, repository: Path) -> None:
    (repository / "lib").mkdir()
    made(repository / "lib")
    run = await steersman.start(isolated(shared, repository, "pass"))
    with pytest.raises(WorkspaceError, match="cannot be copied: a repository of its own lies in the workspace"):
        await steersman.result(run)
    assert (await steersman.state(run)).attempt == 0


@pytest.mark.exhaustive
async def test_a_closed_run_that_is_reset_works_in_a_new_copy(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    program = "import pathlib; p = pathlib.Path('count'); p.write_text((p.read_text() if p.exists() else '') + 'x')"
    run = await steersman.start(isolated(shared, repository, program))
    assert (await finalized(steersman, run)).status == "succeeded"
    await reset(shared, run)
    assert (await finalized(steersman, run)).status == "succeeded"
    assert (repository / "count").read_text() == "xx"


@pytest.mark.exhaustive
@pytest.mark.parametrize("when", ["carrying_out", "running", "carrying_back"])
async def test_a_worker_that_is_killed_loses_and_doubles_nothing(site: Site, when: str, tmp_path: Path) -> None:
    """Its git is slow, so that it is killed in the middle of it."""
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text(f'#!/bin/sh\n[ -e {tmp_path}/slow ] && sleep 0.3\nexec /usr/bin/git "$@"\n')
    (slow / "git").chmod(0o755)
    environment = {"PATH": f"{slow}:{os.environ['PATH']}"}
    worker = site.worker(**environment)
    steersman = await site.steersman()
    await worker.ready()
    path = made(site.workspace())
    go = tmp_path / "go"
    if when == "carrying_out":
        (tmp_path / "slow").touch()
    run = await steersman.start(isolated(site, path, EDIT + COMMIT + WAIT.format(go=go)))
    if when == "carrying_back":
        await phase(steersman, run, "running")
        (tmp_path / "slow").touch()
        go.touch()
    await phase(steersman, run, when)
    await asyncio.sleep(1.0 if when != "running" else 0)  # somewhere in the middle
    worker.kill()
    (tmp_path / "slow").unlink(missing_ok=True)
    following = site.worker(**environment)
    await following.ready()
    go.touch()
    found = await asyncio.wait_for(finalized(steersman, run), 60)
    assert (found.status, found.conflicts) == ("succeeded", ())
    assert git(path, "log", "--format=%s") == "second\nfirst\n"
    assert git(path, "status", "--porcelain") == ""
    assert files(path)["edited"][1] == "one\nTWO\nthree\n"


async def test_a_cancel_while_it_is_copied_leaves_nothing(site: Site, tmp_path: Path) -> None:
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text('#!/bin/sh\nsleep 0.3\nexec /usr/bin/git "$@"\n')
    (slow / "git").chmod(0o755)
    worker = site.worker(PATH=f"{slow}:{os.environ['PATH']}")
    steersman = await site.steersman()
    await worker.ready()
    path = made(site.workspace())
    run = await steersman.start(isolated(site, path, "pass"))
    await phase(steersman, run, "carrying_out")
    report = await steersman.stop(run)
    assert (report.outcome, report.phase) == ("stopped", "carrying_out")
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert (await steersman.events(run))[-1].type == "cancelled"
    assert not list(site.state.glob("runs/*/*/copy"))


@pytest.mark.exhaustive
async def test_claude_works_in_the_copy(
    shared: Site, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    edit = tool("Bash", command="echo changed > edited; pwd > where; git status --porcelain")
    script = model.script("isolated", edit, say("done"))
    request = shared.claude(script, workspace=repository, permissions={"mode": "full"})
    run = await steersman.start({**request, "workspace": {**request["workspace"], "isolation": "copy"}})
    result = await steersman.result(run)
    assert (result.text, result.finalize and result.finalize.status) == ("done", "succeeded")
    assert (repository / "edited").read_text() == "changed\n"
    assert (repository / "where").read_text().strip() != str(repository)


@pytest.fixture
async def steer(shared: Site, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(shared.namespace.address, tmp_path, shared.namespace.name)
    yield command
    await command.close()


async def test_ignored_files_that_are_named(steer: Steer, repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text(".env\ncache/\n")
    (repository / ".env").write_text("one\n")
    arguments = ("run", "process", "-w", str(repository), "--include", ".env", "--include", "cache")
    program = "open('.env','a').write('two\\n'); import os; os.mkdir('cache'); open('cache/x','w').close()"
    refused = await steer(*arguments, "--", *python(program))
    assert refused.code != 0
    assert 'include needs isolation "copy"' in refused.err
    said = await steer(*arguments, "--isolated", "--", *python(program))
    assert said.code == 0, said.err
    assert (repository / ".env").read_text() == "one\ntwo\n"
    assert (repository / "cache" / "x").exists()


async def test_what_a_person_sees(steer: Steer, repository: Path, tmp_path: Path) -> None:
    run = f"run-{tmp_path.name}"
    arguments = ("run", "process", "-w", str(repository), "--isolated", "--id")
    said = await steer(*arguments, run, "--", *python(EDIT))
    assert (said.code, said.out.splitlines()[-1].split(" · ")[-1]) == (0, "5 files, +3 -2")
    assert "carried back" in (await steer("show", run)).out
    nothing = await steer("workspace", "discard", run)
    assert (nothing.code, "has no changes that wait to be carried back" in nothing.err) == (5, True)
    failing = await steer(*arguments, f"{run}-2", "--", *python(NESTED))
    assert failing.code == 1
    assert f"`steer workspace retry {run}-2`, or `discard {run}-2`" in failing.err
    retried = await steer("workspace", "retry", f"{run}-2")
    assert (retried.code, "a repository of its own lies in the copy: lib" in retried.err) == (1, True)
    assert (await steer("workspace", "discard", f"{run}-2")).code == 2, "nobody is there to be asked"
    assert (await steer("workspace", "discard", f"{run}-2", "--yes")).code == 0
    assert (await steer("workspace", "discard", f"{run}-2", "--yes")).code != 0
    assert "not carried back: it was discarded\n" in (await steer("show", f"{run}-2")).out


async def test_what_is_merged_late_is_shown_and_undone_as_any_other(
    steer: Steer, steersman: Steersman, repository: Path, tmp_path: Path
) -> None:
    run = f"late-{tmp_path.name}"
    program = NESTED + WAIT.format(go=tmp_path / "go")
    arguments = ("run", "process", "-w", str(repository), "--isolated", "-d", "--id", run)
    assert (await steer(*arguments, "--", *python(program))).code == 0
    copy = await copy_of(steersman, run)
    early = await steer("diff", run)
    assert (early.code, "works in a copy: what it changed is known when it has ended" in early.err) == (3, True)
    (tmp_path / "go").touch()
    with pytest.raises(WorkspaceError):
        await steersman.result(run)
    subprocess.run(["rm", "-rf", "lib"], cwd=copy, check=True)
    assert (await steer("workspace", "retry", run)).code == 0
    shown = (await steer("show", run)).out
    assert "carried back" in shown
    assert "not carried back" not in shown
    assert "+" in (await steer("diff", run)).out
    assert (repository / "new").exists()
    assert (await steer("undo", run, "--yes")).code == 0
    assert not (repository / "new").exists()
