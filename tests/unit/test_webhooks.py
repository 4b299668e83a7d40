"""Where webhooks may be told, what they are sent, what their answers mean."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from activities.admission.webhook_patterns import Target, WrongUrl, checked
from activities.webhooks.body import answer_of, body_of, headers_of
from activities.webhooks.sender import is_outside
from activities.webhooks.webhooks import OwnWebhook
from steersman.contracts.notices import Notice, NoticeAnswer, NoticeApproval, Webhook
from steersman.contracts.request import RunRequest

ALLOWED = "https://hooks.example.com/steersman/"


def notice(**fields: Any) -> Notice:
    given: dict[str, Any] = {
        "run": "fix-1",
        "execution": "e",
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "agent": "claude",
        "workspace": "/w",
    }
    return Notice.model_validate({**given, **fields})


@pytest.mark.parametrize(
    "url",
    [
        ALLOWED,
        "https://hooks.example.com/steersman/a/b?c=d",
        "https://hooks.example.com:443/steersman/x",
        "https://HOOKS.example.com/steersman/x",
        "https://hooks.example.com./steersman/x",
        "https://hooks.example.com/steersman?x=1",
    ],
)
def test_what_begins_as_the_operator_says_is_allowed(url: str) -> None:
    assert checked(url, [Target.of(ALLOWED)]) is not None


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/steersman/x",
        "https://hooks.example.com:8443/steersman/x",
        "https://hooks.example.com.evil.net/steersman/x",
        "https://evil.net/steersman/x",
        "https://hooks.example.com/steersmanx",
        "https://hooks.example.com/other",
    ],
)
def test_what_does_not_is_refused(url: str) -> None:
    assert checked(url, [Target.of(ALLOWED)]) is None
    assert checked(url, []) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "ftp://hooks.example.com/",
        "https://",
        "https://user:word@hooks.example.com/steersman/",
        "https://hooks.example.com@evil.net/steersman/",
        "https://hooks.example.com/steersman/../admin",
        "https://hooks.example.com/steersman/%2e%2E/admin",
        "https://hooks.example.com/steersman/\\evil",
        "https://hooks.example.com/steersman/..%2Fadmin",
        "https://hooks.example.com/steersman/..%5cadmin",
        "https://hooks.example.com/steersman/x\r\nhost: evil",
        "https://hooks.example.com:99999/steersman/",
        "https://hooks.example.com/steersman/#x",
        "https://hooks.example.com/steersman/ä",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://[::1/",
    ],
)
def test_what_some_programs_read_otherwise_is_no_url(url: str) -> None:
    with pytest.raises(WrongUrl):
        checked(url, [Target.of("https://hooks.example.com/")])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "no address",
    ],
)
def test_addresses_inside_the_network(address: str) -> None:
    assert not is_outside(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_addresses_outside(address: str) -> None:
    assert is_outside(address)


@pytest.mark.parametrize("secret", ["a plain one", "whsec_" + base64.b64encode(b"key").decode()])
def test_a_signature_is_that_of_standard_webhooks(secret: str) -> None:
    key = b"key" if secret.startswith("whsec_") else secret.encode()
    headers = headers_of(b'{"a":1}', ident="fix-1:notice-e-1", seconds=1700000000, secret=secret)
    signed = hmac.new(key, b'fix-1:notice-e-1.1700000000.{"a":1}', hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("fix-1:notice-e-1", "1700000000")


def test_an_id_of_any_characters_is_a_header() -> None:
    headers = headers_of(b"", ident="nächste\r\nx: y", seconds=1, secret="s")
    assert headers["webhook-id"] == "n%C3%A4chste%0D%0Ax:%20y"


def test_without_a_secret_nothing_is_signed_and_a_broken_one_is_named() -> None:
    assert "webhook-signature" not in headers_of(b"", ident="x", seconds=1, secret=None)
    for broken in ("", "whsec_not base64!"):
        with pytest.raises(ValueError, match="the secret"):
            headers_of(b"", ident="x", seconds=1, secret=broken)


def test_slack_is_sent_text_that_calls_nobody() -> None:
    asked = NoticeApproval(id="a-1", tool="Bash", input={"command": "echo '<!channel>' & true"})
    sent = json.loads(body_of(notice(type="approval", approval=asked), "slack"))
    assert list(sent) == ["text"]
    assert "&lt;!channel&gt;' &amp; true" in sent["text"]
    assert "<" not in sent["text"]
    assert "steer approve|deny fix-1 a-1" in sent["text"]


def test_json_has_what_there_is_to_say() -> None:
    sent = json.loads(body_of(notice(type="end", result={"status": "succeeded", "text": "done"}), "json"))
    assert (sent["type"], sent["run"], sent["result"]["text"]) == ("end", "fix-1", "done")
    assert "approval" not in sent


@pytest.mark.parametrize(
    ("data", "decision"),
    [
        (b'{"decision": "allow"}', "allow"),
        (b'{"decision": "deny", "message": "no"}', "deny"),
        (b"ok", None),
        (b"", None),
        (b'{"decision": "maybe"}', None),
        (b'["allow"]', None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"decision": "deny", "decision": "allow"}', None),
    ],
)
def test_only_a_plain_answer_decides(data: bytes, decision: str | None) -> None:
    assert answer_of(200, data).decision == decision


def test_a_text_that_was_cut_in_a_character_decides_all_the_same() -> None:
    """As programs leave one that count in UTF-16."""
    answer = answer_of(200, b'{"decision": "deny", "message": "not here \\ud83d"}')
    assert (answer.decision, answer.message) == ("deny", "not here ?")
    assert NoticeAnswer.model_validate_json(answer.model_dump_json()) == answer


def test_an_answer_is_bounded() -> None:
    data = json.dumps({"decision": "deny", "message": "x" * 50_000, "remember": "yes"}).encode()
    answer = answer_of(200, data)
    assert isinstance(answer, NoticeAnswer)
    assert (len(answer.message or ""), answer.remember) == (10_000, False)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, None),
        ({"STEERSMAN_WEBHOOK": "http://10.0.0.1/x"}, ("approval", "end", "budget", "waiting")),
        ({"STEERSMAN_WEBHOOK": "https://a.example/x", "STEERSMAN_WEBHOOK_ON": "end, decision"}, ("decision", "end")),
    ],
)
def test_the_operators_own(environ: Mapping[str, str], told: tuple[str, ...] | None) -> None:
    own = OwnWebhook.of(environ)
    assert (own.on if own else None) == told


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"STEERSMAN_WEBHOOK": "x"}, "STEERSMAN_WEBHOOK: it has to begin"),
        ({"STEERSMAN_WEBHOOK": "https://a.example", "STEERSMAN_WEBHOOK_ON": "ends"}, "STEERSMAN_WEBHOOK_ON: ends"),
        ({"STEERSMAN_WEBHOOK": "https://a.example", "STEERSMAN_WEBHOOK_FORMAT": "xml"}, "json or slack"),
    ],
)
def test_a_wrong_setting_is_named_without_the_address(environ: Mapping[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        OwnWebhook.of(environ)
    assert "a.example" not in str(raised.value)


def test_requests_say_no_more_than_they_must() -> None:
    given = {"agent": "claude", "prompt": "go", "workspace": {"path": "/w"}}
    assert "notify" not in RunRequest.model_validate(given).model_dump(mode="json")
    told = RunRequest.model_validate({**given, "notify": [{"url": {"from_env": "SLACK_URL"}, "format": "slack"}]})
    assert told.notify == (Webhook.model_validate({"url": {"from_env": "SLACK_URL"}, "format": "slack"}),)
