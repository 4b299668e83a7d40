"""What is masked of what somebody hands on, and that nothing else changes."""

import base64
import json
import string
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.contracts import archive_codec
from steersman.contracts.loop_state import Checkpoint
from steersman.redaction import Redactor

OWN = "correct-horse-battery"
ENVIRON = {
    "DEPLOY_TOKEN": OWN,
    "SHORT_KEY": "abc",
    "PATH": "/usr/local/bin:/usr/bin",
    "QUOTED_SECRET": 'a"b\\c-and-more',
}
SECRETS = [
    "sk-ant-api03-abcdefghijklmnop",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "xoxb-123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    OWN,
]


def test_what_stands_in_json_is_masked_whatever_form_it_has() -> None:
    given = {
        "structured": {f"is {SECRETS[0]}": 1, "API_KEY": ["abcdefgh1234"], "PASSWORD": {"value": "abcdefgh1234"}},
        "env": [{"name": "API_KEY", "value": "abcdefgh1234"}],
        "attachments": [{"name": "a.txt", "data": base64.b64encode(f"API_KEY={SECRETS[0]}".encode()).decode()}],
        "usage": {"input_tokens": 12345678, "API_TOKEN": 5},
    }
    masked = redactor().in_json(given)
    assert masked["structured"] == {
        f"is {'*' * len(SECRETS[0])}": 1,
        "API_KEY": ["*" * 12],
        "PASSWORD": {"value": "*" * 12},
    }
    assert masked["env"] == [{"name": "API_KEY", "value": "*" * 12}]
    assert base64.b64decode(masked["attachments"][0]["data"]) == b"API_KEY=" + b"*" * len(SECRETS[0])
    assert masked["usage"] == given["usage"]
    both = redactor().in_json({SECRETS[0]: 1, SECRETS[0].replace("a", "b"): 2})
    assert sorted(both.values()) == [1, 2]


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_a_variables_value_is_masked_in_base64_too(before: str) -> None:
    encoded = base64.b64encode(f"{before}{OWN} and so on".encode()).decode()
    assert "*" * 20 in redactor().in_text(encoded)


def redactor() -> Redactor:
    return Redactor(ENVIRON)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "it is {}, really", 'export X="{}"\n', '{{"a": "{}"}}'])
def test_what_has_the_form_of_a_key_is_masked(secret: str, around: str) -> None:
    text = around.format(secret)
    masked = redactor().in_text(text)
    assert secret not in masked
    assert masked == around.format("*" * len(secret))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("password=hunter2hunter2", "hunter2hunter2"),
        ("MY_API_KEY: abcdefgh1234", "abcdefgh1234"),
        ('{"client_secret": "s3cr3t-of-mine"}', "s3cr3t-of-mine"),
        ('{\\"auth_token\\": \\"s3cr3t-of-mine\\"}', "s3cr3t-of-mine"),
        ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("https://me:swordfish@example.org/x", "swordfish"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut", "MIIEcut"),
        ('said "a\\"b\\\\c-and-more"', 'a\\"b\\\\c-and-more'),
        ('api_key   :     "abcdefgh1234"', "abcdefgh1234"),
        ("PASSWORD=hunt,er2;hun(ter)2", "hunt,er2;hun(ter)2"),
        ('PASSWORD="two \\"quoted\\" words, and more"', 'two \\"quoted\\" words, and more'),
        ('{\\"password\\": \\"two words, and more\\"}', "two words, and more"),
        ("deploy --token abcdefgh1234 --force", "abcdefgh1234"),
        ("machine h login me password abcd1234", "abcd1234"),
        ("https://hooks.slack.com/services/T0AB/B0CD/abcdEFGHijkl", "abcdEFGHijkl"),
        ("https://discord.com/api/webhooks/1234/abcd-EFGH_ijkl", "abcd-EFGH_ijkl"),
        ("https://me.webhook.office.com/webhookb2/ab-cd@ef/IncomingWebhook/abcdefgh", "abcdefgh"),
        ("Authorization: token abcdefgh1234", "abcdefgh1234"),
        ('{"authorization": "abcdefgh1234"}', "abcdefgh1234"),
        ("Set-Cookie: session=abcdefgh1234; Path=/", "abcdefgh1234"),
        ("https://store.example/blob?se=2026&sig=abcd%2Fefgh", "abcd%2Fefgh"),
        ("https://store.example/blob?X-Amz-Signature=abcdefgh1234", "abcdefgh1234"),
        ("https://abcdefgh1234@example.org/repository", "abcdefgh1234"),
    ],
)
def test_what_is_assigned_to_such_a_name_is_masked(text: str, secret: str) -> None:
    masked = redactor().in_text(text)
    assert secret not in masked
    assert len(masked) == len(text)


@pytest.mark.parametrize(
    "text",
    [
        "a monkey: a tokenizer=fast",
        "/usr/local/bin:/usr/bin",
        "output_tokens: 12345678",
        "the key is abc",
        "sk-short",
        "https://hooks.slack.com/services/",
        "https://me@example.org/x",
        "cookie: a small cake",
        "***",
    ],
)
def test_words_stay(text: str) -> None:
    told = redactor()
    assert told.in_text(text) == text
    assert told.masked == 0


def test_a_webhooks_address_is_masked_behind_its_host_wherever_it_stands() -> None:
    told = redactor()
    url = "https://hooks.example.org/builds/s3cr3t"
    masked = "https://hooks.example.org/" + "*" * len("builds/s3cr3t")
    assert told.in_json({"notify": [{"url": url}]}) == {"notify": [{"url": masked}]}
    assert told.in_text(f"notify.0.url: {url} is not allowed") == f"notify.0.url: {masked} is not allowed"
    assert told.in_text("builds/s3cr3t") == "builds/s3cr3t"


