"""Anthropic's Messages API: `POST /v1/messages`, as Claude Code speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from tests.scripted_model.requests import Pause, Request
from tests.scripted_model.steps import Answer, Cut, Hold, Part, Say, Think, Tool, Usage

RAN_OUT = 501  # with `x-should-retry: false`: the CLI asks again after most others, 400 too
TOKENS: Mapping[str, Any] = {"input_tokens": 100}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
SIGNATURE = "c2NyaXB0ZWQ="


def side(body: Mapping[str, Any]) -> bool:
    """The conversation always offers client tools; without any (`--tools ""`) it still streams with
    the agent's context management, which no side request of the CLI does.
    """
    if body.get("max_tokens", 0) <= 1:
        return True
    if any("input_schema" in t for t in body.get("tools") or ()):
        return False
    return not (body.get("stream") and body.get("context_management"))


def tools(body: Mapping[str, Any]) -> list[str]:
    return [t["name"] for t in body.get("tools") or ()]


def texts(body: Mapping[str, Any]) -> Iterator[str]:
    for message in body.get("messages", ()):
        yield from _texts(message.get("content", ""))


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        if block.get("type") == "text":
            yield block["text"]
        elif block.get("type") == "tool_result":
            yield from _texts(block.get("content") or "")


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


PING = event("ping")


def error(status: int, message: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": f"req_{uuid4().hex}"}


def usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
    }


def block(part: Say | Think | Tool) -> dict[str, Any]:
    """A content block, whole."""
    match part:
        case Say(text=text):
            return {"type": "text", "text": text}
        case Think(text=text):
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        case Tool(name=name, input=args):
            ident = part.id or f"toolu_{uuid4().hex[:24]}"
            return {"type": "tool_use", "id": ident, "name": name, "input": dict(args)}


def blocks(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    """The content of a whole message. Texts that follow each other are one."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Say) and content and content[-1]["type"] == "text":
            content[-1]["text"] += part.text
        elif isinstance(part, Say | Think | Tool):
            content.append(block(part))
    return content


def message(answer: Answer, request: Request) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": blocks(answer.parts),
        "stop_reason": answer.ends_with,
        "stop_sequence": None,
        "usage": usage(answer.usage),
    }


def stream(answer: Answer, request: Request) -> Iterator[bytes | Pause | Hold | Cut]:
    begun = {**usage(answer.usage), "output_tokens": 1}
    yield event("message_start", message={**message(Answer(()), request), "stop_reason": None, "usage": begun}) + PING
    yield from _body(answer.parts)
    delta = {"stop_reason": answer.ends_with, "stop_sequence": None}
    yield event("message_delta", delta=delta, usage=usage(answer.usage)) + event("message_stop")


def _body(parts: tuple[Part, ...]) -> Iterator[bytes | Pause | Hold | Cut]:
    """A text's block stays open through a hold, for more text."""
    index, in_text = -1, False
    for part in parts:
        if isinstance(part, Hold | Cut):
            yield part
        if not isinstance(part, Say | Think | Tool):
            continue
        if not (in_text and isinstance(part, Say)):
            if in_text:
                yield event("content_block_stop", index=index)
            index += 1
            yield event("content_block_start", index=index, content_block=_begun(part))
        in_text = isinstance(part, Say)
        for delta in _deltas(part):
            if isinstance(part, Say) and part.delay_s:
                yield Pause(part.delay_s)
            yield event("content_block_delta", index=index, delta=delta)
        if not in_text:
            yield event("content_block_stop", index=index)
    if in_text:
        yield event("content_block_stop", index=index)


def _begun(part: Say | Think | Tool) -> dict[str, Any]:
    empty: dict[str, Any] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
    whole = block(part)
    return {**whole, **empty.get(whole["type"], {"input": {}})}


def _deltas(part: Say | Think | Tool) -> list[dict[str, Any]]:
    match part:
        case Say():
            return [{"type": "text_delta", "text": piece} for piece in part.pieces()]
        case Think(text=text):
            return [
                {"type": "thinking_delta", "thinking": text},
                {"type": "signature_delta", "signature": SIGNATURE},
            ]
        case Tool(input=args):
            return [{"type": "input_json_delta", "partial_json": json.dumps(dict(args))}]
