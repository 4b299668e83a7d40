"""Fixtures that the tests of the client and of the command line share."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from steersman.client import Steersman
from tests.client.fake_host import FakeHost
from tests.client.fake_loop import FakeLoopHost
from tests.support.temporal import Namespace, new_namespace


@pytest.fixture(scope="session")
def client_namespace(dev_server: str) -> Namespace:
    """A namespace apart from the workflows' tests: some of these look at every open loop there is."""
    return asyncio.run(new_namespace(dev_server))


@pytest.fixture
async def client(client_namespace: Namespace) -> Client:
    """A Temporal client."""
    return await client_namespace.connect()


@pytest.fixture
def steersman(client: Client) -> Steersman:
    return Steersman(client)


@pytest.fixture
async def fake_host(client: Client) -> AsyncIterator[FakeHost]:
    async with FakeHost(client).at_work() as machine:
        yield machine
        await machine.terminate_runs()


@pytest.fixture
async def loop_host(client: Client) -> AsyncIterator[FakeLoopHost]:
    machine = FakeLoopHost(client)
    async with machine.at_work():
        yield machine
        await machine.terminate_runs()


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    return str(tmp_path)
