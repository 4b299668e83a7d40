"""Hermes's tool calls as AgentEvents."""

import json
from datetime import datetime

from activities.agents.frames import Frame
from activities.untrusted_json import MAX_NAME, bounded, object_at, parse_object, text_of
from steersman.contracts.events import MAX_TEXT, EventBase, FileChangeEvent, ToolResultEvent, ToolUseEvent
from steersman.contracts.model import JsonObject

CHANGES = {"files_created": "created", "files_deleted": "deleted", "files_modified": "edited"}
MAX_CHANGES = 1000
_NEW_FILE = "@@ -0,0 "
"""A difference to no file at all begins so. Hermes tells it of absolute paths."""


def tool_id(payload: Frame) -> str:
    """The call's id."""
    return text_of(payload.get("tool_id"))[:MAX_NAME]


def tool_name(payload: Frame) -> str:
    """The tool's name."""
    return text_of(payload.get("name"))[:MAX_NAME]


def use_event(time: datetime, payload: Frame) -> ToolUseEvent:
    """A call that has begun, or is known by its end alone. Hermes cuts long inputs, and hides what looks secret."""
    return ToolUseEvent(time=time, id=tool_id(payload), name=tool_name(payload), input=_input(payload))


def result_events(time: datetime, payload: Frame) -> list[EventBase]:
    """A completed call, and the files that it changed."""
    ident, result = tool_id(payload), payload.get("result")
    text, said = _result_text(result), object_at(result)
    failed = bool(said.get("error")) or said.get("exit_code", 0) not in (0, None) or said.get("success") is False
    found: list[EventBase] = [
        ToolResultEvent(
            time=time,
            id=ident,
            name=tool_name(payload),
            text=text[:MAX_TEXT],
            is_error=failed,
            truncated=len(text) > MAX_TEXT,
        )
    ]
    is_new = tool_name(payload) == "write_file" and _NEW_FILE in text_of(payload.get("inline_diff"))
    for key, change in CHANGES.items():
        paths = said.get(key)
        for path in paths[:MAX_CHANGES] if isinstance(paths, list) and not failed else ():
            done = "created" if change == "edited" and is_new else change
            fields = {"path": text_of(path)[:4096], "change": done, "tool_id": ident}
            found.append(FileChangeEvent.model_validate({"time": time, **fields}))
    return found


def unfinished_event(time: datetime, ident: str, name: str) -> ToolResultEvent:
    """The end of a call whose turn ended before it."""
    return ToolResultEvent(time=time, id=ident, name=name, text="interrupted", is_error=True)


def _input(payload: Frame) -> JsonObject:
    if isinstance(payload.get("args"), dict):
        return bounded(payload["args"])
    told = text_of(payload.get("args_text"))
    try:
        return bounded(parse_object(told))
    except ValueError:
        return bounded({"input": told or text_of(payload.get("context"))})


def _result_text(result: object) -> str:
    """What the tool put out; of one with several fields all of them."""
    if isinstance(result, str):
        return result
    said = object_at(result)
    if "output" in said:
        parts = (text_of(said["output"]), text_of(said.get("error")))
        return "\n".join(part for part in parts if part)
    return json.dumps(bounded(said), ensure_ascii=False) if said else text_of(result)
