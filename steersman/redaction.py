"""What looks like a secret is masked, character by character, so that nothing moves.

That is a net, and no proof: a secret that looks like any other word, and is no variable of this process, stays.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from steersman.contracts import archive_codec
from steersman.contracts.loop_state import Checkpoint
from steersman.contracts.request import SECRET_NAME

MASK: Final = b"*"
LEAST: Final = 8
"""Shorter values are words as often as secrets."""

_SHAPES: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    rb"(?:(?:(?!-----BEGIN )[\s\S]){0,16384}?-----END [A-Z ]*PRIVATE KEY-----|[\w+/=:,.\s\\-]*)"
    rb"|\bsk-[A-Za-z0-9_-]{12,}"
    rb"|\b(?:ghp|gho|ghu|ghs|ghr|glpat|npm|hf|xox[abeprs])[_-][A-Za-z0-9_-]{16,}"
    rb"|\bgithub_pat_[A-Za-z0-9_]{20,}"
    rb"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    rb"|\bAIza[0-9A-Za-z_-]{30,}"
    rb"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
)
_BEARER: Final = re.compile(rb"(?i)\b(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{8,})")
_IN_URL: Final = re.compile(rb"://[^\s/:@\"']{0,200}:([^\s/@\"']{3,200})@")
_USER: Final = re.compile(rb"(?i)\bhttps?://([^\s/:@\"'\\]{12,200})@")
"""A token in the place of a user."""
_HOOK: Final = re.compile(
    rb"(?i)\b(?:hooks\.slack\.com/[a-z]+|discord(?:app)?\.com/api/webhooks|[a-z0-9-]+\.webhook\.office\.com/[a-z0-9]+)"
    rb"/([A-Za-z0-9/_@-]{8,})"
)
"""Whoever knows these addresses may write there."""
_SIGNATURE: Final = re.compile(rb"(?i)[?&](?:sig|[a-z-]{0,40}signature)=([^\s&#\"'\\]{8,})")
_AUTHORIZATION: Final = re.compile(
    rb"(?i)\bauthorization\\*[\"']?\s{0,40}[:=]\s{0,40}\\*[\"']?(?:[a-z-]{1,40}[ \t]+)?([^\s\"'\\,;]{8,})"
)
_COOKIE: Final = re.compile(rb"(?i)\bcookie\\*[\"']?\s{0,40}[:=]\s{0,40}\\*[\"']?[\w.-]{1,100}=([^\r\n\"'\\]{8,})")
_ADDRESS: Final = re.compile(r"(https?://[^/?#]{1,300}[/?#])(.+)")
_PIECE: Final = re.compile(rb'"(text|delta|thinking|partial_json)"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"')
"""Where the agents' protocols have what their models stream."""
_ASSIGNED: Final = re.compile(
    rb"(?i)(?:key|token|secret|password|passwd|credentials?)\\*[\"']?\s{0,40}(?:[:=]|=>)\s{0,40}\\*[\"']?"
    rb"([^\s\"'\\,;&|<>(){}\[\]]{8,})"
)
_QUOTED: Final = re.compile(
    rb"(?i)(?:(?<=[a-z0-9_-])key|token|secret|password|passwd|credentials?)(?:\\*[\"'])?\s{0,40}(?:[:=]|=>)\s{0,40}"
    rb"(?:(?P<quote>[\"'])((?:\\.|(?!(?P=quote))[^\r\n\\]){8,4096})(?P=quote)"
    rb"|(?P<escaped>\\+[\"'])((?:(?!(?P=escaped))[^\r\n]){8,4096})(?P=escaped))"
)
"""To the closing quote: a plain one, or one that is escaped as the opening one is."""
_IN_SHELL: Final = re.compile(
    rb"(?im)^[ \t]*(?:export[ \t]+)?[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)=([^\s\"'\\]{8,})"
)
"""A line that sets a variable: to the next blank, whatever punctuation is in it."""
_OPTION: Final = re.compile(
    rb"(?i)(?<![\w-])--?[a-z-]*(?:key|token|secret|password|passwd)[ \t]+([^\s\"'\\-][^\s\"'\\]{7,})"
)
_NETRC: Final = re.compile(rb"\blogin\s+\S{1,200}\s+password\s+(\S{3,200})")
_ATTACHMENT: Final = {"name", "data"}
"""The fields of an attachment, whose data is base64."""
_PACKED: Final = {"count", "packed"}
"""Of a loop's checkpoints, in what its continue-as-new carries."""
_SAID: Final = ("note", "error", "session_id", "phase", "run")
"""A checkpoint's texts: whatever else it has is of a form that a mask would break."""
_GROUPS: Final = (
    *(_BEARER, _IN_URL, _USER, _HOOK, _SIGNATURE, _AUTHORIZATION, _COOKIE),
    *(_IN_SHELL, _ASSIGNED, _OPTION, _NETRC),
)
_NOT_PACKED: Final = (ValueError, KeyError, TypeError, IndexError, RecursionError)


def _in_base64(value: str) -> list[str]:
    """What of it stands in any base64 that has it, at the three places where it may begin."""
    data = value.encode("utf-8", "surrogateescape")
    whole = [base64.b64encode(bytes(shift) + data).decode() for shift in range(3)]
    # Without the ends, which depend on what is beside it.
    parts = [text[4 * bool(shift) : len(text) - 4] for shift, text in enumerate(whole)]
    return [each for each in parts if len(each) >= LEAST]


