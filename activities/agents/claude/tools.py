"""Claude Code's tool calls: from the call to its result, and what it did to files and to the plan.

Functions over the transcript's open calls (tool id -> name and input).
"""

from datetime import datetime

from activities.agents.claude import events
from activities.agents.claude.plan import PLANNERS, Plan
from activities.agents.claude.snapshot import MAX_OPEN_TOOLS
from activities.agents.frames import Frame
from activities.untrusted_json import bounded, name_of, object_at, shown_text, text_of
from steersman.contracts.events import MAX_TEXT, EventBase, ToolResultEvent, ToolUseEvent


def tool_use(time: datetime, frame: Frame, block: Frame, open_tools: dict[str, Frame]) -> ToolUseEvent:
    """Take a call. Of its input only what the result's events need stays among the open calls."""
    tool_id, name = text_of(block.get("id"))[:200], text_of(block.get("name"))[:200]
    tool_input = bounded(object_at(block, "input"))
    # No file's whole content, above all.
    kept = tool_input if name in PLANNERS else {key: tool_input.get(key) for key in events.FILE_TOOLS.values()}
    open_tools[tool_id] = {"name": name, "input": kept}
    if len(open_tools) > MAX_OPEN_TOOLS:
        del open_tools[next(iter(open_tools))]
    parent = name_of(frame.get("parent_tool_use_id"))
    return ToolUseEvent(time=time, id=tool_id, name=name, input=tool_input, parent_tool_id=parent)


def tool_result(
    time: datetime, frame: Frame, block: Frame, open_tools: dict[str, Frame], plan: Plan
) -> list[EventBase]:
    """Take a result, with the change of a file or of the plan if the call succeeded."""
    tool_id, text = text_of(block.get("tool_use_id"))[:200], shown_text(block.get("content"))
    used = open_tools.pop(tool_id, {"name": "", "input": {}})
    failed = bool(block.get("is_error"))
    result = ToolResultEvent(
        time=time,
        id=tool_id,
        name=used["name"] or None,
        text=text[:MAX_TEXT],
        is_error=failed,
        truncated=len(text) > MAX_TEXT,
    )
    if failed:
        return [result]
    change = events.file_event(time, tool_id, used["name"], used["input"], frame)
    update = plan.after(time, used["name"], used["input"], object_at(frame, "tool_use_result"))
    return [result, *([change] if change else []), *([update] if update else [])]
