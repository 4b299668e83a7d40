"""The catalog of agents has the agents of the contract, no more and no fewer."""

import subprocess
import sys
from typing import Any, get_args

import pytest

from activities.admission.variables import is_guarded
from activities.agents.catalog import AGENTS
from steersman.contracts.agents import AGENT_VARIABLES, CAPABILITIES, WHERE_ASKED_FOR
from steersman.contracts.request import AgentName, parse_request

FIELDS: dict[str, dict[str, Any]] = {
    "claude": {"agent": "claude", "prompt": "p"},
    "codex": {"agent": "codex", "prompt": "p"},
    "gemini": {"agent": "gemini", "prompt": "p"},
    "opencode": {"agent": "opencode", "prompt": "p"},
    "hermes": {"agent": "hermes", "prompt": "p", "permissions": {"mode": "full"}},
    "acp": {"agent": "acp", "prompt": "p", "command": ["true"]},
    "process": {"agent": "process", "command": ["true"]},
}


def test_every_agent_of_the_contract_has_a_row() -> None:
    assert set(AGENTS) == set(CAPABILITIES) == set(AGENT_VARIABLES) == set(get_args(AgentName))
    assert all(kind.make({}, frozenset()).name == name for name, kind in AGENTS.items())


def test_a_row_says_what_a_run_of_a_request_can_do_and_adds_nothing_to_the_table() -> None:
    for agent, row in CAPABILITIES.items():
        can = AGENTS[agent].capabilities(parse_request({"workspace": {"path": "/w"}, **FIELDS[agent]}))
        asked = WHERE_ASKED_FOR.get(agent, {})
        assert can == row.model_copy(update=dict.fromkeys(asked, False))
    for messages in ("lines", "json"):
        request = {"workspace": {"path": "/w"}, **FIELDS["process"], "options": {"messages": messages}}
        assert AGENTS["process"].capabilities(parse_request(request)) == CAPABILITIES["process"]


@pytest.mark.parametrize("agent", AGENT_VARIABLES)
def test_a_request_chooses_none_of_an_agents_own_variables(agent: str) -> None:
    assert all(is_guarded(name) for name in AGENT_VARIABLES[agent])


def test_a_worker_starts_without_the_libraries_of_its_agents() -> None:
    """They take longer to import than everything else together; whoever leads such a run loads them."""
    code = "import sys, workers.service; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"claude_agent_sdk", "mcp", "starlette", "typer"} & set(done.stdout.split())


@pytest.mark.parametrize("agent", FIELDS)
def test_the_outline_of_any_request_is_a_request(agent: str) -> None:
    """Activities that stop and close a run are given it: one that cannot be read would leave the run open for ever."""
    request = parse_request({"workspace": {"path": "/w"}, **FIELDS[agent]})
    assert parse_request(request.outline().model_dump(mode="json")).agent == agent
