"""A state directory restored from an older backup: what has closed since is told as it was, and not done again."""

import os
import subprocess

from steersman.client import Steersman
from steersman.contracts.events import TerminalEvent, is_terminal
from tests.acceptance.loops import project
from tests.acceptance.programs import python
from tests.acceptance.site import Site
from tests.acceptance.test_older_database import WORKING, working
from tests.support.processes import marked, until


async def end_of(steersman: Steersman, run: str) -> TerminalEvent:
    async def ended() -> TerminalEvent | None:
        last = (await steersman.events(run))[-1]
        return last if is_terminal(last) else None

    return await until(ended)


async def test_what_has_closed_since_the_backup_is_not_done_again(site: Site, mark: str) -> None:
    worker, go = site.worker(), site.root / "go"
    await worker.ready()
    host = str((worker.said("worker_ready") or {})["host"])
    steersman = await site.steersman()
    places = [project(site, {"file": "1\n"}) for _ in range(2)]
    requests = [site.process(*python(WORKING, str(go)), mark=mark, workspace=each) for each in places]
    requests[1]["workspace"]["isolation"] = "copy"
    here, copied = [await working(steersman, await steersman.start(each)) for each in requests]
    await worker.terminate()
    subprocess.run(["cp", "-a", site.state, site.root / "backup"], check=True)
    worker = site.worker()
    await worker.ready()
    go.touch()
    results = {run: await steersman.result(run) for run in (here, copied)}
    ends = {run: await end_of(steersman, run) for run in results}
    await worker.terminate()
    await until(lambda: not marked(mark))
    (places[1] / "begun").unlink()  # by a person, who does not want it
    site.state.rename(site.root / "newer")
    os.rename(site.root / "backup", site.state)  # noqa: PTH104 - a directory in its place

    await site.worker().ready()

    for run, end in ends.items():
        told = await end_of(steersman, run)
        assert (told.type, told.changes, told.finalize) == ("done", results[run].changes, results[run].finalize)
        assert (told.changes, told.finalize) == (end.changes, end.finalize)
    assert not (places[1] / "begun").exists()
    assert (await steersman.undo(here)).files == 1
    assert not (places[0] / "begun").exists()
    assert set((await steersman.prune(host, 0)).pruned) == {here, copied}
