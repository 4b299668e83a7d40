"""OpenAI's Responses API: `POST /v1/responses`, as Codex speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from tests.scripted_model.requests import Pause, Request
from tests.scripted_model.steps import Answer, Cut, Hold, Say, Think, Tool, Usage

PING = b""
RAN_OUT = 400
TOKENS: Mapping[str, Any] = {"object": "response.input_tokens", "input_tokens": 100}
INSTRUCTIONS = ("system", "developer")
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def side(body: Mapping[str, Any]) -> bool:
    """The conversation always offers tools; titles and summaries come without, or ask for a title alone."""
    schema = ((body.get("text") or {}).get("format") or {}).get("schema") or {}
    return not tools(body) or list(schema.get("properties") or ()) == ["title"]


def tools(body: Mapping[str, Any]) -> list[str]:
    return [t.get("name") or t["type"] for t in _offered(body)]


def _offered(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Newer models get them as a part of the conversation, in namespaces."""
    asked = body.get("input", ())
    further = [] if isinstance(asked, str) else [item for item in asked if item.get("type") == "additional_tools"]
    for each in (body, *further):
        for offered in each.get("tools") or ():
            yield offered
            yield from offered.get("tools") or ()


def texts(body: Mapping[str, Any]) -> Iterator[str]:
    asked = body.get("input", ())
    if isinstance(asked, str):
        yield asked
        return
    for item in asked:
        if item.get("role") in INSTRUCTIONS:
            continue
        content = item.get("content") if "role" in item else item.get("output")
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content or () if "text" in part)


def error(status: int, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": CODES.get(status)}}


def usage(usage: Usage) -> dict[str, Any]:
    asked = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked + usage.output,
    }


def message(answer: Answer, request: Request) -> dict[str, Any]:
    items = [_item(part, request) for part in _parts(answer)]
    return _response(request, f"resp_{uuid4().hex}", items, answer)


def stream(answer: Answer, request: Request) -> Iterator[bytes | Pause | Hold | Cut]:
    """Texts that follow each other, through a hold too, are one message."""
    identity, output = f"resp_{uuid4().hex}", list[dict[str, Any]]()
    yield _event("response.created", response=_response(request, identity, []))
    open_text: dict[str, Any] | None = None
    for part in answer.parts:
        if isinstance(part, Hold | Cut):
            yield part
            continue
        if open_text and not isinstance(part, Say):
            yield _done(open_text, len(output) - 1)
            open_text = None
        if not isinstance(part, Say):
            output.append(_item(part, request))
            yield from _item_events(output[-1], len(output) - 1)
            continue
        if open_text is None:
            open_text = _item(Say(""), request)
            output.append(open_text)
            yield _begun(open_text, len(output) - 1)
        for piece in part.pieces():
            if part.delay_s:
                yield Pause(part.delay_s)
            open_text["content"][0]["text"] += piece
            where = {"item_id": open_text["id"], "output_index": len(output) - 1, "content_index": 0}
            yield _event("response.output_text.delta", **where, delta=piece)
    if open_text:
        yield _done(open_text, len(output) - 1)
    kind = "response.incomplete" if answer.ends_with == "max_tokens" else "response.completed"
    yield _event(kind, response=_response(request, identity, output, answer))


def _parts(answer: Answer) -> Iterator[Say | Think | Tool]:
    said = ""
    for part in answer.parts:
        if isinstance(part, Say):
            said += part.text
        elif isinstance(part, Think | Tool):
            if said:
                yield Say(said)
            said = ""
            yield part
    if said:
        yield Say(said)


def _item(part: Any, request: Request) -> dict[str, Any]:
    """An item of the output, whole."""
    match part:
        case Say(text=text):
            content = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            return {**_head("message", "msg"), "role": "assistant", "content": [content]}
        case Think(text=text):
            return {**_head("reasoning", "rs"), "summary": [{"type": "summary_text", "text": text}]}
        case Tool(name=name, input=args) if _is_custom(name, request):
            return {**_head("custom_tool_call", "ctc"), **_called(part), "input": args["input"]}
        case Tool(name=name, input=args):
            called = {**_called(part), **_namespace(name, request)}
            return {**_head("function_call", "fc"), **called, "arguments": json.dumps(dict(args))}
    raise TypeError(part)


def _is_custom(name: str, request: Request) -> bool:
    """Whether a tool takes text instead of arguments; a script gives it as `input`."""
    return any(t.get("name") == name and t["type"] == "custom" for t in _offered(request.body))


def _namespace(name: str, request: Request) -> dict[str, str]:
    """The one in which a tool is offered, which a call of it has to say."""
    spaces = (t for t in _offered(request.body) if t["type"] == "namespace")
    return next(({"namespace": t["name"]} for t in spaces if any(each.get("name") == name for each in t["tools"])), {})


def _head(kind: str, prefix: str) -> dict[str, Any]:
    return {"id": f"{prefix}_{uuid4().hex}", "type": kind, "status": "completed"}


def _called(part: Tool) -> dict[str, Any]:
    return {"call_id": part.id or f"call_{uuid4().hex[:24]}", "name": part.name}


def _begun(item: Mapping[str, Any], index: int) -> bytes:
    return _event("response.output_item.added", output_index=index, item={**item, "status": "in_progress"})


def _done(item: Mapping[str, Any], index: int) -> bytes:
    return _event("response.output_item.done", output_index=index, item=item)


def _item_events(item: Mapping[str, Any], index: int) -> Iterator[bytes]:
    yield _begun(item, index)
    where = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "reasoning":
            summary = item["summary"][0]
            where = {**where, "summary_index": 0}
            yield _event("response.reasoning_summary_part.added", **where, part={**summary, "text": ""})
            yield _event("response.reasoning_summary_text.delta", **where, delta=summary["text"])
            yield _event("response.reasoning_summary_text.done", **where, text=summary["text"])
        case "function_call":
            yield _event("response.function_call_arguments.delta", **where, delta=item["arguments"])
            yield _event("response.function_call_arguments.done", **where, arguments=item["arguments"])
        case "custom_tool_call":
            yield _event("response.custom_tool_call_input.delta", **where, delta=item["input"])
            yield _event("response.custom_tool_call_input.done", **where, input=item["input"])
    yield _done(item, index)


def _response(
    request: Request, identity: str, output: list[dict[str, Any]], ending: Answer | None = None
) -> dict[str, Any]:
    ended = "completed" if ending else "in_progress"
    cut_off = {"reason": "max_output_tokens"} if ending and ending.ends_with == "max_tokens" else None
    return {
        "id": identity,
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "incomplete" if cut_off else ended,
        "model": request.model,
        "output": output,
        "error": None,
        "incomplete_details": cut_off,
        "usage": usage(ending.usage) if ending else None,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
