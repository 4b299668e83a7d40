"""Search attributes are declared once: the client, the dev server and the deployment agree with that."""

from pathlib import Path

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.common import SearchAttributeIndexedValueType

from steersman._client import search_attributes
from steersman.cli.devserver import server_command
from steersman.contracts.names import AGENT_NAME, COST_USD, RUN_PHASE, SEARCH_ATTRIBUTES

ROOT = Path(__file__).parents[2]


def test_the_names_and_types_are_those_of_the_wire() -> None:
    assert SEARCH_ATTRIBUTES == {"AgentName": "Keyword", "RunPhase": "Keyword", "CostUsd": "Double"}
    assert search_attributes.indexed_types() == {
        AGENT_NAME: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        RUN_PHASE: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        COST_USD: IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    }


def test_the_keys_that_are_read_have_the_declared_types() -> None:
    kinds = {"Keyword": SearchAttributeIndexedValueType.KEYWORD, "Double": SearchAttributeIndexedValueType.DOUBLE}
    declared = {name: kinds[kind] for name, kind in SEARCH_ATTRIBUTES.items()}
    keys = (search_attributes.AGENT_NAME, search_attributes.RUN_PHASE, search_attributes.COST_USD)
    assert {key.name: key.indexed_value_type for key in keys} == declared


def test_servers_are_given_each_of_them() -> None:
    namespace = " ".join((ROOT / "deploy/temporal/namespace.sh").read_text().split())
    command = server_command("temporal", 7233, ROOT / "db", None, 7235)
    for name, kind in SEARCH_ATTRIBUTES.items():
        assert f"--name {name} --type {kind}" in namespace
        assert f"{name}={kind}" in command
