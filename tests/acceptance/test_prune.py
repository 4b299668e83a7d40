"""What closed runs leave on disk goes in time; an open run's never does."""

import pytest

from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.support.processes import marked, until


@pytest.mark.exhaustive
async def test_only_closed_runs_are_pruned(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    host = await worker.ready()
    open_run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    done = await steersman.start(site.process("echo", "done"))
    failed = await steersman.start(site.process("false"))
    stopped = await steersman.start(site.process(*python(OBEDIENT)))
    await phase(steersman, stopped, "running")
    await phase(steersman, open_run, "running")
    await steersman.stop(stopped)
    for run in (done, failed):
        await phase(steersman, run, "closed")
    closed = {done, failed, stopped}

    def kept() -> set[str]:
        return {path.name for path in (site.state / "runs").iterdir()}

    assert set((await steersman.prune(host, 1)).pruned) == set()

    async def would_be_pruned() -> bool:
        """What has closed is left out while its shim, which was let go, still ends."""
        return set((await steersman.prune(host, 0, dry_run=True)).pruned) == closed

    await until(would_be_pruned)
    assert kept() == {*closed, open_run}

    swept = await steersman.prune(host, 0)

    assert set(swept.pruned) == closed
    assert swept.bytes_freed > 0
    assert kept() == {open_run}
    # What Temporal keeps of a pruned run is there still; its log is not.
    assert (await steersman.result(done)).text == "done"
    assert [event.type async for event in steersman.attach(done)] == ["done"]
    assert marked(mark)
    await steersman.stop(open_run)
    assert [event.type for event in await steersman.events(open_run)][-1] == "cancelled"


async def test_a_worker_prunes_by_itself_and_leaves_open_runs(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    open_run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    done = await steersman.start(site.process("true"))
    await phase(steersman, open_run, "running")
    await phase(steersman, done, "closed")
    await worker.terminate()

    await site.worker("--keep-days", "0").ready()

    await until(lambda: [path.name for path in (site.state / "runs").iterdir()] == [open_run])
    assert marked(mark)
    assert (await steersman.stop(open_run)).outcome == "stopped"
