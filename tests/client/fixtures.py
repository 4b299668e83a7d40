"""Fixtures that the tests of the client and of the command line share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from steersman.client import Steersman
from tests.client.fake_host import FakeHost
from tests.client.fake_loop import FakeLoopHost


@pytest.fixture
async def client(temporal: Client) -> Client:
    """A Temporal client."""
    return temporal


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
