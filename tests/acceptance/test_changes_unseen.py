"""What a run changed is kept also where the run could not see to that itself: it was terminated, or it is a loop's."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from steersman._client.host_calls import call_host
from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.events import CancelledEvent
from steersman.contracts.workspace import LoopStep, UndoInput, Undone
from steersman.errors import NothingKept, RunTerminated, ServerRefused
from tests.acceptance.loops import ended, process_loop, project, reaches, tick
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.acceptance.test_changes import EDIT, edits, files, git, made
from tests.cli.steer import Steer
from tests.support.processes import until

pytestmark = pytest.mark.acceptance

LATE = "was closed: what anybody did until then counts as its"


@pytest.fixture
def repository(shared: Site) -> Path:
    return made(shared.workspace())


@pytest.fixture
async def steer(shared: Site, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(shared.namespace.address, tmp_path, shared.namespace.name)
    yield command
    await command.close()


async def terminated(site: Site, steersman: Steersman, run: str) -> None:
    await site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "enough")
    with pytest.raises(RunTerminated):
        await steersman.result(run)


async def changed(steersman: Steersman, run: str) -> None:
    """Wait until the run has made its changes."""
    await phase(steersman, run, "running")

    async def there() -> bool:
        return "+TWO" in (await steersman.diff(run)).patch

    await until(there)


@pytest.mark.exhaustive
async def test_what_a_terminated_run_changed_is_taken_back(
    shared: Site, steersman: Steersman, steer: Steer, repository: Path
) -> None:
    before = files(repository)
    run = await steersman.start(edits(shared, repository, EDIT + OBEDIENT))
    await changed(steersman, run)
    await terminated(shared, steersman, run)

    state = await steersman.state(run)
    assert state.closed_as == "terminated"
    assert state.changes
    assert (state.changes.files, state.changes.insertions, state.changes.deletions) == (5, 3, 2)
    last = (await steersman.events(run))[-1]
    assert isinstance(last, CancelledEvent)
    assert last.changes == state.changes
    assert last.terminated
    (repository / "edited").write_text("mine\n")
    assert "mine" not in (await steersman.diff(run)).patch, "it is what the run has left"
    shown = await steer("diff", run)
    assert "+TWO" in shown.out
    assert "were not kept" not in shown.err
    assert LATE not in shown.err
    undone = await steersman.undo(run)
    assert (undone.files, undone.conflicts) == (4, ("edited",))
    (repository / "edited").write_text(before["edited"][1])
    (repository / "ignored.log").unlink()
    assert files(repository) == before


@pytest.mark.exhaustive
async def test_one_that_nobody_saw_end_is_kept_by_the_next_worker(site: Site) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    repository = made(site.workspace())
    before = files(repository)
    run = await steersman.start(edits(site, repository, EDIT + OBEDIENT))
    await changed(steersman, run)
    worker.kill()
    await site.temporal("workflow", "terminate", "--workflow-id", run)
    await site.worker().ready()

    async def kept() -> bool:
        return (await steersman.state(run)).changes is not None

    await until(kept)
    assert (await steersman.state(run)).changes.files == 5  # type: ignore[union-attr]
    assert (await steersman.undo(run)).files == 5
    (repository / "ignored.log").unlink()
    assert files(repository) == before
    assert not (site.state / "holds").exists() or not [*(site.state / "holds").glob("*.json")]


async def test_no_other_run_begins_before_it_is_kept(shared: Site, steersman: Steersman, repository: Path) -> None:
    run = await steersman.start(edits(shared, repository, EDIT + OBEDIENT))
    await changed(steersman, run)
    request = shared.process(*python("open('edited', 'a').write('next')"), workspace=repository)
    request["workspace"]["on_overlap"] = "queue"
    waits = await steersman.start(request)
    await phase(steersman, waits, "queued")
    await terminated(shared, steersman, run)
    assert (await asyncio.wait_for(steersman.result(waits), 30)).changes
    assert "next" not in (await steersman.diff(run)).patch
    assert (await steersman.state(waits)).changes.files == 1  # type: ignore[union-attr]


@pytest.mark.exhaustive
async def test_a_baseline_that_the_agent_has_written_itself_counts_for_nothing(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    (repository / "secret").write_text("of another time\n")
    git(repository, "add", "secret")
    git(repository, "commit", "-qm", "second")
    other = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "rm", "-q", "secret")
    run = await steersman.start(edits(shared, repository, EDIT + OBEDIENT))
    await changed(steersman, run)
    (kept,) = (shared.state / "runs" / run).glob("*/baseline.json")
    told = json.loads(kept.read_text())
    kept.write_text(json.dumps({**told, "commit": other}))
    await terminated(shared, steersman, run)
    changes = (await steersman.state(run)).changes
    assert changes
    assert changes.before == told["commit"]
    assert changes.files == 5
    with pytest.raises(NothingKept, match="not kept on this host"):
        await steersman.undo(run)
    assert not (repository / "secret").exists()

    plain = shared.workspace()
    run = await steersman.start(shared.process(*python(OBEDIENT), workspace=plain))
    await phase(steersman, run, "running")
    (directory,) = (shared.state / "runs" / run).iterdir()
    (directory / "baseline.json").write_text(json.dumps({"commit": other, "workspace": str(repository)}))
    await terminated(shared, steersman, run)
    assert (await steersman.state(run)).changes is None
    with pytest.raises(NothingKept):
        await steersman.undo(run)


async def test_what_a_loops_run_changed_is_shown_and_taken_back(
    shared: Site, steersman: Steersman, steer: Steer
) -> None:
    workspace = project(shared)
    script = f"if [ -e first ]; then echo 2 > second; {tick('two')}; else echo 1 > first; {tick('one')}; fi"
    verify = {"verify": {"command": "true"}, "items": {"kind": "checkboxes"}}
    loop = await steersman.loops.start(process_loop(shared, script, workspace, mode="checkpoint", done=verify))
    await reaches(steersman, loop, "waiting_for_decision")
    first = await steersman.diff(f"{loop}-1")
    assert "first" in first.stat
    with pytest.raises(ServerRefused, match=f"loop {loop} is at work"):
        await steersman.undo(f"{loop}-1")
    await steersman.loops.resume(loop, mode="autonomous")
    await ended(steersman, loop)

    assert "second" not in (await steersman.diff(f"{loop}-1")).stat
    diff = await steer("diff", f"{loop}-2")
    assert "second" in diff.out
    assert "first" not in diff.out
    assert "were not kept" not in diff.err
    with pytest.raises(NothingKept, match="no checkpoint of just before it"):
        await steersman.diff(f"{loop}-1-verify")

    undone = await steersman.undo(f"{loop}-2")
    assert (undone.files, undone.conflicts) == (2, ())
    assert not (workspace / "second").exists()
    assert (workspace / "first").exists()
    assert "[x] one\n- [ ] two" in (workspace / "PLAN.md").read_text()
    assert git(workspace, "show", f"{undone.ref}:second") == "2\n"
    refs = git(workspace, "for-each-ref", "--format=%(refname)", "refs/steersman").split()
    assert [each for each in refs if "/runs%2F" in each] == [undone.ref], (
        "an iteration costs no commit but its checkpoint"
    )


async def test_a_loops_run_at_work_shows_what_it_has_changed_so_far(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    loop = await steersman.loops.start(process_loop(shared, "echo 1 > first; sleep 600", workspace))
    await reaches(steersman, loop, lambda now: now.run is not None)

    async def shown() -> bool:
        with suppress(NothingKept):  # it has not been claimed yet
            return "first" in (await steersman.diff(f"{loop}-1")).stat
        return False

    await until(shown)
    await steersman.loops.stop(loop)
    assert "first" in (await steersman.diff(f"{loop}-1")).stat
    assert not (await steersman.diff(f"{loop}-1")).now


@pytest.mark.exhaustive
async def test_no_other_commit_of_a_loop_is_put_there(shared: Site, steersman: Steersman) -> None:
    """What a caller says of a loop's checkpoints is held against the loop's own word."""
    workspace = project(shared)
    git(workspace, "rm", "-q", "--cached", "src/app.py")
    script = f"if [ -e first ]; then {tick('two')}; else echo 1 > first; {tick('one')}; fi"
    loop = await steersman.loops.start(process_loop(shared, script, workspace))
    await ended(steersman, loop)
    state = await steersman.state(f"{loop}-2")
    key = RunKey(run=f"{loop}-2", execution=state.execution or "")
    zero, one, two = (each.commit or "" for each in await steersman.loops.checkpoints(loop))
    head = git(workspace, "rev-parse", "HEAD").strip()
    for before, after, older, newer in (
        (head, two, 1, 2),
        (one, head, 1, 2),
        (zero, two, 0, 2),
        (zero, one, 0, 1),
        (one, two, 1, None),
    ):
        asked = UndoInput(
            key=key,
            workspace=str(workspace),
            before=before,
            after=after,
            step=LoopStep(loop=loop, older=older, newer=newer),
        )
        with pytest.raises(ServerRefused, match="not kept on this host"):
            await call_host(steersman.temporal, state.host or "", names.UNDO_RUN, asked, Undone)
    elsewhere = UndoInput(
        key=key, workspace=str(shared.workspace()), before=one, after=two, step=LoopStep(loop=loop, older=1, newer=2)
    )
    with pytest.raises(ServerRefused, match="not kept on this host"):
        await call_host(steersman.temporal, state.host or "", names.UNDO_RUN, elsewhere, Undone)
    assert (workspace / "first").exists()
