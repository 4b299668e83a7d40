"""What a webhook is sent: the body in its format, and the headers that prove who sent it. Pure functions."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from steersman.contracts.notices import Notice, NoticeAnswer, WebhookFormat
from steersman.contracts.text import main_argument

_PREFIX = "whsec_"
MAX_ANSWER_TEXT = 10_000
MAX_SHOWN = 500
"""So many characters of a tool's argument, or of an answer, are in a sentence."""


def body_of(notice: Notice, form: WebhookFormat) -> bytes:
    """The body."""
    if form == "slack":
        return json.dumps({"text": _slack(sentence(notice))}).encode()
    return notice.model_dump_json(exclude_none=True).encode()


def sentence(notice: Notice) -> str:
    """What a person reads."""
    who = f"{notice.run} ({notice.agent})"
    if notice.approval:
        until = f", until {notice.approval.deadline:%Y-%m-%d %H:%M} UTC" if notice.approval.deadline else ""
        about = _cut(main_argument(notice.approval.input))
        return (
            f"{who} asks: {notice.approval.tool} {about}{until}. steer approve|deny {notice.run} {notice.approval.id}"
        )
    if notice.decision:
        word = "allowed" if notice.decision.decision == "allow" else "denied"
        return f"{who}: {word} {notice.decision.tool}"
    if notice.budget:
        return f"{who} has spent {notice.budget.spent:g} of {notice.budget.limit:g} ({notice.budget.of})"
    if notice.result:
        cost = f", ${notice.result.cost_usd:.4f}" if notice.result.cost_usd else ""
        return f"{who} {notice.result.status}{cost}: {_cut(notice.result.error or notice.result.text)}"
    if notice.loop:
        return f"{who} waits: {notice.loop.waits_for or notice.loop.status}. steer loop resume {notice.run}"
    return f"{who}: {notice.type}"


def _cut(text: str) -> str:
    """As long as a line may be; what is left out is said, above all of what somebody is to allow."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"


def _slack(text: str) -> str:
    """Three characters have a meaning in Slack's text, among them those of links and of calls to everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def headers_of(body: bytes, *, ident: str, seconds: int, secret: str | None) -> Mapping[str, str]:
    """Standard Webhooks: id, time, and HMAC-SHA256 of both and the body where there is a secret.

    `secret`: as it stands, or `whsec_` and base64. Raises ValueError.
    """
    ident = quote(ident, safe=":")  # ids of workflows may be of any characters
    headers = {"content-type": "application/json", "webhook-id": ident, "webhook-timestamp": str(seconds)}
    if secret is None:
        return headers
    signed = b"%s.%d.%s" % (ident.encode(), seconds, body)
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return {**headers, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}


def _key(secret: str) -> bytes:
    if not secret:
        raise ValueError("the secret is empty")
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("the secret begins with whsec_, and is not base64 behind it") from error


def answer_of(status: int, data: bytes) -> NoticeAnswer:
    """What the answer says of an approval: nothing, where it is no object with a decision."""
    try:
        said: Any = json.loads(data, object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError):
        return NoticeAnswer(status=status)
    if not isinstance(said, dict) or said.get("decision") not in ("allow", "deny"):
        return NoticeAnswer(status=status)
    message = said.get("message")
    text = message[:MAX_ANSWER_TEXT] if isinstance(message, str) and message.strip() else None
    return NoticeAnswer(
        status=status,
        decision=said["decision"],
        # Half a surrogate pair, as is left of a text that was cut in UTF-16, is nothing that could be sent on.
        message=text and text.encode("utf-8", "replace").decode(),
        remember=said.get("remember") is True,
    )


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError where it has a name twice: of two decisions neither counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found
