"""Fixtures that the tests of the client and of the command line share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from steersman.client import Steersman
from tests.client.fake_host import FakeHost
from tests.client.fake_loop import FakeLoopHost
from tests.support.temporal import DevServer, connect


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dev server."""
    made = DevServer(tmp_path_factory.mktemp("client-temporal"))
    try:
        yield made.start().address
    finally:
        made.kill()


@pytest.fixture
async def client(server: str) -> Client:
    """A Temporal client; waits until the server's namespace is there."""
    return await connect(server)


@pytest.fixture
def steersman(client: Client) -> Steersman:
    return Steersman(client)


@pytest.fixture
async def fake_host(client: Client) -> AsyncIterator[FakeHost]:
    async with FakeHost(client).at_work() as machine:
        yield machine


@pytest.fixture
async def loop_host(client: Client) -> AsyncIterator[FakeLoopHost]:
    machine = FakeLoopHost(client)
    async with machine.at_work():
        yield machine


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    return str(tmp_path)
