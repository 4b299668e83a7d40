"""A worker's own start and end, whatever its server does meanwhile."""

import asyncio

import pytest

from tests.acceptance.site import Site
from tests.support.processes import until
from tests.support.slow_server import slow_server


@pytest.mark.exhaustive
async def test_a_server_that_is_slow_at_the_start_ends_no_worker(site: Site) -> None:
    async with slow_server(site.namespace.port, "DescribeNamespace") as slow:
        worker = site.worker(TEMPORAL_ADDRESS=slow.address)
        await until(lambda: slow.held)
        # Longer than a poll for ended workers ever took: what is slow has not ended.
        await asyncio.sleep(3)
        assert worker.said("worker_failed") is None
        assert worker.said("worker_ready") is None, "it does not poll yet"
        slow.go_on()
        await worker.ready()
        steersman = await site.steersman()
        assert (await steersman.run(site.process("echo", "hello"))).text == "hello"
        assert await worker.terminate() == 0


async def test_a_worker_that_waits_for_its_server_ends_when_it_is_told(site: Site) -> None:
    async with slow_server(site.namespace.port, "DescribeNamespace") as slow:
        worker = site.worker(TEMPORAL_ADDRESS=slow.address)
        await until(lambda: slow.held)
        async with asyncio.timeout(15):
            assert await worker.terminate() == 0
