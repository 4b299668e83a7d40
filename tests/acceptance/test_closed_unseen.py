"""A run that closed while nobody led its agent: the next worker ends its log, whoever has died over that before."""

import subprocess
import sys
from pathlib import Path

from activities.temporal.execution import epoch_of
from tests.acceptance.programs import python
from tests.acceptance.site import Site, following
from tests.support.processes import marked, until

TALKING = """
import pathlib, time
print("first", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
print("last", flush=True)
"""
SWEEPER = """
import asyncio, pathlib, sys
from activities.shim import client
asyncio.run(client.connect(pathlib.Path(sys.argv[1]), epoch=int(sys.argv[2])))
"""
"""A worker that dies as it completes the log: it has said to the shim who it is."""
ROOT = Path(__file__).parents[2]


async def test_a_worker_that_died_over_it_is_followed_by_another(site: Site, mark: str) -> None:
    worker, workspace = site.worker(), site.workspace()
    await worker.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process(*python(TALKING), mark=mark, workspace=workspace))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    worker.kill()
    (workspace / "go").touch()
    await until(lambda: not marked(mark))
    workflow = steersman.temporal.get_workflow_handle(run)
    await workflow.terminate()
    closed = (await workflow.describe()).close_time
    assert closed
    (attempt,) = site.state.glob(f"runs/{run}/*/attempts/1")
    subprocess.run([sys.executable, "-c", SWEEPER, str(attempt), str(epoch_of(closed))], cwd=ROOT, check=True)

    await site.worker().ready()

    async def ended() -> bool:
        return [event.type for event in await steersman.events(run)][-1] == "cancelled"

    await until(ended)
    assert [event.text for event in await steersman.events(run) if event.type == "message"] == ["first", "last"]
