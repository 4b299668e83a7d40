"""JSON Schemas for clients in other languages: they take what the models take, and docs/schemas.json has them.

Where a shape has changed, write the file anew: `python -m tests.unit.test_schemas`.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from steersman.contracts import schemas
from steersman.contracts.loop import LoopRequest
from steersman.contracts.request import RunRequest
from tests.unit.test_wire import SAMPLES

WRITTEN = Path(__file__).parents[2] / "docs" / "schemas.json"
RUN = {"agent": "claude", "prompt": "go", "workspace": {"path": "/w"}}


def text() -> str:
    return json.dumps(schemas.schemas(), indent=1, sort_keys=True) + "\n"


def test_what_is_written_is_what_is_spoken() -> None:
    assert WRITTEN.read_text() == text()


@pytest.mark.parametrize("name", schemas.NAMES)
def test_each_is_a_schema_on_its_own(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schemas.schema(name))


@pytest.mark.parametrize(
    "given",
    [
        RUN,
        {**RUN, "env": {"A": "b", "K": {"from_env": "K"}, "F": {"from_file": "/f"}}},
        {**RUN, "runtime": {"kind": "ssh", "address": "box"}, "home": "isolated"},
        {**RUN, "limits": {"cost_usd": 2, "duration_s": 60, "approval_s": None}},
        {**RUN, "fallback": [{"agent": "codex", "model": "m"}], "fallback_on": ["rate_limit"]},
    ],
)
def test_a_request_that_is_taken_fits(given: dict[str, Any]) -> None:
    RunRequest.model_validate(given)
    jsonschema.validate(given, schemas.schema("RunRequest"), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "given", [{**RUN, "agnet": "x"}, {"agent": "claude"}, {**RUN, "limits": {"turns": 0}}, {**RUN, "agent": "No"}]
)
def test_one_that_is_refused_does_not(given: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(given, schemas.schema("RunRequest"), jsonschema.Draft202012Validator)


def test_a_loop_fits() -> None:
    given = {
        "run": {"agent": "claude", "workspace": {"path": "/w"}},
        "plan": {"path": "PLAN.md"},
        "done": {"verify": {"command": "make test"}},
    }
    LoopRequest.model_validate(given)
    jsonschema.validate(given, schemas.schema("LoopRequest"), jsonschema.Draft202012Validator)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: str(sample["type"]))
def test_every_event_fits(sample: dict[str, Any]) -> None:
    event = {"seq": 1, "time": "2026-01-02T03:04:05Z", "attempt": 1, **sample}
    jsonschema.validate(event, schemas.schema(schemas.EVENT), jsonschema.Draft202012Validator)


if __name__ == "__main__":
    WRITTEN.write_text(text())
