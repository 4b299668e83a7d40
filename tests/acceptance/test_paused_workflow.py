"""`temporal workflow pause` holds the workflow, where the namespace allows that: its agent works on."""

import asyncio

import pytest

from steersman.errors import ServerRefused
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, following, gone, phase
from tests.support.processes import marked

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
