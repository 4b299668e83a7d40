"""RunRequest: every wrong field is named, no value of a secret is repeated, what is right comes through."""

import json
import math
from typing import Any

import pytest

from steersman.contracts.errors import InvalidRequest
from steersman.contracts.messages import Decision, Message, parse_message
from steersman.contracts.request import RunRequest, parse_request

GOOD: dict[str, Any] = {"agent": "claude", "prompt": "do it", "workspace": {"path": "/w"}}
PROCESS: dict[str, Any] = {"agent": "process", "command": ["true"], "workspace": {"path": "/w"}}
SECRET = "sk-ANT-very-secret"


def refusal(data: object) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse_request(data)
    return refused.value.message


def test_the_smallest_request() -> None:
    request = parse_request(GOOD)
    assert request.permissions.mode == "accept_edits"
    assert (request.runtime.kind, request.lease_s, request.limits.approval_s) == ("local", 900, 3600)


def test_a_full_request_survives_a_round_trip() -> None:
    full = {
        **GOOD,
        "workspace": {
            "path": "/w",
            "host": "h",
            "on_overlap": "queue",
            "isolation": "copy",
            "on_gate": "wait",
            "include": [],
            "reuse": False,
        },
        "runtime": {"kind": "local"},
        "model": "m",
        "session": "0190a-b.c:d",
        "fork_session": True,
        "system_prompt": "be brief",
        "permissions": {"mode": "ask", "allow": ["Read", "Bash(git *)"], "deny": ["WebFetch"]},
        "output_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "env": {"A": "x", "B": {"from_env": "C"}, "API_KEY": {"from_file": "/run/key"}},
        "limits": {"turns": 3, "cost_usd": 1.5, "duration_s": 60, "idle_s": 10, "approval_s": 5},
        "stop": {"terminate_after_s": 0, "kill_after_s": 2.5},
        "lease_s": 10,
        "labels": {"team": "x"},
        "options": {"add_dirs": ["/a"]},
    }
    request = parse_request(full)
    assert RunRequest.model_validate_json(request.model_dump_json()) == request
    assert parse_request(json.loads(request.model_dump_json(exclude_none=True))) == request
    assert json.loads(request.model_dump_json(exclude_none=True)) == full


def test_what_is_included_lies_in_the_workspace() -> None:
    def workspace(*include: str, isolation: str = "copy") -> dict[str, object]:
        return {**GOOD, "workspace": {"path": "/w", "isolation": isolation, "include": include}}

    assert parse_request(workspace("./node_modules/", "a//b", ".env")).workspace.include == (
        "node_modules", "a/b", ".env",
    )  # fmt: skip
    for wrong in ("/etc", "../x", "a/../b", ".", "", "./", "a\0", "x" * 1001):
        with pytest.raises(InvalidRequest, match=r"workspace\.include\.0"):
            parse_request(workspace(wrong))
    for wrong in (".git", "a/.GIT/config", "GIT~1", ".git. "):
        with pytest.raises(InvalidRequest, match=r"must not lead into a repository's \.git"):
            parse_request(workspace(wrong))
    with pytest.raises(InvalidRequest, match="include"):
        parse_request(workspace(*(f"p{number}" for number in range(101))))
    with pytest.raises(InvalidRequest, match='include needs isolation "copy"'):
        parse_request(workspace("a", isolation="none"))


def test_the_old_name_of_the_host_is_taken() -> None:
    new = parse_request({**GOOD, "workspace": {"path": "/w", "host": "h"}})
    for host in ("h", None):
        old = parse_request({**GOOD, "workspace": {"path": "/w"}, "runtime": {"kind": "local", "host": host}})
        assert old == (new if host else parse_request({**GOOD, "workspace": {"path": "/w"}}))
    both = {"workspace": {"path": "/w", "host": "h"}, "runtime": {"host": "h"}}
    assert parse_request({**GOOD, **both}) == new
    assert "two hosts" in refusal({**GOOD, **both, "runtime": {"host": "other"}})
    assert "workspace.host" in refusal({**GOOD, "runtime": {"host": ""}})