class Redactor:
    """Masks what has the form of a key, what is assigned to a name like that of one, the values that variables of
    `environ` with such names have, and the addresses of webhooks from the request on that names them.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {value for name, value in environ.items() if SECRET_NAME.search(name) and len(value) >= LEAST}
        forms = {form for value in values for form in (value, json.dumps(value)[1:-1], *_in_base64(value))}
        known = sorted((each.encode("utf-8", "surrogateescape") for each in forms), key=len, reverse=True)
        self._known = re.compile(b"|".join(map(re.escape, known))) if known else None
        self._webhooks: dict[str, re.Pattern[bytes]] = {}
        self.masked = 0
        """How many were."""

    def in_bytes(self, data: bytes) -> bytes:
        """The same number of bytes."""
        if self._known:
            data = self._known.sub(self._whole, data)
        data = _SHAPES.sub(self._whole, data)
        data = _QUOTED.sub(self._quoted, data)
        for pattern in (*_GROUPS, *self._webhooks.values()):
            data = pattern.sub(self._group, data)
        return data

    def in_text(self, text: str) -> str:
        """The same, of a text."""
        return self.in_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def in_lines(self, data: bytes) -> bytes:
        """The same of an agent's output, and of what stands in several of its JSON texts one after the other."""
        masked = bytearray(data)
        streams: dict[bytes, list[slice]] = {}
        for found in _PIECE.finditer(data):
            streams.setdefault(found[1], []).append(slice(*found.span(2)))
        for spans in streams.values():
            for span, piece in zip(spans, self.in_pieces([data[each] for each in spans]), strict=True):
                masked[span] = piece
        return self.in_bytes(bytes(masked))

    def in_pieces(self, pieces: Sequence[bytes]) -> list[bytes]:
        """The same of a text in pieces."""
        whole, at = self.in_bytes(b"".join(pieces)), 0
        masked = []
        for piece in pieces:
            masked.append(whole[at : at + len(piece)])
            at += len(piece)
        return masked

    def in_json(self, value: Any) -> Any:
        """The same of all texts in a JSON value, and of Temporal's payloads in it, which are base64 there."""
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, list):
            return [self.in_json(each) for each in value]
        return self._in_object(value) if isinstance(value, dict) else value

    def _in_object(self, value: dict[str, Any]) -> dict[str, Any]:
        if isinstance(value.get("data"), str) and isinstance(value.get("metadata"), dict):
            return {**value, "data": self._payload(value["data"])}
        if value.keys() == _ATTACHMENT and isinstance(value["data"], str):
            return {"name": self.in_json(value["name"]), "data": self._payload(value["data"])}
        if isinstance(packed := value.get("packed"), str) and value.keys() >= _PACKED:
            return {**self._members(value), "packed": self._checkpoints(packed)}
        if isinstance(said := value.get("name"), str) and SECRET_NAME.search(said) and "value" in value:
            return {**self._members(value), "value": self._secret(value["value"])}
        return self._members(value)

    def _members(self, value: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        self._learn_webhooks(value.get("notify"))
        for name, each in value.items():
            masked = self.in_text(name)
            while masked in told:
                masked += "*"  # nothing is left out
            told[masked] = self._secret(each) if SECRET_NAME.search(name) else self.in_json(each)
        return told

    def _learn_webhooks(self, notify: Any) -> None:
        """What is behind the host of a webhook's address is masked from now on, wherever the address stands."""
        for webhook in notify if isinstance(notify, list) else ():
            url = webhook.get("url") if isinstance(webhook, dict) else None
            if isinstance(url, str) and url not in self._webhooks and (found := _ADDRESS.fullmatch(url)):
                host, path = (re.escape(each.encode("utf-8", "surrogatepass")) for each in found.groups())
                self._webhooks[url] = re.compile(host + b"(" + path + b")")

    def _secret(self, value: Any) -> Any:
        """What stands under the name of a secret: texts, a list of them, or an object that has it as its value."""
        if isinstance(value, str) and len(value) >= LEAST and set(value) != {"*"}:
            self.masked += 1
            return "*" * len(value)
        if isinstance(value, list):
            return [self._secret(each) for each in value]
        if isinstance(value, dict) and "value" in value:
            return {**self._members(value), "value": self._secret(value["value"])}
        return self.in_json(value)

    def _checkpoints(self, packed: str) -> str:
        try:
            archive_codec.numbers(packed)
        except _NOT_PACKED:
            return self.in_text(packed)
        try:
            return archive_codec.encode([self._checkpoint(each) for each in archive_codec.decode(packed)])
        except _NOT_PACKED:  # by another version: nobody here knows what of it is a text
            self.masked += 1
            return ""

    def _checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        said = {name: getattr(checkpoint, name) for name in _SAID}
        return checkpoint.model_copy(update={name: self.in_text(text) for name, text in said.items() if text})

    def _payload(self, data: str) -> str:
        try:
            plain = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            return self.in_text(data)
        try:
            plain = json.dumps(self.in_json(json.loads(plain)), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            plain = self.in_bytes(plain)
        return base64.b64encode(plain).decode()

    def _whole(self, found: re.Match[bytes]) -> bytes:
        return self._masked(found[0])

    def _group(self, found: re.Match[bytes]) -> bytes:
        start, end = found.start(1) - found.start(), found.end(1) - found.start()
        return found[0][:start] + self._masked(found[1]) + found[0][end:]

    def _quoted(self, found: re.Match[bytes]) -> bytes:
        value = 2 if found["quote"] else 4
        start, end = found.start(value) - found.start(), found.end(value) - found.start()
        return found[0][:start] + self._masked(found[value]) + found[0][end:]

    def _masked(self, secret: bytes) -> bytes:
        if set(secret) != set(MASK):
            self.masked += 1
        return MASK * len(secret)
