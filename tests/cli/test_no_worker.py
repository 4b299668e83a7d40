"""`steer` about a run whose host has no worker, while others decide for its workflow."""

import asyncio
import re
from datetime import datetime, time, timedelta

import pytest
from temporalio.worker import Worker

from steersman.client import Steersman
from steersman.contracts import names
from tests.cli.steer import Steer
from tests.cli.test_commands import begin
from tests.client.fake_host import FakeHost

pytestmark = pytest.mark.acceptance

AWAY = "away"
LEASE_S = 900
"""As of a request that says nothing of it."""


async def left_alone(fake_host: FakeHost, steersman: Steersman, workspace: str) -> str:
    """A run at work on a host whose worker has ended since."""
    fake_host.host = AWAY
    async with Worker(steersman.temporal, task_queue=names.runs_queue(AWAY), activities=[fake_host.run_agent]):
        return await begin(steersman, workspace)


async def test_show_says_that_nobody_leads_it(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    led = await begin(steersman, workspace)
    shown = await steer("show", led)
    assert (shown.code, shown.err) == (0, "")
    shown = await steer("show", await left_alone(fake_host, steersman, workspace))
    assert shown.code == 0
    assert shown.err.startswith(f"no worker of host {AWAY} answers: the run waits for one;")
    assert re.search(r"^phase +running$", shown.out, re.MULTILINE)


async def test_stop_says_that_it_waits_and_until_when(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await left_alone(fake_host, steersman, workspace)
    lease_over = datetime.now().astimezone() + timedelta(seconds=LEASE_S)
    process = await steer.start("stop", run)
    assert process.stderr
    async with asyncio.timeout(60):
        told = (await process.stderr.read(1000)).decode()
    found = re.match(rf"no worker of host {AWAY} takes the stop: it waits for one until (\S+), ", told)
    assert found, told
    until = datetime.combine(lease_over.date(), time.fromisoformat(found[1])).astimezone()
    assert timedelta(0) < (until - lease_over) % timedelta(days=1) < timedelta(minutes=5)
    process.kill()
    await steersman.temporal.get_workflow_handle(run).terminate()
