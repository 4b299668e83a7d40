"""`steer` as a process, against a machine played by the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.loopstage import place, stage
from tests.cli.steer import Steer
from tests.client.fixtures import client, client_namespace, fake_host, loop_host, steersman, workspace
from tests.support.temporal import Namespace

__all__ = [
    "client",
    "client_namespace",
    "fake_host",
    "loop_host",
    "place",
    "stage",
    "steersman",
    "workspace",
]


@pytest.fixture
async def steer(client_namespace: Namespace, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(client_namespace.address, tmp_path, client_namespace.name)
    yield command
    await command.close()
