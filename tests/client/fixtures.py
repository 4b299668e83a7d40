"""Fixtures that the tests of the client and of the command line share."""

import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from steersman.client import Steersman
from steersman.connection import connect
from tests.client.loopstandin import LoopStandIn
from tests.client.standin import StandIn
from tests.support.temporal import binary, free_port


def dev_server(port: int) -> subprocess.Popen[bytes]:
    """A Temporal dev server in memory, answering."""
    command = [binary("temporal"), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    attributes = ("AgentName=Keyword", "RunPhase=Keyword", "CostUsd=Double")
    command += [part for each in attributes for part in ("--search-attribute", each)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the dev server did not come up")


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a dev server."""
    port = free_port()
    process = dev_server(port)
    yield f"127.0.0.1:{port}"
    end(process)


@pytest.fixture
async def client(server: str) -> Client:
    """A Temporal client; waits until the server's namespace is there."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client = await connect(address=server)
            await client.count_workflows()
            return client
        except Exception:
            if time.monotonic() > deadline:
                raise


@pytest.fixture
def steersman(client: Client) -> Steersman:
    return Steersman(client)


@pytest.fixture
async def stand_in(client: Client) -> AsyncIterator[StandIn]:
    async with StandIn(client).at_work() as machine:
        yield machine


@pytest.fixture
async def loop_stand_in(client: Client) -> AsyncIterator[LoopStandIn]:
    machine = LoopStandIn(client)
    async with machine.at_work():
        yield machine


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    return str(tmp_path)
