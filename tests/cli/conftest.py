"""`steer` as a process, against a machine played by the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.loopstage import place, stage
from tests.cli.steer import Steer
from tests.client.fixtures import client, loop_stand_in, server, stand_in, steersman, workspace

__all__ = [
    "client",
    "loop_stand_in",
    "place",
    "server",
    "stage",
    "stand_in",
    "steersman",
    "workspace",
]


@pytest.fixture
async def steer(server: str, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(server, tmp_path)
    yield command
    await command.close()
