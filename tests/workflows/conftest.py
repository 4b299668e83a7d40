"""Servers for the workflows: the dev server, and the one that skips time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from steersman._client.search_attributes import indexed_types
from steersman.converter import DATA_CONVERTER
from tests.support.temporal import binary, connect, dev_server, temporal
from tests.workflows.loop_machine import LoopMachine
from tests.workflows.loop_watch import replays
from tests.workflows.machine import Machine

__all__ = ["dev_server", "temporal"]


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
async def machine(temporal: Client) -> Machine:
    """A machine on the dev server; its workers are started by the test."""
    return Machine(temporal)


@pytest.fixture
async def looping(temporal: Client) -> AsyncIterator[LoopMachine]:
    """A machine for loops on the dev server, at work. What the loops of the test did is replayed after it."""
    machine = LoopMachine(temporal)
    async with machine.at_work():
        yield machine
    for loop in machine.loops:
        await replays(loop)


@pytest.fixture
async def forgetful(temporal: Client) -> AsyncIterator[LoopMachine]:
    """As `looping`, but each workflow task replays its loop from the first event."""
    async with LoopMachine(temporal).at_work(cached=0) as machine:
        yield machine


@pytest.fixture(params=["dev server", "time-skipping server"])
async def anywhere(request: pytest.FixtureRequest) -> AsyncIterator[Machine]:
    """A machine on each of the servers in turn, at work."""
    if request.param == "dev server":
        client = await connect(request.getfixturevalue("dev_server").address)
        async with Machine(client).at_work(local=True) as machine:
            yield machine
        return
    async with time_skipping() as environment, Machine(environment.client).at_work() as machine:
        yield machine
