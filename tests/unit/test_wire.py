"""The wire contract as a file: other SDKs, the Temporal CLI and recorded histories rely on it.

A test that fails here says that a name or a shape changed. If the change is meant and only adds, write the file anew:
`python -m tests.unit.test_wire`.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from steersman.contracts import names
from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.errors import ErrorType
from steersman.contracts.events import EVENT, AgentEvent, EventBase, is_terminal
from steersman.contracts.run import RunState
from steersman.contracts.schemas import RECEIVED, SENT

CONTRACT = Path(__file__).parent / "wire.json"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

EVENTS: tuple[type[EventBase], ...] = get_args(get_args(AgentEvent)[0])

SAMPLES: list[dict[str, Any]] = [
    {"type": "init", "session_id": "s", "model": "m", "version": "1", "tools": ["Bash"]},
    {"type": "message", "role": "user", "kind": "text", "text": "ü\u2028\n", "delta": True, "message_id": "i"},
    {"type": "tool_use", "id": "t", "name": "Bash", "input": {"a": [1, None, {"b": 1.5}]}, "parent_tool_id": "p"},
    {"type": "tool_output", "id": "t", "text": "x\r\n\x1b[1m", "omitted": True, "truncated": True},
    {"type": "tool_result", "id": "t", "name": "Bash", "text": "x", "is_error": True, "truncated": True},
    {"type": "file_change", "path": "/w/f", "change": "created", "tool_id": "t"},
    {"type": "plan_update", "items": [{"text": "one", "status": "pending"}]},
    {"type": "permission", "id": "t", "tool": "Bash", "input": {"command": "ls"}, "state": "asked"},
    {"type": "usage", "usage": {"input_tokens": 1}, "cost_usd": 0.5, "turns": 2},
    {"type": "progress", "text": "p", "data": {"a": 1}},
    {"type": "rate_limit", "status": "rejected", "resets_at": "2026-01-02T00:00:00Z", "limit": "five_hour"},
    {"type": "error", "message": "e"},
    {"type": "done", "text": "t", "structured": [1], "stop_reason": "end_turn"},
    {"type": "cancelled", "stop_report": {"outcome": "stopped", "phase": "running", "how": "killed", "processes": 3}},
    {"type": "failed", "error": "AgentCrashed", "message": "m"},
]


def contract() -> dict[str, Any]:
    """Everything that is fixed on the wire."""
    constants = {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    queues = {
        "host_queue": names.host_queue("H"),
        "runs_queue": names.runs_queue("H"),
        "worker_queue": names.worker_queue("H", "W"),
    }
    return {
        "names": {**constants, **queues},
        "errors": sorted(ErrorType),
        "capabilities": {agent: row.model_dump() for agent, row in CAPABILITIES.items()},
        "schemas": {
            **{model.__name__: shape(model.model_json_schema()) for model in (*SENT, *RECEIVED)},
            "AgentEvent": shape(EVENT.json_schema()),
        },
    }


def shape(schema: Any) -> Any:
    """A JSON Schema without its prose."""
    if isinstance(schema, dict):
        prose = [name for name in ("description", "title") if isinstance(schema.get(name), str)]
        return {name: shape(value) for name, value in schema.items() if name not in prose}
    return [shape(each) for each in schema] if isinstance(schema, list) else schema


def test_the_wire_contract_has_not_changed() -> None:
    known, now = json.loads(CONTRACT.read_text()), json.loads(json.dumps(contract()))
    for part, value in known.items():
        if isinstance(value, dict):
            for name, fixed in value.items():
                assert now[part].get(name) == fixed, f"{part}.{name} changed"
        assert now[part] == value, f"{part} changed"
    assert now.keys() == known.keys()


def test_there_is_a_sample_of_every_event() -> None:
    assert {sample["type"] for sample in SAMPLES} == {kind.model_fields["type"].default for kind in EVENTS}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: str(sample["type"]))
def test_every_event_survives_a_round_trip(sample: dict[str, Any]) -> None:
    event = EVENT.validate_python({"time": NOW, "seq": 7, "attempt": 2, **sample})
    again = EVENT.validate_json(EVENT.dump_json(event))
    assert again == event
    assert type(again) is type(event)
    assert (
        json.loads(EVENT.dump_json(event)).items() >= {"seq": 7, "attempt": 2, "time": "2026-01-02T03:04:05Z"}.items()
    )


def test_exactly_three_events_end_a_run() -> None:
    events = [EVENT.validate_python({"time": NOW, **sample}) for sample in SAMPLES]
    assert [event.type for event in events if is_terminal(event)] == ["done", "cancelled", "failed"]


def test_a_reader_of_an_older_version_ignores_what_it_does_not_know() -> None:
    event = EVENT.validate_json('{"type":"done","time":"2026-01-02T00:00:00Z","colour":"red"}')
    assert event.type == "done"
    state = RunState.model_validate_json('{"phase":"running","colour":"red"}')
    assert state.phase == "running"


if __name__ == "__main__":
    CONTRACT.write_text(json.dumps(contract(), indent=1, sort_keys=True) + "\n")
