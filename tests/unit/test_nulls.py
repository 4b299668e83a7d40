"""`null` in a request is an absent field."""

from typing import Any

import pytest

from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import LoopRequest
from steersman.contracts.request import RunRequest, parse_object, parse_request

RUN: dict[str, Any] = {"agent": "claude", "prompt": "x", "workspace": {"path": "/tmp"}}
LOOP: dict[str, Any] = {"run": {"agent": "claude", "workspace": {"path": "/tmp"}}, "prompt": "x", "plan": "do it"}
LOOP["done"] = {"verify": {"command": "true"}}
REQUIRED = ("agent", "prompt", "workspace", "run", "plan", "done")


@pytest.mark.parametrize("name", [name for name in RunRequest.model_fields if name not in REQUIRED])
def test_of_a_run(name: str) -> None:
    assert parse_request({**RUN, name: None}) == parse_request(RUN)


@pytest.mark.parametrize("name", [name for name in LoopRequest.model_fields if name not in REQUIRED])
def test_of_a_loop(name: str) -> None:
    assert parse_object(LoopRequest, {**LOOP, name: None}) == parse_object(LoopRequest, LOOP)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"permissions": {"mode": None, "allow": None, "deny": ["Bash"]}}, {"permissions": {"deny": ["Bash"]}}),
        ({"limits": {"turns": None, "cost_usd": 1}}, {"limits": {"cost_usd": 1}}),
        ({"workspace": {"path": "/tmp", "include": None, "isolation": None}}, {}),
        ({"stop": {"kill_after_s": None}}, {}),
        (
            {"fallback": [{"agent": "codex", "options": None}, {"agent": "gemini", "model": None}]},
            {"fallback": [{"agent": "codex"}, {"agent": "gemini"}]},
        ),
    ],
)
def test_at_any_depth(given: dict[str, Any], told: dict[str, Any]) -> None:
    assert parse_request({**RUN, **given}) == parse_request({**RUN, **told})


def test_where_null_says_something_it_stays() -> None:
    assert parse_request({**RUN, "limits": {"approval_s": None}}).limits.approval_s is None
    assert parse_request(RUN).limits.approval_s is not None
    options = {"options": {"a": None, "b": [None]}}
    assert dict(parse_request({**RUN, **options}).options) == options["options"]


@pytest.mark.parametrize(
    "given",
    [{"agent": None}, {"workspace": None}, {"workspace": {"path": None}}, {"nonsense": None}, {"labels": [None]}],
)
def test_what_is_required_or_unknown_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        parse_request({**RUN, **given})
