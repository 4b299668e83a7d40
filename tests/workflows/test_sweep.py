"""A sweep whose worker dies: the schedule begins no other one before it is over."""

import asyncio
from datetime import timedelta

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from steersman.contracts import names
from workflows.host_sweep import SweepHost
from workflows.runner import ReplaySafeRunner

pytestmark = pytest.mark.integration

HOST = "fallen"


async def test_the_server_gives_it_up_soon(temporal: Client) -> None:
    timeouts = asyncio.get_running_loop().create_future()

    @activity.defn(name=names.SWEEP_HOST)
    async def sweep_host() -> None:
        timeouts.set_result((activity.info().heartbeat_timeout, activity.info().retry_policy))

    workflows = Worker(temporal, task_queue="sweeps", workflows=[SweepHost], workflow_runner=ReplaySafeRunner())
    activities = Worker(temporal, task_queue=names.host_queue(HOST), activities=[sweep_host])
    async with workflows, activities:
        await temporal.start_workflow(names.SWEEP_WORKFLOW, HOST, id="sweep", task_queue="sweeps")
        heartbeat, retries = await timeouts
    assert heartbeat == timedelta(minutes=1)
    assert retries is not None
    assert retries.maximum_attempts == 1
