"""Claude Code's stream-json frames as AgentEvents: each frame alone, without memory of others.

The memory is in claude_transcript. Frames come from an agent that may be confused or hostile: every field is looked at
before it is used. Shapes measured with Claude Code 2.1.327.
"""

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from activities.ports.runtime import MAX_LINE
from steersman.contracts.events import (
    MAX_TEXT,
    FileChangeEvent,
    InitEvent,
    MessageEvent,
    ProgressEvent,
    RateLimitEvent,
)
from steersman.contracts.model import JsonObject
from steersman.contracts.run import Usage

MAX_NAME = 200
MAX_VALUES = 250_000
"""Of one frame, as its punctuation tells before anything is made of it: each takes memory and time."""
MAX_BLOCKS = 1_000
MAX_NODES = 10_000
"""Values of a tool's input that come into an event: together with its text less than Temporal's 2 MiB."""
LAST_MOMENT = 253_402_300_800
"""The end of the year 9999."""
FILE_TOOLS = {"Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path"}

DELEGATED = ("local_agent", "local_workflow")

Frame = dict[str, Any]

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class TooMuch(ValueError):
    """A frame that nobody who means well sends: it is left out, and the reason told."""


def parse(line: bytes) -> Frame | None:
    """The frame in a line of output; None for what is no JSON object (debug output of some builds). Raises TooMuch."""
    if len(line) >= MAX_LINE:
        raise TooMuch(f"the line has {MAX_LINE // 1024 // 1024} MiB or more")
    if line.count(b",") + line.count(b"[") + line.count(b"{") > MAX_VALUES:
        raise TooMuch(f"it holds more than {MAX_VALUES} values")
    try:
        frame = json.loads(line, parse_constant=str)  # NaN and Infinity are no JSON to anybody else
        if not isinstance(frame, dict):
            return None
        return _encodable(frame) if _SURROGATE.search(line) else frame
    except (ValueError, RecursionError):
        return None


def _encodable(value: Any) -> Any:
    """Without lone surrogates, which JSON can spell and UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def is_sound(frame: Frame) -> bool:
    """Whether a control frame has the form that the SDK takes for granted; others would end its reader."""
    kind = frame.get("type")
    if kind == "control_response":
        response = frame.get("response")
        return isinstance(response, dict) and isinstance(response.get("request_id"), str)
    named = isinstance(frame.get("request_id"), str)
    if kind == "control_request":
        request = frame.get("request")
        return named and isinstance(request, dict) and isinstance(request.get("subtype"), str)
    return kind == "control_cancel_request" and named


def part(frame: Any, *names: str) -> Frame:
    """The object at this path, an empty one where there is none."""
    for name in names:
        frame = frame.get(name) if isinstance(frame, dict) else None
    return frame if isinstance(frame, dict) else {}


def text_of(value: Any) -> str:
    """A string from a string, a list of content blocks, or anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(text_of(block.get("text", "")) for block in value if isinstance(block, dict))
    return "" if value is None else str(value)


def name_of(value: Any) -> str | None:
    """A name or an id, bounded; None for what is none."""
    return value[:MAX_NAME] if isinstance(value, str) and value else None


def blocks(frame: Frame) -> list[Frame]:
    """The content blocks of a message frame. Raises TooMuch."""
    content = part(frame, "message").get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and len(content) > MAX_BLOCKS:
        raise TooMuch(f"the message has more than {MAX_BLOCKS} blocks")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def number(value: Any) -> int:
    """A count; 0 for what is none."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


def moment(value: Any) -> datetime | None:
    """A time from seconds since 1970; None for what is none."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LAST_MOMENT
    return datetime.fromtimestamp(value, UTC) if sound else None


def usage(value: Frame) -> Usage:
    """Token counts of the Messages API."""
    return Usage(
        input_tokens=number(value.get("input_tokens")),
        output_tokens=number(value.get("output_tokens")),
        cache_read_tokens=number(value.get("cache_read_input_tokens")),
        cache_write_tokens=number(value.get("cache_creation_input_tokens")),
    )


