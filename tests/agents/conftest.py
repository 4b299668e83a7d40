"""The agents to which the conformance suite is applied."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agents.kits import ClaudeKit, Kit, ProcessKit
from tests.scripted_model import ScriptedModel


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
