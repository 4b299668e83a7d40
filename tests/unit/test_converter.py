"""Payloads: pydantic models as plain JSON; what cannot be decoded is a wrong request, never a retry for ever."""

import json
import traceback
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError

from steersman.contracts.messages import Message
from steersman.contracts.request import RunRequest
from steersman.converter import DATA_CONVERTER

CONVERTER = DATA_CONVERTER.payload_converter


def payload(data: bytes, encoding: bytes = b"json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding}, data=data)


def test_a_model_is_plain_json_that_any_sdk_can_read() -> None:
    (encoded,) = CONVERTER.to_payloads([Message(text="go", id="m")])
    assert encoded.metadata["encoding"] == b"json/plain"
    assert json.loads(encoded.data) == {"text": "go", "id": "m", "reason": None, "end": False}
    assert CONVERTER.from_payloads([encoded], [Message]) == [Message(text="go", id="m")]


@pytest.mark.parametrize("value", [None, {"a": [1, None]}, [], "x", 1, 1.5, True])
def test_any_json_is_taken_where_any_is_asked_for(value: Any) -> None:
    assert CONVERTER.from_payloads([payload(json.dumps(value).encode())], [Any]) == [value]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (payload(b"{"), Any),
        (payload(b""), Any),
        (payload(b"\xff\xfe"), Any),
        (payload(b'{"a":"\\ud800"}'), Any),
        (payload(b"[" * 100_000), Any),
        (payload(b"x", b"json/protobuf"), Any),
        (payload(b"x", b"binary/encrypted"), Any),
        (Payload(data=b"x"), Any),
        (payload(b'{"agent":"claude"}'), RunRequest),
        (payload(b"[]"), RunRequest),
    ],
    ids=[
        "torn",
        "empty",
        "no utf-8",
        "lone surrogate",
        "too deep",
        "protobuf",
        "encrypted",
        "no encoding",
        "shape",
        "list",
    ],
)
def test_what_cannot_be_decoded_fails_at_once_as_invalid_request(wrong: Payload, hint: Any) -> None:
    with pytest.raises(ApplicationError) as refused:
        CONVERTER.from_payloads([wrong], [hint])
    assert (refused.value.type, refused.value.non_retryable) == ("InvalidRequest", True)
    assert "must be one JSON object" in refused.value.message


def test_a_secret_in_a_payload_is_not_repeated() -> None:
    wrong = payload(b'{"agent": "sk-secret", "workspace": 1}')
    with pytest.raises(ApplicationError) as refused:
        CONVERTER.from_payloads([wrong], [RunRequest])
    assert "sk-secret" not in "".join(traceback.format_exception(refused.value))


def test_what_is_wrong_with_a_payload_is_said() -> None:
    with pytest.raises(ApplicationError) as refused:
        CONVERTER.from_payloads([payload(rb'{"text": "\ud800"}')])
    assert refused.value.message.endswith("decoded: a text in it is no Unicode: it has half of a surrogate pair")