WRONG: list[tuple[str, Any]] = [
    ("agent", "Codex 99"),
    ("agent", "../codex"),
    ("agent", "c" * 64),
    ("agent", "claude\n"),
    ("agent", None),
    ("agent", ["claude"]),
    ("prompt", ""),
    ("prompt", "   \n"),
    ("prompt", "a\0b"),
    ("prompt", 7),
    ("prompt", None),
    ("workspace", "/w"),
    ("workspace", None),
    ("workspace.path", {"path": "relative/dir"}),
    ("workspace.path", {"path": "~/w"}),
    ("workspace.path", {"path": ""}),
    ("workspace.path", {"path": "/" + "x" * 5000}),
    ("workspace.path", {"path": "/a\0b"}),
    ("workspace.path", {"path": 1}),
    ("workspace.path", {}),
    ("workspace.ref", {"path": "/w", "ref": "main"}),
    ("runtime", "local"),
    ("runtime.kind", {"kind": "nomad"}),
    ("runtime.image", {"kind": "kubernetes"}),
    ("workspace.host", {"path": "/w", "host": ""}),
    ("workspace.host", {"path": "/w", "host": "h" * 201}),
    ("model", ""),
    ("model", "m" * 201),
    ("session", ""),
    ("session", "../../x"),
    ("session", "--resume"),
    ("session", "a b"),
    ("fork_session", "perhaps"),
    ("fork_session", True),
    ("system_prompt", 1),
    ("permissions", "full"),
    ("permissions.mode", {"mode": "yolo"}),
    ("permissions.allow", {"allow": "Bash"}),
    ("permissions.allow.0", {"allow": [""]}),
    ("permissions.allow.1", {"allow": ["Read", None]}),
    ("permissions.deny.0", {"deny": [1]}),
    ("output_schema", "{}"),
    ("output_schema", []),
    ("env", []),
    ("env", {"1X": "a"}),
    ("env", {"A=B": "a"}),
    ("env", {"": "a"}),
    ("env.A", {"A": 1}),
    ("env.A", {"A": None}),
    ("env.A", {"A": {"from_env": "X", "from_file": "/x"}}),
    ("env.A", {"A": {"from_vault": "x"}}),
    ("env.A", {"A": {"from_env": "1X"}}),
    ("env.A", {"A": {"from_file": "relative"}}),
    ("env.A", {"A": "a\0b"}),
    ("limits.turns", {"turns": 0}),
    ("limits.turns", {"turns": 1.5}),
    ("limits.turns", {"turns": -1}),
    ("limits.cost_usd", {"cost_usd": 0}),
    ("limits.cost_usd", {"cost_usd": "much"}),
    ("limits.duration_s", {"duration_s": 0}),
    ("limits.duration_s", {"duration_s": 1e12}),
    ("limits.idle_s", {"idle_s": -3}),
    ("limits.approval_s", {"approval_s": "never"}),
    ("limits.words", {"words": 1}),
    ("stop.terminate_after_s", {"terminate_after_s": -0.1}),
    ("stop.kill_after_s", {"kill_after_s": 1e9}),
    ("lease_s", 9),
    ("lease_s", "long"),
    ("labels", ["a"]),
    ("labels.a", {"a": 1}),
    ("options", []),
    ("command", ["ls"]),
    ("colour", "red"),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}={str(value)[:40]}" for field, value in WRONG])
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    message = refusal({**GOOD, field.split(".", 1)[0]: value})
    assert message.startswith("RunRequest: ")
    assert field in message


@pytest.mark.parametrize("field", ["agent", "workspace"])
def test_a_missing_field_is_named(field: str) -> None:
    assert (
        refusal({name: value for name, value in GOOD.items() if name != field}) == f"RunRequest: {field}: is required"
    )


def test_a_missing_prompt_is_named() -> None:
    assert "prompt must not be empty" in refusal({**GOOD, "prompt": ""})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("command", None),
        ("command", []),
        ("command", [""]),
        ("command", "ls -l"),
        ("command", ["a\0b"]),
        ("session", "s"),
        ("fork_session", True),
        ("permissions", {"mode": "full"}),
        ("limits.turns", 1),
        ("limits.cost_usd", 1),
        ("model", "m"),
        ("system_prompt", "s"),
    ],
)
def test_what_a_process_cannot_do_is_refused(field: str, value: Any) -> None:
    outer, _, inner = field.partition(".")
    assert field in refusal({**PROCESS, outer: {inner: value} if inner else value})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["limits.cost_usd", "limits.duration_s", "stop.kill_after_s", "lease_s"])
def test_no_number_is_refused(field: str, number: float) -> None:
    outer, _, inner = field.partition(".")
    assert field in refusal({**GOOD, outer: {inner: number} if inner else number})


