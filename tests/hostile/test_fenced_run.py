"""A run that is taken from its worker by something that Temporal knows nothing of."""

import asyncio
from pathlib import Path

import pytest

from activities.shim.client import connect
from steersman.client import Steersman
from steersman.contracts.errors import AgentFailed
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, gone, phase
from tests.support.files import below

pytestmark = [pytest.mark.acceptance, pytest.mark.linux]


def file_of(site: Site, run: str, name: str) -> Path:
    return next(path for path in below(site.state) if path.name == name and run in str(path))


async def test_a_run_whose_shim_was_taken_hold_of_is_stopped(shared: Site, steersman: Steersman) -> None:
    """By a process that does not descend from the agent, as one may that it had somebody else start."""
    run = await steersman.start(shared.process(*python(OBEDIENT), mark="seized-shim"))
    await phase(steersman, run, "running")
    attempt = file_of(shared, run, "shim.sock").parent
    async with await connect(attempt, epoch=1 << 62):
        with pytest.raises(AgentFailed, match="no worker took hold"):
            await asyncio.wait_for(steersman.result(run), 20)
        await gone("seized-shim")
    assert shared.workers[-1].said("run_seized")


@pytest.mark.exhaustive
async def test_a_run_whose_log_was_taken_hold_of_is_stopped(site: Site) -> None:
    """Or by a worker of before the server's clock was set back: nobody can tell."""
    first = site.worker()
    steersman = await site.steersman()
    await first.ready()
    run = await steersman.start(site.process(*python(OBEDIENT), mark="seized-log"))
    await phase(steersman, run, "running")
    file_of(site, run, "events.epoch").write_text(str(1 << 62))
    second = site.worker()
    await second.ready()
    assert await first.terminate() == 0
    with pytest.raises(AgentFailed, match=r"no worker took hold .* or the server's clock was set back"):
        await asyncio.wait_for(steersman.result(run), 40)
    await gone("seized-log")
    assert first.said("run_seized") or second.said("run_seized")
