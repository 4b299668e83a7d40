"""Servers for the workflows: the dev server, and the one that skips time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from steersman._client.search_attributes import indexed_types
from steersman.converter import DATA_CONVERTER
from tests.support.temporal import Namespace, binary
from tests.workflows.fake_host import FakeHost, replays
from tests.workflows.fake_loop_host import FakeLoopHost


@asynccontextmanager
async def time_skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server on which hours pass in milliseconds, with Steersman's search attributes."""
    path = binary("temporal-test-server")
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=path, data_converter=DATA_CONVERTER
    ) as environment:
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=environment.client.namespace, search_attributes=indexed_types())
        )
        yield environment


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """The server that skips time."""
    async with time_skipping() as environment:
        yield environment


@pytest.fixture
async def fake(temporal: Client) -> FakeHost:
    """A fake host on the dev server; the test starts its workers."""
    return FakeHost(temporal)


@pytest.fixture
async def loop_fake(temporal: Client) -> AsyncIterator[FakeLoopHost]:
    """A fake host for loops on the dev server, with its workers. After the test its loops are replayed."""
    fake = FakeLoopHost(temporal)
    async with fake.at_work():
        yield fake
    for loop in fake.loops:
        await replays(loop)


@pytest.fixture
async def uncached_fake(temporal: Client) -> AsyncIterator[FakeLoopHost]:
    """As `loop_fake`, but each workflow task replays its loop from the first event."""
    async with FakeLoopHost(temporal).at_work(cached=0) as fake:
        yield fake


@pytest.fixture(params=["dev server", "time-skipping server"])
async def any_fake(request: pytest.FixtureRequest, namespace: Namespace) -> AsyncIterator[FakeHost]:
    """A fake host on each of the servers in turn, with its workers."""
    if request.param == "dev server":
        async with FakeHost(await namespace.connect()).at_work(local=True, cached=0) as fake:
            yield fake
        return
    async with time_skipping() as environment, FakeHost(environment.client).at_work() as fake:
        yield fake
