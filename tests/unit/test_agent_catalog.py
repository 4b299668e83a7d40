"""The catalog of agents has the agents of the contract, no more and no fewer."""

import subprocess
import sys
from typing import get_args

import pytest

from activities.admission.variables import is_guarded
from activities.agents.catalog import AGENTS
from steersman.contracts.agents import AGENT_VARIABLES, CAPABILITIES
from steersman.contracts.request import AgentName


def test_every_agent_of_the_contract_has_a_row() -> None:
    assert set(AGENTS) == set(CAPABILITIES) == set(AGENT_VARIABLES) == set(get_args(AgentName))
    assert all(kind.make({}, frozenset()).name == name for name, kind in AGENTS.items())


@pytest.mark.parametrize("agent", AGENT_VARIABLES)
def test_a_request_chooses_none_of_an_agents_own_variables(agent: str) -> None:
    assert all(is_guarded(name) for name in AGENT_VARIABLES[agent])


def test_a_worker_starts_without_the_libraries_of_its_agents() -> None:
    """They take longer to import than everything else together; whoever leads such a run loads them."""
    code = "import sys, workers.service; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"claude_agent_sdk", "mcp", "starlette", "typer"} & set(done.stdout.split())
