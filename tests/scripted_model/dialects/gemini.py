"""Google's Gemini API, as Gemini CLI speaks it: `POST /v1beta/models/MODEL:VERB`.

VERB is `generateContent`, `streamGenerateContent` (server-sent events, as with `?alt=sse`) or `countTokens`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from tests.scripted_model.requests import Pause, Request
from tests.scripted_model.steps import Answer, Cut, Hold, Part, Say, Think, Tool, Usage

PING = b""
RAN_OUT = 400
TOKENS: Mapping[str, Any] = {"totalTokens": 100}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def side(body: Mapping[str, Any]) -> bool:
    """The conversation always offers functions; classifiers, summaries and web searches come without."""
    return not tools(body)


def tools(body: Mapping[str, Any]) -> list[str]:
    return [f["name"] for t in body.get("tools") or () for f in t.get("functionDeclarations") or ()]


def texts(body: Mapping[str, Any]) -> Iterator[str]:
    for content in body.get("contents", ()):
        for part in content.get("parts", ()):
            if "text" in part:
                yield part["text"]
            elif "functionResponse" in part:
                yield from _strings(part["functionResponse"].get("response"))


def error(status: int, message: str) -> dict[str, Any]:
    name = STATUSES.get(status) or HTTPStatus(status).name
    return {"error": {"code": status, "message": message, "status": name}}


def usage(usage: Usage) -> dict[str, int]:
    asked = usage.input + usage.cache_read + usage.cache_write
    return {
        "promptTokenCount": asked,
        "candidatesTokenCount": usage.output,
        "cachedContentTokenCount": usage.cache_read,
        "totalTokenCount": asked + usage.output,
    }


def message(answer: Answer, request: Request) -> dict[str, Any]:
    parts = [part for p in answer.parts if (part := _part(p))]
    return _response(request, f"resp-{uuid4().hex}", parts, answer)


def stream(answer: Answer, request: Request) -> Iterator[bytes | Pause | Hold | Cut]:
    identity = f"resp-{uuid4().hex}"
    for part in answer.parts:
        match part:
            case Hold() | Cut():
                yield part
            case Say(delay_s=delay_s):
                for piece in part.pieces():
                    if delay_s:
                        yield Pause(delay_s)
                    yield _data(_response(request, identity, [{"text": piece}]))
            case _:
                yield _data(_response(request, identity, [_part(part)]))
    yield _data(_response(request, identity, [{"text": ""}], answer))


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Say(text=text):
            return {"text": text}
        case Think(text=text):
            return {"text": text, "thought": True}
        case Tool(name=name, input=args):
            return {"functionCall": {"name": name, "args": dict(args)}}
    return {}


def _response(
    request: Request, identity: str, parts: list[dict[str, Any]], ending: Answer | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    response: dict[str, Any] = {"candidates": [candidate], "modelVersion": request.model, "responseId": identity}
    if ending:
        candidate["finishReason"] = "MAX_TOKENS" if ending.ends_with == "max_tokens" else "STOP"
        response["usageMetadata"] = usage(ending.usage)
    return response


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for held in value.values():
            yield from _strings(held)
    elif isinstance(value, list):
        for held in value:
            yield from _strings(held)


def _data(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\r\n\r\n".encode()
