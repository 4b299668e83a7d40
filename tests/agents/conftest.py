"""The agents to which the conformance suite is applied."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.shim.client import ShimError, connect
from tests.agents.kits import ClaudeKit, Kit, ProcessKit
from tests.scripted_model import ScriptedModel
from tests.support.files import below


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as model:
        yield model


@pytest.fixture(params=["process", "claude"])
def kit(request: pytest.FixtureRequest, tmp_path: Path, model: ScriptedModel) -> Kit:
    """Each agent in turn."""
    return ProcessKit(tmp_path) if request.param == "process" else ClaudeKit(tmp_path, model)


@pytest.fixture
def claude(tmp_path: Path, model: ScriptedModel) -> ClaudeKit:
    return ClaudeKit(tmp_path, model)


@pytest.fixture
def process(tmp_path: Path) -> ProcessKit:
    return ProcessKit(tmp_path)


@pytest.fixture(autouse=True)
def no_shim_is_left(tmp_path: Path) -> Iterator[None]:
    """What a test started ends with it, also where the test's point is that nobody stops it."""
    yield
    asyncio.run(_stop_all(tmp_path))


async def _stop_all(root: Path) -> None:
    for attempt in [path.parent for path in below(root) if path.name == "shim.sock"]:
        with contextlib.suppress(ShimError):
            async with await connect(attempt, epoch=None) as connection:
                await connection.stop(terminate_after=timedelta(0), kill_after=timedelta(0))
                await connection.release()
