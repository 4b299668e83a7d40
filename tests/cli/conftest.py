"""`steer` as a process, against a machine played by the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.loopstage import place, stage
from tests.cli.steer import Steer
from tests.client.fixtures import client, fake_host, loop_host, server, steersman, workspace

__all__ = [
    "client",
    "fake_host",
    "loop_host",
    "place",
    "server",
    "stage",
    "steersman",
    "workspace",
]


@pytest.fixture
async def steer(server: str, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(server, tmp_path)
    yield command
    await command.close()
