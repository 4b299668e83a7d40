"""`temporal workflow pause` holds the workflow, where the namespace allows that: its agent works on. So it does where
the activity that leads it is paused.
"""

import asyncio

import pytest

from steersman.client import Steersman
from steersman.errors import RunCancelled, ServerRefused
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, following, gone, phase
from tests.cli.steer import Steer
from tests.support.processes import marked, until

ALLOWED = "frontend.WorkflowPauseEnabled=true"


@pytest.mark.parametrize("site_with_server", [(ALLOWED,)], indirect=True)
async def test_a_paused_run_is_open_keeps_its_agent_and_is_stopped_when_it_goes_on(
    site_with_server: Site, mark: str
) -> None:
    site = site_with_server
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    await phase(steersman, run, "running")
    before = marked(mark)
    await site.temporal("workflow", "pause", "--workflow-id", run)
    await first.terminate()
    await site.worker().ready()
    await asyncio.sleep(3)  # as long as it took for a worker that cannot tell how its run stands to give it up
    assert marked(mark) == before
    (listed,) = await steersman.list()
    assert (listed.id, listed.status) == (run, "running")
    with pytest.raises(ServerRefused, match="temporal workflow unpause"):
        await steersman.stop(run)
    await site.temporal("workflow", "unpause", "--workflow-id", run)
    await gone(mark)
    await phase(steersman, run, "closed")
    assert (await steersman.state(run)).closed_as == "cancelled"


@pytest.mark.parametrize("site_with_server", [(ALLOWED,)], indirect=True)
async def test_a_paused_run_is_led_once_awaited_and_stopped_by_a_terminate(site_with_server: Site, mark: str) -> None:
    site = site_with_server
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    runs = [await steersman.start(site.process(*python(OBEDIENT), mark=mark)) for _ in range(2)]
    for run in runs:
        await phase(steersman, run, "running")
    awaited = asyncio.create_task(steersman.result(runs[0]))
    for run in runs:
        await site.temporal("workflow", "pause", "--workflow-id", run)
    await asyncio.sleep(3)
    assert worker.said("agent_adopted") is None, "nobody takes it over: it is led"
    assert not awaited.done()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(steersman.result(runs[0]), 2)
    await site.temporal("workflow", "terminate", "--workflow-id", runs[1], "--reason", "away with it")
    await until(lambda: len(marked(mark)) == 1)
    await site.temporal("workflow", "unpause", "--workflow-id", runs[0])
    await steersman.stop(runs[0])
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(awaited, 20)
    await gone(mark)


async def test_show_says_of_a_run_that_its_activity_is_paused(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(OBEDIENT), mark=mark))
    await phase(steersman, run, "running")
    handle = steersman.temporal.get_workflow_handle(run)
    (pending,) = (await handle.describe()).raw_description.pending_activities
    of_run = ("--workflow-id", run, "--activity-id", pending.activity_id)
    await shared.temporal("activity", "pause", *of_run)
    steer = Steer(shared.namespace.address, shared.root, shared.namespace.name)
    shown = await steer("show", run)
    assert shown.code == 0
    assert shown.err.startswith("the run's activity is paused in Temporal: until `temporal activity unpause`")
    await shared.temporal("activity", "unpause", *of_run)
    assert "paused" not in (await steer("show", run)).err
    await steersman.stop(run)
    await gone(mark)
