"""Codex's items as AgentEvents: what was said, and what its tools did. Each item is begun and completed."""

from datetime import datetime

from activities.agents.frames import Frame
from activities.agents.tool_output import both_ends
from activities.untrusted_json import MAX_NAME, bounded, name_of, object_at, objects_in, shown_text, text_of
from steersman.contracts.events import (
    MAX_TEXT,
    EventBase,
    FileChangeEvent,
    MessageEvent,
    ProgressEvent,
    ToolResultEvent,
    ToolUseEvent,
)
from steersman.contracts.model import JsonObject

TOOLS = {"commandExecution": "exec_command", "fileChange": "apply_patch", "webSearch": "web_search"}
"""Kinds of items that are tool calls, under the names that the model knows. `mcpToolCall` has its own."""
DELEGATIONS = {
    "spawnAgent": "spawn_agent",
    "sendInput": "send_input",
    "resumeAgent": "resume_agent",
    "wait": "wait_agent",
    "closeAgent": "close_agent",
}
"""Calls about sub-agents (`collabAgentToolCall`), under the names that the model knows."""
CHANGES = {"add": "created", "delete": "deleted", "update": "edited"}
DELTAS = {
    "item/agentMessage/delta": "text",
    "item/reasoning/summaryTextDelta": "thinking",
    "item/reasoning/textDelta": "thinking",
}


def tool_name(item: Frame) -> str | None:
    """The tool that an item is a call of; None for what is none."""
    kind = text_of(item.get("type"))
    if kind in ("mcpToolCall", "dynamicToolCall"):
        server, tool = text_of(item.get("server") or item.get("namespace")), text_of(item.get("tool"))
        return mcp_tool(server, tool) if server else tool[:MAX_NAME]
    if kind == "collabAgentToolCall":
        return DELEGATIONS.get(text_of(item.get("tool"))) or text_of(item.get("tool"))[:MAX_NAME]
    return TOOLS.get(kind)


def mcp_tool(server: str, tool: str) -> str:
    """The name of an MCP server's tool."""
    return f"mcp__{server}__{tool}"[:MAX_NAME]


def tool_input(item: Frame) -> JsonObject:
    """What a tool was called with; strings are cut."""
    match text_of(item.get("type")):
        case "commandExecution":
            return bounded({"command": item.get("command"), "cwd": item.get("cwd")})
        case "fileChange":
            return bounded({"changes": item.get("changes")})
        case "webSearch":
            return bounded({"query": item.get("query")})
        case "collabAgentToolCall":
            given = {"prompt": item.get("prompt"), "agents": item.get("receiverThreadIds")}
            return bounded({name: value for name, value in given.items() if value})
    return bounded(object_at(item, "arguments"))


def delta_event(time: datetime, method: str, params: Frame) -> MessageEvent | None:
    """A part of a text; None for one without any."""
    text = text_of(params.get("delta"))
    if not text:
        return None
    fields = {"kind": DELTAS[method], "message_id": name_of(params.get("itemId")), "delta": True}
    return MessageEvent.model_validate({"time": time, **_text(text), **fields})


def message_events(time: datetime, item: Frame, parent: str | None = None) -> list[EventBase]:
    """The whole of a text of the agent's, of its reasoning, or of a person's that it was given. `parent`: the call that
    began the sub-agent which says it.
    """
    kind = text_of(item.get("type"))
    texts = {
        "agentMessage": ("assistant", "text", text_of(item.get("text"))),
        "reasoning": ("assistant", "thinking", _lines(item.get("summary")) or _lines(item.get("content"))),
        "userMessage": ("user", "text", text_of(item.get("content"))),
    }
    role, shape, text = texts.get(kind, ("", "", ""))
    if not text:
        return []
    fields = {"role": role, "kind": shape, "message_id": name_of(item.get("id")), "parent_tool_id": parent}
    return [MessageEvent.model_validate({"time": time, **_text(text), **fields})]


def use_event(time: datetime, item: Frame, name: str, parent: str | None = None) -> ToolUseEvent:
    """A call that has begun. `parent`: as of a message."""
    ident = text_of(item.get("id"))[:MAX_NAME]
    return ToolUseEvent(time=time, id=ident, name=name, input=tool_input(item), parent_tool_id=parent)


def result_events(time: datetime, item: Frame, name: str) -> list[EventBase]:
    """A completed call, and the files that it changed."""
    ident, status = text_of(item.get("id"))[:MAX_NAME], text_of(item.get("status"))
    failed = status in ("failed", "declined") or item.get("exitCode") not in (0, None)
    text = text_of(item.get("aggregatedOutput")) or _said_by_tool(item) or ("declined" if status == "declined" else "")
    found: list[EventBase] = [
        ToolResultEvent(
            time=time, id=ident, name=name, text=both_ends(text), is_error=failed, truncated=len(text) > MAX_TEXT
        )
    ]
    if item.get("type") == "fileChange" and not failed:
        for each in objects_in(item.get("changes"))[:1000]:
            change = CHANGES.get(text_of(object_at(each, "kind").get("type")), "edited")
            fields = {"path": text_of(each.get("path"))[:4096], "change": change, "tool_id": ident}
            found.append(FileChangeEvent.model_validate({"time": time, **fields}))
    return found


def unfinished_event(time: datetime, ident: str, name: str, *, interrupted: bool) -> ToolResultEvent:
    """The end of a call that its turn did not see: Codex itself says nothing of it."""
    text = "interrupted" if interrupted else "still at work when the turn ended"
    return ToolResultEvent(time=time, id=ident, name=name, text=text, is_error=interrupted)


def retry_event(time: datetime, params: Frame) -> ProgressEvent:
    """A failed request to the model that Codex repeats by itself."""
    text = f"the model's service failed, Codex tries again: {text_of(object_at(params, 'error').get('message'))[:500]}"
    return ProgressEvent(time=time, text=text)


def _said_by_tool(item: Frame) -> str:
    if item.get("type") == "collabAgentToolCall":
        states = object_at(item, "agentsStates").values()
        return "\n".join(filter(None, (text_of(object_at(each).get("message")) for each in states)))
    return text_of(object_at(item, "error").get("message")) or shown_text(object_at(item, "result").get("content"))


def _lines(value: object) -> str:
    return "\n".join(each for each in value if isinstance(each, str)) if isinstance(value, list) else ""


def _text(text: str) -> JsonObject:
    return {"text": text[:MAX_TEXT], "truncated": len(text) > MAX_TEXT}