def bounded(value: Any, limit: int = MAX_TEXT) -> JsonObject:
    """A tool's input with long strings cut, so that one Write of a huge file does not fill the log.

    A string has at most `limit` characters, all together four times that and at most MAX_TEXT; values MAX_NODES.
    """
    room, nodes = min(4 * limit, MAX_TEXT), MAX_NODES

    def text(item: str, longest: int) -> str:
        nonlocal room
        kept = item[: min(longest, room)]
        room -= len(kept)
        return item if len(kept) == len(item) else f"{kept}… ({len(item)} characters)"

    def cut(item: Any, depth: int) -> Any:
        nonlocal nodes
        nodes -= 1
        if isinstance(item, str):
            return text(item, limit)
        if depth > 20 or nodes < 0:
            return "…"
        if isinstance(item, dict):
            return {
                text(str(key)[:500], 500): cut(each, depth + 1) for key, each in islice(item.items(), min(1000, nodes))
            }
        if isinstance(item, list):
            return [cut(each, depth + 1) for each in item[: min(1000, nodes)]]
        if isinstance(item, float) and not math.isfinite(item):
            return str(item)
        return item if item is None or isinstance(item, bool | int | float) else str(item)

    result = cut(value, 0)
    return result if isinstance(result, dict) else {"value": result}


def init_event(time: datetime, frame: Frame) -> InitEvent:
    """From system/init."""
    tools = frame.get("tools")
    return InitEvent(
        time=time,
        session_id=name_of(frame.get("session_id")),
        model=name_of(frame.get("model")),
        version=name_of(frame.get("claude_code_version")),
        tools=tuple(str(tool)[:MAX_NAME] for tool in tools[:500]) if isinstance(tools, list) else (),
    )


def delta_event(time: datetime, frame: Frame) -> MessageEvent | None:
    """From a stream_event that carries text or thinking."""
    event = part(frame, "event")
    if event.get("type") != "content_block_delta":
        return None
    delta = part(event, "delta")
    kind = {"text_delta": "text", "thinking_delta": "thinking"}.get(str(delta.get("type")))
    text = text_of(delta.get(kind)) if kind else ""
    if not text:
        return None
    return MessageEvent.model_validate(
        {
            "time": time,
            "kind": kind,
            "text": text[:MAX_TEXT],
            "truncated": len(text) > MAX_TEXT,
            "delta": True,
            "parent_tool_id": name_of(frame.get("parent_tool_use_id")),
        }
    )


def message_event(time: datetime, role: str, kind: str, text: str, frame: Frame) -> MessageEvent:
    """A whole message."""
    return MessageEvent.model_validate(
        {
            "time": time,
            "role": role,
            "kind": kind,
            "text": text[:MAX_TEXT],
            "truncated": len(text) > MAX_TEXT,
            "message_id": name_of(part(frame, "message").get("id") or frame.get("uuid")),
            "parent_tool_id": name_of(frame.get("parent_tool_use_id")),
        }
    )


def delegated(frame: Frame) -> set[str]:
    """Background tasks whose end makes Claude Code begin a turn by itself: agents. A shell may run for ever."""
    tasks = frame.get("tasks")
    return {
        text_of(task.get("task_id"))
        for task in (tasks if isinstance(tasks, list) else ())
        if isinstance(task, dict) and task.get("task_type") in DELEGATED
    }


def file_event(time: datetime, tool_id: str, name: str, tool_input: Frame, result: Frame) -> FileChangeEvent | None:
    """What a tool that succeeded did to a file."""
    path = tool_input.get(FILE_TOOLS.get(name, ""))
    if not isinstance(path, str):
        return None
    created = name == "Write" and part(result, "tool_use_result").get("type") == "create"
    return FileChangeEvent(time=time, path=path[:4096], change="created" if created else "edited", tool_id=tool_id)


def rate_limit_event(time: datetime, frame: Frame) -> RateLimitEvent:
    """From rate_limit_event."""
    info = part(frame, "rate_limit_info")
    return RateLimitEvent(
        time=time,
        status=text_of(info.get("status"))[:100],
        resets_at=moment(info.get("resetsAt")),
        limit=text_of(info.get("rateLimitType"))[:100] or None,
    )


def progress_event(time: datetime, frame: Frame) -> ProgressEvent | None:
    """From system frames that are worth a line."""
    subtype = str(frame.get("subtype"))
    texts: dict[str, Callable[[], str]] = {
        "api_retry": lambda: (
            f"the model's service failed ({text_of(frame.get('error') or frame.get('error_status'))[:100]}); "
            f"retry {number(frame.get('attempt'))} of {number(frame.get('max_retries'))} "
            f"in {number(frame.get('retry_delay_ms')) / 1000:.1f} s"
        ),
        "task_started": lambda: f"task started: {text_of(frame.get('description'))[:200]}",
        "task_notification": lambda: f"task {text_of(frame.get('status'))[:50]}: {text_of(frame.get('summary'))[:200]}",
        "compact_boundary": lambda: "the conversation was compacted",
    }
    make = texts.get(subtype)
    return ProgressEvent(time=time, text=make()) if make else None
