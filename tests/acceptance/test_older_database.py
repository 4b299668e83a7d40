"""Temporal's database restored from an older backup: what has ended since is not done again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import RunError
from tests.acceptance.loops import ended, process_loop, project, refs
from tests.acceptance.programs import python
from tests.acceptance.site import Site, following
from tests.support.processes import marked, until
from tests.support.workers import WorkerProcess

WORKING = """
import pathlib, sys, time
with open("begun", "a") as file:
    print("begun", file=file)
print("ready", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("done")
"""
STEP = """
grep -c '[x]' PLAN.md >> begun
sed -i '0,/\\[ \\]/s//[x]/' PLAN.md
while [ ! -e %s ]; do sleep 0.05; done
"""


async def working(steersman: Steersman, run: str) -> str:
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    return run


def ended_before(worker: WorkerProcess) -> dict[str, str]:
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if '"ended_before"' in line]
    return {line["run"]: line["ended"] for line in lines}


def log_of(site: Site, run: str) -> str:
    (log,) = site.state.glob(f"runs/{run}/*/events.jsonl")
    return log.read_text()


async def begin_again(site: Site, worker: WorkerProcess, without: Callable[[Path], None]) -> WorkerProcess:
    """Do something to the database while nobody is there; the next worker."""
    await worker.terminate()
    site.server.stop()
    without(site.root / "backup")
    site.server.start()
    worker = site.worker()
    await worker.ready()
    return worker


def begun(workspace: Path) -> int:
    return len((workspace / "begun").read_text().split())


async def test_what_has_ended_since_the_backup_is_not_done_again(site_with_server: Site, mark: str) -> None:
    site, server = site_with_server, site_with_server.server
    go, worker = site.root / "go", site.worker()
    await worker.ready()
    steersman = await site.steersman()
    program = python(WORKING, str(go))
    places = [site.workspace(), site.workspace(), project(site)]
    requests = [site.process(*program, mark=mark, workspace=each) for each in places]
    requests[2]["workspace"]["isolation"] = "copy"
    done, stopped, copied = [await working(steersman, await steersman.start(each)) for each in requests]
    worker = await begin_again(site, worker, server.back_up)
    assert (await steersman.stop(stopped, reason="enough")).outcome == "stopped"
    go.touch()
    results = {run: await steersman.result(run) for run in (done, copied)}
    logs = {run: await steersman.events(run) for run in (done, stopped, copied)}
    go.unlink()
    since = await working(steersman, await steersman.start(site.process(*program, mark=mark)))
    worker = await begin_again(site, worker, server.restore)

    for run, before in results.items():
        result = await steersman.result(run)
        assert (result.status, result.text, result.attempts) == ("succeeded", "ready\ndone", 1)
        assert (result.changes, result.finalize) == (before.changes, before.finalize)
    with pytest.raises(RunError, match=r"had ended before, as cancelled \(enough\)"):
        await steersman.result(stopped)
    assert ended_before(worker) == {done: "done", stopped: "cancelled", copied: "done"}
    assert {run: await steersman.events(run) for run in logs} == logs
    assert [begun(each) for each in places] == [1, 1, 1]
    # Of what has begun since the server knows nothing: a sweep ends it.
    await until(lambda: "cancelled" in log_of(site, since))
    assert not marked(mark)
    assert all(len(list(site.state.glob(f"runs/{run}/*"))) == 1 for run in logs)


async def test_a_loop_goes_on_from_its_files_as_they_are(site_with_server: Site, mark: str) -> None:
    site, server = site_with_server, site_with_server.server
    go, worker = site.root / "go", site.worker()
    await worker.ready()
    steersman = await site.steersman()
    workspace = project(site, {"PLAN.md": "- [ ] one\n- [ ] two\n- [ ] three\n", ".gitignore": "begun\n"})
    loop = await steersman.loops.start(process_loop(site, STEP % go, workspace, mark=mark))
    await until((workspace / "begun").exists)
    worker = await begin_again(site, worker, server.back_up)
    go.touch()
    assert (await ended(steersman, loop)).iterations == 3
    await begin_again(site, worker, server.restore)

    result = await ended(steersman, loop)

    assert (result.status, result.iterations) == ("completed", 1)
    assert begun(workspace) == 3
    assert (await steersman.loops.diff(loop, 1)).patch == ""
    assert result.last_checkpoint
    assert refs(workspace, loop)[1] == result.last_checkpoint.commit