@pytest.mark.parametrize("name", ["API_KEY", "github_token", "DB_PASSWORD", "AWS_SECRET", "X_CREDENTIALS", "PASSWD"])
def test_a_literal_secret_is_refused_and_never_repeated(name: str) -> None:
    message = refusal({**GOOD, "env": {name: SECRET}})
    assert name in message
    assert "from_env" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {"A": [SECRET]}},
        {"env": {"A": {"from_env": SECRET}}},
        {"env": {"A": {"from_file": SECRET}}},
        {"env": {"A": {"value": SECRET}}},
        {"env": {"A": {"from_env": "X", "extra": SECRET}}},
        {"env": SECRET},
        {"prompt": {"x": SECRET}},
        {"agent": SECRET},
        {"options": SECRET},
        {"labels": {"a": [SECRET]}},
        {"limits": {"turns": SECRET}},
        {"workspace": {"path": SECRET}},
        {"command": SECRET},
        {"session": SECRET + " "},
    ],
    ids=str,
)
def test_no_refusal_repeats_a_value(fields: dict[str, Any]) -> None:
    assert SECRET not in refusal({**GOOD, **fields})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "half \ud800"}, "RunRequest: a text in it is no Unicode: it has half of a surrogate pair"),
        ({"agent": "process", "command": ["a\0b"]}, "RunRequest: command.0: must not contain a NUL character"),
        (
            {"limits": {"cost_usd": 1}, "fallback": [{"agent": "codex"}]},
            "RunRequest: fallback.0: limits.cost_usd is not",
        ),
    ],
)
def test_a_refusal_is_in_our_words_and_names_what_is_wrong_once(fields: dict[str, Any], said: str) -> None:
    assert refusal({**GOOD, **fields}).startswith(said)
    with pytest.raises(InvalidRequest) as refused:
        parse_request({**GOOD, **fields})
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("data", "kind"),
    [(None, "nothing"), ([], "a list"), ("x", "a string"), (1, "a number"), (True, "a boolean"), (b"x", "bytes")],
)
def test_what_is_no_object_is_named_by_its_kind(data: object, kind: str) -> None:
    assert refusal(data) == f"RunRequest: the input must be one JSON object, not {kind}"


def test_an_object_that_is_no_json() -> None:
    assert "no JSON" in refusal({**GOOD, "options": {"a": object()}})
    deep: dict[str, Any] = {}
    for _level in range(100_000):
        deep = {"a": deep}
    assert refusal({**GOOD, "options": deep}).startswith("RunRequest: ")


def test_many_wrong_fields_make_a_sentence_of_bounded_length() -> None:
    message = refusal({**GOOD, **{f"field_{number}": 1 for number in range(1000)}})
    assert "(and 995 more)" in message
    assert len(message) < 1000


def test_a_name_of_any_length_makes_a_sentence_of_bounded_length() -> None:
    assert len(refusal({**GOOD, "x" * 100_000: 1})) < 5000


class TestMessages:
    def test_good_ones(self) -> None:
        assert parse_message(Message, {"text": "go", "id": "m-1", "reason": "why"}).text == "go"
        assert parse_message(Message, None) == Message()
        assert parse_message(Decision, {"id": "a", "decision": "deny"}).remember is False

    @pytest.mark.parametrize(
        ("model", "data", "field"),
        [
            (Message, {"text": 1}, "text"),
            (Message, {"text": "a\0"}, "text"),
            (Message, {"text": "x" * 100_001}, "text"),
            (Message, {"id": ""}, "id"),
            (Message, {"id": "a b"}, "id"),
            (Message, {"id": "x" * 101}, "id"),
            (Message, {"words": "go"}, "words"),
            (Message, "go", "Message"),
            (Message, ["go"], "Message"),
            (Message, b"\x00", "Message"),
            (Decision, {"id": "a"}, "decision"),
            (Decision, {"id": "a", "decision": "perhaps"}, "decision"),
            (Decision, {"decision": "allow"}, "id"),
            (Decision, {"id": "a", "decision": "allow", "remember": "maybe"}, "remember"),
            (Decision, None, "id"),
        ],
    )
    def test_wrong_ones_name_the_field(self, model: Any, data: object, field: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            parse_message(model, data)
        assert refused.value.message.startswith(f"{model.__name__}: ")
        assert field in refused.value.message
