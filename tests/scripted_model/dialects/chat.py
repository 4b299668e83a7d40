"""OpenAI's Chat Completions API: `POST /v1/chat/completions`, as opencode and Hermes speak it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from tests.scripted_model.requests import Pause, Request
from tests.scripted_model.steps import Answer, Cut, Hold, Say, Think, Tool, Usage

PING = b""
RAN_OUT = 400
TOKENS: Mapping[str, Any] = {}
FINISHES = {"tool_use": "tool_calls", "max_tokens": "length"}
INSTRUCTIONS = ("system", "developer")


def side(body: Mapping[str, Any]) -> bool:
    """The conversation always offers tools; titles and summaries come without."""
    return not body.get("tools")


def tools(body: Mapping[str, Any]) -> list[str]:
    return [t["function"]["name"] for t in body.get("tools") or ()]


def texts(body: Mapping[str, Any]) -> Iterator[str]:
    for message in body.get("messages", ()):
        content = message.get("content") or ""
        if message.get("role") in INSTRUCTIONS:
            continue
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content if part.get("type") == "text")


def error(status: int, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def usage(usage: Usage) -> dict[str, Any]:
    asked = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": asked,
        "completion_tokens": usage.output,
        "total_tokens": asked + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


UNFINISHED = "none"
"""The `stop_reason` of an answer that ends without saying why, as some services' do."""


def message(answer: Answer, request: Request) -> dict[str, Any]:
    said = "".join(p.text for p in answer.parts if isinstance(p, Say))
    thought = "".join(p.text for p in answer.parts if isinstance(p, Think))
    whole: dict[str, Any] = {"role": "assistant", "content": said or None}
    if thought:
        whole["reasoning_content"] = thought
    if calls := [_call(part) for part in answer.parts if isinstance(part, Tool)]:
        whole["tool_calls"] = calls
    choice = {"index": 0, "message": whole, "finish_reason": _finish(answer)}
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": usage(answer.usage)}


def stream(answer: Answer, request: Request) -> Iterator[bytes | Pause | Hold | Cut]:
    head = _head(request, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    called = 0
    for part in answer.parts:
        match part:
            case Hold() | Cut():
                yield part
            case Say(delay_s=delay_s):
                for piece in part.pieces():
                    if delay_s:
                        yield Pause(delay_s)
                    yield chunk({"content": piece})
            case Think(text=text):
                yield chunk({"reasoning_content": text})
            case Tool():
                yield chunk({"tool_calls": [{"index": called, **_call(part)}]})
                called += 1
    yield chunk({}, _finish(answer))
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield _data({**head, "choices": [], "usage": usage(answer.usage)})
    yield b"data: [DONE]\n\n"


def _head(request: Request, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": 1_700_000_000, "model": request.model}


def _call(part: Tool) -> dict[str, Any]:
    function = {"name": part.name, "arguments": json.dumps(dict(part.input))}
    return {"id": part.id or f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


def _finish(answer: Answer) -> str | None:
    return None if answer.ends_with == UNFINISHED else FINISHES.get(answer.ends_with, "stop")


def _data(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
