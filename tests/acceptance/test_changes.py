"""What a run changed in its workspace is kept, shown and taken back, and nothing that anybody else did is lost."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from steersman._client.host_calls import call_host
from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentCrashed
from steersman.contracts.events import ProgressEvent
from steersman.contracts.run import Changes
from steersman.contracts.workspace import RunDiffInput, UndoInput, Undone
from steersman.errors import AlreadyRunning, NothingKept, RunCancelled, ServerRefused
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.cli.steer import Steer
from tests.scripted_model import ScriptedModel, say
from tests.support.processes import marked, until

pytestmark = pytest.mark.acceptance

EDIT = """
import os, pathlib
pathlib.Path("edited").write_text("one\\nTWO\\nthree\\n")
pathlib.Path("deleted").unlink()
pathlib.Path("new dir").mkdir()
pathlib.Path("new dir/\\u00e9 name").write_text("created\\n")
pathlib.Path("link").symlink_to("edited")
os.chmod("script", 0o755)
pathlib.Path("ignored.log").write_text("noise")
"""


def git(path: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Person", "-c", "user.email=person@example.invalid")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=path, check=True, capture_output=True, text=True).stdout


def made(path: Path) -> Path:
    """A repository with a commit and a file that is in none."""
    git(path, "init", "-q", "-b", "main")
    for name, text in {
        "edited": "one\ntwo\nthree\n",
        "deleted": "gone\n",
        "script": "#!/bin/sh\n",
        ".gitignore": "*.log\n",
    }.items():
        (path / name).write_text(text)
    git(path, "add", ".")
    git(path, "commit", "-qm", "first")
    (path / "dirty").write_text("a person's own\n")
    return path


@pytest.fixture
def repository(shared: Site) -> Path:
    return made(shared.workspace())


def files(path: Path) -> dict[str, tuple[int, str]]:
    """Every file but those of git: its mode, and its text or target."""
    found = {}
    for each in sorted(path.rglob("*")):
        if ".git" not in each.relative_to(path).parts and (each.is_symlink() or each.is_file()):
            text = str(each.readlink()) if each.is_symlink() else each.read_text()
            found[str(each.relative_to(path))] = (each.lstat().st_mode, text)
    return found


def edits(shared: Site, repository: Path, program: str = EDIT) -> dict[str, object]:
    return shared.process(*python(program), workspace=repository)


async def test_it_is_counted_shown_and_taken_back(shared: Site, steersman: Steersman, repository: Path) -> None:
    before, status = files(repository), git(repository, "status", "--porcelain")
    run = await steersman.start(edits(shared, repository))
    result = await steersman.result(run)
    assert result.changes
    assert (result.changes.files, result.changes.insertions, result.changes.deletions) == (5, 3, 2)
    assert (await steersman.state(run)).changes == result.changes
    assert (await steersman.events(run))[-1].changes == result.changes  # type: ignore[union-attr]

    diff = await steersman.diff(run)
    assert "-two\n+TWO\n" in diff.patch
    assert "5 files changed" in diff.stat
    assert "noise" not in diff.patch, "ignored files are not kept"

    undone = await steersman.undo(run)
    assert (undone.files, undone.conflicts) == (5, ())
    (repository / "ignored.log").unlink()
    assert files(repository) == before
    assert git(repository, "status", "--porcelain") == status, "the index is the person's"
    assert git(repository, "show", f"{undone.ref}:edited") == "one\nTWO\nthree\n"
    assert undone.rescue == git(repository, "rev-parse", undone.ref).strip()
    again = await steersman.undo(run)
    assert (again.files, again.ref, again.rescue) == (0, "", ""), "twice is fine"


async def test_what_was_changed_since_is_left_and_named(shared: Site, steersman: Steersman, repository: Path) -> None:
    run = await steersman.start(edits(shared, repository))
    await steersman.result(run)
    (repository / "edited").write_text("one\nTWO\nthree\nfour\n")
    (repository / "deleted").mkdir()
    (repository / "deleted" / "mine").write_text("here now\n")
    (repository / "new dir" / "mine").write_text("mine\n")
    undone = await steersman.undo(run)
    assert undone.conflicts == ("deleted", "edited")
    assert (repository / "edited").read_text() == "one\nTWO\nthree\nfour\n"
    assert (repository / "deleted" / "mine").read_text() == "here now\n"
    assert [each.name for each in (repository / "new dir").iterdir()] == ["mine"]
    assert not (repository / "link").is_symlink()


async def test_an_open_run_shows_what_it_has_changed_so_far(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    run = await steersman.start(edits(shared, repository, EDIT + OBEDIENT))
    await phase(steersman, run, "running")
    while "+TWO" not in (await steersman.diff(run)).patch:
        pass
    with pytest.raises(AlreadyRunning, match="stop it first"):
        await steersman.undo(run)
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert (await steersman.undo(run)).files == 5


async def test_commits_of_the_agent_stay(shared: Site, steersman: Steersman, repository: Path) -> None:
    commit = "import subprocess as s; open('edited', 'a').write('four\\n'); s.run(['git', '-c', 'user.name=a', '-c', "
    commit += "'user.email=a@b', 'commit', '-qam', 'second'], check=True)"
    run = await steersman.start(edits(shared, repository, commit))
    result = await steersman.result(run)
    assert result.changes
    assert result.changes.files == 1
    await steersman.undo(run)
    assert (repository / "edited").read_text() == "one\ntwo\nthree\n"
    assert git(repository, "log", "--format=%s") == "second\nfirst\n"


async def test_a_failed_run_has_changes_too(shared: Site, steersman: Steersman, repository: Path) -> None:
    run = await steersman.start(edits(shared, repository, EDIT + "raise SystemExit(3)"))
    with pytest.raises(AgentCrashed) as failed:
        await steersman.result(run)
    assert failed.value.result
    assert failed.value.result.changes
    assert failed.value.result.changes.files == 5


async def test_where_there_is_no_repository_nothing_is_said(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process("true"))
    assert (await steersman.result(run)).changes is None
    with pytest.raises(NothingKept, match="in no git repository"):
        await steersman.diff(run)
    with pytest.raises(NothingKept, match="in no git repository"):
        await steersman.undo(run)


async def test_refs_that_the_agent_overwrote_fool_nobody(shared: Site, steersman: Steersman, repository: Path) -> None:
    """What was found is named by its commit in the workflow's history, out of the agent's reach."""
    forge = EDIT + "\nimport subprocess\nfor ref in subprocess.run(['git', 'for-each-ref', '--format=%(refname)', "
    forge += "'refs/steersman'], capture_output=True, text=True, check=True).stdout.split():\n"
    forge += "    subprocess.run(['git', 'update-ref', ref, 'HEAD'], check=True)\n"
    run = await steersman.start(edits(shared, repository, forge))
    result = await steersman.result(run)
    assert result.changes
    assert result.changes.files == 5
    assert "+TWO" in (await steersman.diff(run)).patch


async def test_a_run_says_why_it_cannot_know(shared: Site, steersman: Steersman, repository: Path) -> None:
    spoil = "import shutil; shutil.rmtree('.git/refs')"
    run = await steersman.start(edits(shared, repository, spoil))
    changes = (await steersman.result(run)).changes
    assert isinstance(changes, Changes)
    assert changes.after is None
    assert changes.error
    with pytest.raises(NothingKept, match="were not kept"):
        await steersman.undo(run)


@pytest.fixture
async def steer(shared: Site, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(shared.namespace.address, tmp_path, shared.namespace.name)
    yield command
    await command.close()


async def test_nobody_is_asked_for_an_undo_that_does_nothing(
    shared: Site, steersman: Steersman, steer: Steer, repository: Path
) -> None:
    async def undone(run: str) -> tuple[int, str]:
        said = await steer("undo", run)
        return said.code, said.err

    unchanged = await steersman.start(edits(shared, repository, "pass"))
    await steersman.result(unchanged)
    assert await undone(unchanged) == (0, f"run {unchanged} changed no file: there is nothing to undo\n")
    assert (await steer("undo", unchanged, "--json")).json["files"] == 0
    outside = await steersman.start(shared.process(*python("pass")))
    await steersman.result(outside)
    code, words = await undone(outside)
    assert (code, "nothing was kept of its workspace" in words) == (3, True)
    code, words = await undone(still := await steersman.start(shared.process("sleep", "600")))
    assert (code, words) == (5, f"error: run {still} is still at work: stop it first\n")
    await steersman.stop(still)

    changed = await steersman.start(edits(shared, repository))
    await steersman.result(changed)
    other = await steersman.start(edits(shared, repository, OBEDIENT))
    await phase(steersman, other, "running")
    code, words = await undone(changed)
    assert (code, words) == (5, f"error: run {changed}: run {other} is at work in the workspace: stop it first\n")
    await steersman.stop(other)


async def test_a_difference_in_a_pipe_is_a_patch(
    shared: Site, steersman: Steersman, steer: Steer, repository: Path
) -> None:
    text = "all:\\n\\techo  \\r\\n"
    run = await steersman.start(edits(shared, repository, f'open("Makefile", "w", newline="").write("{text}")'))
    await steersman.result(run)
    patch = (await steer("diff", run)).out
    subprocess.run(["git", "apply", "-R"], input=patch.encode(), cwd=repository, check=True)
    assert not (repository / "Makefile").exists()


@pytest.mark.exhaustive
async def test_what_a_person_sees(steer: Steer, repository: Path, tmp_path: Path) -> None:
    before = files(repository)
    said = await steer(
        "run", "process", "-w", str(repository), "--id", (run := f"run-{tmp_path.name}"), "--", *python(EDIT)
    )
    assert said.out.splitlines()[-1].endswith(" · 5 files, +3 -2")
    assert "5 files, +3 -2" in (await steer("show", run)).out
    shown = await steer("diff", run)
    assert "5 files changed" in shown.out
    assert "+TWO" in shown.out
    stat = await steer("diff", run, "--stat")
    assert "5 files changed" in stat.out
    assert "+TWO" not in stat.out
    assert "+TWO" in (await steer("diff", run, "--json")).json["patch"]

    assert (await steer("undo", run)).code == 2, "nobody is there to be asked"
    terminal = await steer.at_terminal("undo", run)
    await terminal.until("5 files, +3 -2")
    await terminal.until("Type undo to do it >")
    (repository / "edited").write_text("mine\n")
    terminal.type("undo\n")
    await terminal.until("4 files as before the run again")
    await terminal.until("something is in the way: edited")
    await terminal.until("git show ")
    kept = (await terminal.until("\n")).strip()
    assert await terminal.ended() == 1
    assert git(repository, "show", f"{kept}:edited") == "mine\n"
    (repository / "edited").write_text(before["edited"][1])
    (repository / "ignored.log").unlink()
    assert files(repository) == before
    assert (await steer("undo", run, "--yes")).out == "all files are as before the run already\n"
    assert (await steer("diff", "run-that-never-was")).code == 3


async def test_prune_takes_its_checkpoints_along(site: Site) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    host = await worker.ready()
    path = site.workspace()
    git(path, "init", "-q")
    result = await steersman.run(site.process(*python("open('new', 'w').close()"), workspace=path), run_id="run-pruned")
    assert result.changes
    assert result.changes.files == 1
    assert len(git(path, "for-each-ref", "refs/steersman").splitlines()) == 2

    async def pruned() -> bool:
        return "run-pruned" in (await steersman.prune(host, keep_days=0)).pruned

    await until(pruned)
    assert git(path, "for-each-ref", "refs/steersman") == ""
    with pytest.raises(NothingKept, match="is not kept on this host any more"):
        await steersman.diff("run-pruned")


async def test_an_agent_that_may_only_read_costs_no_checkpoint(
    shared: Site, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    request = shared.claude(
        model.script("reads", say("I looked")), workspace=repository, permissions={"mode": "read_only"}
    )
    assert (await steersman.result(await steersman.start(request))).changes is None
    assert git(repository, "for-each-ref", "refs/steersman") == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_worker_that_goes_away_loses_no_baseline(site: Site, end: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    path = site.workspace()
    git(path, "init", "-q")
    (path / "edited").write_text("one\n")
    program = "import pathlib, time\npathlib.Path('edited').write_text('two\\n')\n"
    program += "while not pathlib.Path('go').exists(): time.sleep(0.02)\n"
    run = await steersman.start(site.process(*python(program), workspace=path))
    await until(lambda: (path / "edited").read_text() == "two\n")
    worker.kill() if end == "kill" else await worker.terminate()
    following = site.worker()
    await following.ready()
    (path / "go").write_text("")
    changes = (await asyncio.wait_for(steersman.result(run), 40)).changes
    assert changes
    assert changes.files == 2
    assert "-one\n+two\n" in (await steersman.diff(run)).patch


@pytest.fixture
def slow_git(tmp_path: Path) -> dict[str, str]:
    """The environment of a worker whose git takes a minute."""
    (tmp_path / "git").write_text("#!/bin/sh\nwhile :; do :; done\n")
    (tmp_path / "git").chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.exhaustive
async def test_a_git_that_takes_too_long_costs_a_run_ten_seconds(site: Site, slow_git: dict[str, str]) -> None:
    worker = site.worker(**slow_git)
    steersman = await site.steersman()
    await worker.ready()
    path = site.workspace()
    git(path, "init", "-q")
    run = await steersman.start(site.process("true", workspace=path))
    assert (await asyncio.wait_for(steersman.result(run), 30)).changes is None
    (told,) = [event for event in await steersman.events(run) if isinstance(event, ProgressEvent)]
    assert told.text == "what this run changes in its workspace will not be known: it took 10 s"


async def test_a_stop_does_not_wait_for_git(site: Site, slow_git: dict[str, str], mark: str) -> None:
    worker = site.worker(**slow_git)
    steersman = await site.steersman()
    await worker.ready()
    path = site.workspace()
    git(path, "init", "-q")
    run = await steersman.start(site.process(*python(OBEDIENT), workspace=path, mark=mark))
    await phase(steersman, run, "preparing")
    begun = time.monotonic()
    assert (await steersman.stop(run)).outcome == "stopped"
    assert time.monotonic() - begun < 8
    assert not marked(mark)


async def test_no_other_commit_is_put_there_or_shown(shared: Site, steersman: Steersman, repository: Path) -> None:
    """Who may call activities of the host, and start runs that only read, must not write by way of an undo."""
    (repository / "secret").write_text("of another time\n")
    git(repository, "add", "secret")
    git(repository, "commit", "-qm", "second")
    git(repository, "rm", "-q", "secret")
    git(repository, "commit", "-qm", "third")
    run = await steersman.start(edits(shared, repository))
    await steersman.result(run)
    state = await steersman.state(run)
    assert state.changes
    key = RunKey(run=run, execution=state.execution or "")
    earlier, own = git(repository, "rev-parse", "HEAD~1").strip(), state.changes
    for before, after in ((earlier, own.after), (own.before, earlier), (earlier, own.before)):
        for activity, argument in (
            (names.DIFF_RUN, RunDiffInput(key=key, workspace=str(repository), before=before, after=after)),
            (names.UNDO_RUN, UndoInput(key=key, workspace=str(repository), before=before, after=after or "")),
        ):
            with pytest.raises(ServerRefused, match="not kept on this host"):
                await call_host(steersman.temporal, state.host or "", activity, argument, Undone)
    other = shared.workspace()
    wrong = UndoInput(key=key, workspace=str(other), before=own.before, after=own.after or "")
    with pytest.raises(ServerRefused, match="not kept on this host"):
        await call_host(steersman.temporal, state.host or "", names.UNDO_RUN, wrong, Undone)
    assert not (repository / "secret").exists()
    assert "of another time" not in (await steersman.diff(run)).patch


async def test_what_lies_beside_the_workspace_is_somebody_elses(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    for name in ("mine", "theirs"):
        (repository / name).mkdir()
        (repository / name / "file").write_text("before\n")
    program = "import pathlib\nfor each in ('file', '../theirs/file'): pathlib.Path(each).write_text('after\\n')\n"
    run = await steersman.start(shared.process(*python(program), workspace=repository / "mine"))
    result = await steersman.result(run)
    assert result.changes
    assert (result.changes.files, result.changes.insertions, result.changes.deletions) == (1, 1, 1)
    diff = await steersman.diff(run)
    assert "mine/file" in diff.patch
    assert "theirs" not in diff.patch + diff.stat
    assert (await steersman.undo(run)).files == 1
    assert (repository / "mine" / "file").read_text() == "before\n"
    assert (repository / "theirs" / "file").read_text() == "after\n"


@pytest.mark.exhaustive
async def test_nothing_is_undone_under_the_hands_of_another_run(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    run = await steersman.start(edits(shared, repository))
    await steersman.result(run)
    (repository / "below").mkdir()
    for place in (repository, repository / "below"):
        other = await steersman.start(edits(shared, place, OBEDIENT))
        await phase(steersman, other, "running")
        with pytest.raises(ServerRefused, match=f"run {other} is at work"):
            await steersman.undo(run)
        await steersman.stop(other)
        with pytest.raises(RunCancelled):
            await steersman.result(other)
    assert (await steersman.undo(run)).files == 5


async def test_looking_at_an_open_run_keeps_nothing_of_what_lies_beside_its_workspace(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    (repository / "mine").mkdir()
    (repository / "mine" / "file").write_text("before\n")
    secret = "never to be kept"
    (repository / "beside").write_text(secret)
    run = await steersman.start(shared.process(*python(OBEDIENT), workspace=repository / "mine"))
    await phase(steersman, run, "running")
    assert (await steersman.diff(run)).patch == ""
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    blob = subprocess.run(
        ["git", "hash-object", "--stdin"], cwd=repository, input=secret, check=True, capture_output=True, text=True
    ).stdout.strip()
    assert subprocess.run(["git", "cat-file", "-e", blob], cwd=repository, check=False).returncode != 0