def test_packed_checkpoints_are_masked_and_stay_checkpoints() -> None:
    made = [
        Checkpoint(number=each, kind="failure", time=datetime(2026, 1, 1, tzinfo=UTC), iteration=each, error=error)
        for each, error in enumerate(("it ended", "DB_PASSWORD=t0k3n-of-the-agent", None))
    ]
    packed = {"count": 3, "first": 0, "last": 2, "packed": archive_codec.encode(made)}
    data = base64.b64encode(json.dumps({"chunks": [packed]}).encode()).decode()
    told = redactor().in_json({"metadata": {"encoding": "eA=="}, "data": data})
    (chunk,) = json.loads(base64.b64decode(told["data"]))["chunks"]
    masked = made[1].model_copy(update={"error": "DB_PASSWORD=" + "*" * len("t0k3n-of-the-agent")})
    assert archive_codec.decode(chunk["packed"]) == [made[0], masked, made[2]]


def of_checkpoint(**fields: Any) -> dict[str, Any]:
    made = {"number": 0, "kind": "failure", "time": datetime(2026, 1, 1, tzinfo=UTC), "iteration": 0, **fields}
    return {"count": 1, "packed": archive_codec.encode([Checkpoint.model_construct(**made)])}


def test_what_is_packed_stays_readable_whatever_the_values_of_variables() -> None:
    values = {"SORT_KEY": "iteration", "MY_TOKEN": "baseline", "DEPLOY_TOKEN": OWN, "OLD_KEY": "2026-01-01T00:00:00Z"}
    told = Redactor(values).in_json(of_checkpoint(kind="iteration", error=f"it is {OWN}"))
    assert archive_codec.decode(told["packed"])[0].error == "it is " + "*" * len(OWN)


def test_what_another_version_has_packed_is_left_out() -> None:
    told = redactor()
    assert told.in_json(of_checkpoint(kind="of another version", error=f"it is {OWN}"))["packed"] == ""
    assert told.masked == 1


@pytest.mark.parametrize("packed", ["", "no checkpoints", "c" * 100, "PASSWORD=hunter2hunter2"])
def test_what_only_looks_like_packed_checkpoints_is_a_text(packed: str) -> None:
    told = redactor().in_json({"count": 1, "packed": packed})
    assert told["packed"] == redactor().in_text(packed)


def test_a_key_without_an_end_takes_no_more_than_it_can_have() -> None:
    told = redactor().in_text('{"text": "-----BEGIN PRIVATE KEY----- is how one begins"}, {"text": "more"}')
    assert told.endswith('"}, {"text": "more"}')


@given(st.sampled_from(SECRETS), st.lists(st.integers(0, 100)))
def test_pieces_are_masked_as_the_whole_would_be(secret: str, cuts: list[int]) -> None:
    text = f"it is {secret}, really".encode()
    ends = sorted(min(each, len(text)) for each in cuts)
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    masked = redactor().in_pieces(pieces)
    assert [len(each) for each in masked] == [len(each) for each in pieces]
    assert b"".join(masked) == redactor().in_bytes(text)
    for field in ("text", "delta", "thinking", "partial_json"):
        lines = b"".join(json.dumps({"n": 1, field: piece.decode()}).encode() + b"\n" for piece in pieces)
        said = [json.loads(line)[field] for line in redactor().in_lines(lines).splitlines()]
        assert said == [each.decode() for each in masked]


@given(st.binary())
def test_no_line_moves(data: bytes) -> None:
    assert len(redactor().in_lines(data)) == len(data)


def test_payloads_of_a_history_are_opened() -> None:
    said = {"prompt": f"use {OWN}", "env": {"GH_TOKEN": "abcdefgh"}, "n": [1, None, True]}
    data = base64.b64encode(json.dumps(said).encode()).decode()
    raw = base64.b64encode(b"\xff\x00 " + OWN.encode()).decode()
    history = {"events": [{"input": {"payloads": [{"metadata": {}, "data": data}, {"metadata": {}, "data": raw}]}}]}
    told = redactor()
    first, second = told.in_json(history)["events"][0]["input"]["payloads"]
    assert json.loads(base64.b64decode(first["data"])) == {
        "prompt": f"use {'*' * len(OWN)}",
        "env": {"GH_TOKEN": "*" * 8},
        "n": [1, None, True],
    }
    assert base64.b64decode(second["data"]) == b"\xff\x00 " + b"*" * len(OWN)
    assert told.masked == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_any_json_keeps_its_shape(value: object) -> None:
    masked = redactor().in_json(value)
    assert json.loads(json.dumps(masked)) == masked
    assert type(masked) is type(value)


@given(st.binary(), st.sampled_from(SECRETS))
def test_nothing_moves(data: bytes, secret: str) -> None:
    masked = redactor().in_bytes(data + b" " + secret.encode() + b" " + data)
    assert len(masked) == 2 * len(data) + len(secret) + 2
    assert secret.encode() not in masked


@given(st.text(string.ascii_letters + string.digits + " .,", max_size=200), st.sampled_from(SECRETS))
def test_twice_is_once(text: str, secret: str) -> None:
    told = redactor()
    once = told.in_text(f"{text} {secret}")
    before = told.masked
    assert told.in_text(once) == once
    assert told.masked == before
