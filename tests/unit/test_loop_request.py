"""LoopRequest: every wrong field is named, and what is right comes through."""

from typing import Any

import pytest

from steersman.contracts.agents import UNMETERED
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import Verify, loop_request_json, parse_loop_request

RUN: dict[str, Any] = {"agent": "claude", "workspace": {"path": "/w"}}
GOOD: dict[str, Any] = {"run": RUN, "plan": "work", "done": {"verify": {"command": "make"}}}
SECRET = "sk-ant-very-secret"


def refusal(data: object) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse_loop_request(data)
    return refused.value.message


def test_the_smallest_request() -> None:
    request = parse_loop_request(GOOD)
    assert (request.mode, request.batch_size, request.rate_limit, request.pause_between_s) == (
        "autonomous",
        5,
        "wait",
        10,
    )
    assert (request.limits.iterations, request.limits.no_progress, request.limits.failures) == (100, 3, 3)
    assert request.continues()
    assert loop_request_json(request) == GOOD


def test_a_full_request_survives_a_round_trip() -> None:
    full = {
        "run": {**RUN, "session": "s", "fork_session": True, "limits": {"turns": 3}, "labels": {"a": "b"}},
        "plan": {"path": "plan", "phase": "02"},
        "prompt": "{plan}",
        "done": {
            "items": {"kind": "checkboxes", "allow_empty": True},
            "verify": {"command": ["make", "test"], "timeout_s": 60.0, "every_iteration": False},
            "promise": "DONE",
        },
        "session": "fresh",
        "mode": "batch",
        "batch_size": 2,
        "limits": {"iterations": 7, "cost_usd": 1.5, "tokens": 9, "duration_s": 60.0, "idle_s": 5.0, "no_progress": 0},
        "pause_between_s": 0.0,
        "rate_limit": "stop",
    }
    request = parse_loop_request(full)
    assert loop_request_json(request) == full
    assert parse_loop_request(loop_request_json(request)) == request
    assert request.checkboxes() == "plan"
    assert not request.continues()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"run": None}, "run: is required"),
        ({"run": {**RUN, "workspace": {"path": "/w", "worktree": "fix"}}}, "run: workspace.worktree: a loop works in"),
        ({"run": {**RUN, "prompt": "x"}}, "run: prompt must not be given here"),
        ({"run": {**RUN, "limits": {"duration_s": 1}}}, "run: limits: give duration_s and idle_s as the loop's"),
        ({"run": {**RUN, "env": {"A_KEY": SECRET}}}, "run.env: A_KEY looks like a secret"),
        ({"run": {**RUN, "session": "s"}, "from_checkpoint": {"loop": "l", "number": 0}}, "run.session: the session"),
        ({"plan": ""}, "plan: must not be empty"),
        ({"plan": "x" * 70_000}, "plan: is longer than 64 KiB"),
        ({"plan": {"path": "/etc"}}, "plan.path: must be a path inside the workspace"),
        ({"plan": {"path": "a/../../b"}}, "plan.path: must be a path inside the workspace"),
        ({"plan": {"path": "p", "text": "x"}}, "plan.text: unknown field"),
        ({"prompt": " "}, "prompt: must not be empty"),
        ({"done": {"items": {"kind": "jira"}}}, "done.items.kind: must be"),
        ({"done": {"items": {"kind": "beads"}}}, 'done.items: ids is required for kind "beads"'),
        ({"done": {"items": {"kind": "command"}}}, 'done.items: command is required for kind "command"'),
        ({"done": {"items": {"kind": "beads", "ids": ["a"], "path": "x"}}}, 'done.items: path is not for kind "beads"'),
        ({"done": {"items": {"kind": "beads", "ids": ["-rf"]}}}, "done.items.ids.0: must be as the pattern"),
        ({"done": {"verify": {"command": []}}}, "done.verify.command: "),
        ({"done": {"verify": {"command": "x", "timeout_s": 0}}}, "done.verify.timeout_s: must be more"),
        ({"done": {"verify": {"command": "x"}, "promise": "a\nb"}}, "done: promise must be one line of text"),
        ({"limits": {"cost_usd": float("nan")}}, "limits.cost_usd: must be a finite number"),
        ({"limits": {"turns": 5}}, "limits.turns: unknown field"),
        ({"batch_size": 0}, "batch_size: must be at least 1"),
        ({"pause_between_s": -1}, "pause_between_s: must be at least 0"),
        ({"rate_limit": "ignore"}, "rate_limit: must be 'wait' or 'stop'"),
        ({"from_checkpoint": {"loop": "a b", "number": 0}}, "from_checkpoint.loop: must be as the pattern"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], told: str) -> None:
    message = refusal({**GOOD, **change})
    assert message.startswith(f"LoopRequest: {told}")
    assert SECRET not in message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"session": "continue"}, 'session: agent "process" cannot go on with a session; use "fresh"'),
        ({"limits": {"cost_usd": 1}}, f'limits.cost_usd is not supported by agent "process": {UNMETERED}'),
        ({"limits": {"tokens": 1}}, f'limits.tokens is not supported by agent "process": {UNMETERED}'),
    ],
)
def test_what_the_agent_cannot_do(change: dict[str, Any], told: str) -> None:
    process = {**GOOD, "run": {"agent": "process", "command": ["true"], "workspace": {"path": "/w"}}}
    assert not parse_loop_request(process).continues()
    assert refusal({**process, **change}) == f"LoopRequest: {told}"


def test_no_session_goes_on_from_an_isolated_home_to_the_next() -> None:
    isolated = {**GOOD, "run": {"agent": "claude", "workspace": {"path": "/w"}, "home": "isolated"}}
    parse_loop_request({**isolated, "session": "fresh"})
    assert refusal({**isolated, "session": "continue"}) == (
        'LoopRequest: session: each run\'s isolated home goes with it, its session too: there is only "fresh"'
    )


@pytest.mark.parametrize("data", [None, [], "x", 3, True])
def test_what_is_no_object(data: object) -> None:
    assert refusal(data).startswith("LoopRequest: the input must be one JSON object, not ")


def test_a_verification_is_run_with_its_errors_beside_its_output() -> None:
    assert Verify(command="make && make test").argv() == ("sh", "-c", "exec 2>&1\nmake && make test")
    listed = Verify(command=("make", "a b"))
    assert listed.argv() == ("sh", "-c", 'exec "$@" 2>&1', "sh", "make", "a b")
    assert listed.shown() == "make a b"
