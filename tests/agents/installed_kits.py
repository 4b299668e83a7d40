"""Kits of agents that other packages bring: entry points of the group `steersman.agent_kits`, named as the agent."""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.agents.kits import Kit
from tests.scripted_model import ScriptedModel

GROUP = "steersman.agent_kits"


def installed_kit(name: str) -> Callable[[Path, ScriptedModel], Kit]:
    """What makes the kit. Raises UsageError where no package, or more than one, has a kit for this agent."""
    found = list(entry_points(group=GROUP, name=name))
    if len(found) != 1:
        packages = ", ".join(sorted(point.dist.name for point in found if point.dist)) or "none"
        raise pytest.UsageError(
            f'agent "{name}": one package has to have its kit, an entry point of {GROUP}; found: {packages}'
        )
    made: Callable[[Path, ScriptedModel], Kit] = found[0].load()
    return made
