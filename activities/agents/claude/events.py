"""Claude Code's frames as AgentEvents: each frame alone, without memory of others (see transcript)."""

from collections.abc import Callable, Sequence
from datetime import datetime

from activities.agents.frames import Frame
from activities.untrusted_json import MAX_NAME, count_of, name_of, object_at, objects_in, text_of, time_of
from steersman.contracts.events import (
    MAX_TEXT,
    FileChangeEvent,
    InitEvent,
    MessageEvent,
    ProgressEvent,
    RateLimitEvent,
)

FILE_TOOLS = {"Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path"}
"""Tools that change a file, and the argument that names it."""
LEFT_OUT = "left out"
WITHOUT_TOOLS = {
    "failed": "failed",
    "needs-auth": "needs a login",
    "pending": "is not connected yet",
    LEFT_OUT: "is left out by Claude Code",
}
"""States of an MCP server in which the agent has none of its tools."""
COMMAND = ("<command-name>", "</command-name>", "<command-args>", "</command-args>")
"""The marks of a command of Claude Code's own, in the echo of a message."""
OUTPUTS = [(f"<local-command-{name}>", f"</local-command-{name}>") for name in ("stdout", "stderr")]
"""The marks of what it put out."""


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


def servers_event(time: datetime, frame: Frame, asked: Sequence[str]) -> ProgressEvent | None:
    """From system/init: the MCP servers whose tools the agent begins without, among them those of the request, `asked`,
    that Claude Code does not name: it has names of its own, and settings may forbid a server. None where it has all.
    """
    servers = {
        text_of(each.get("name"))[:100]: str(each.get("status")) for each in objects_in(frame.get("mcp_servers"))
    }
    servers = {**dict.fromkeys(asked, LEFT_OUT), **servers} if "mcp_servers" in frame else {}
    missing = [f"{name} {WITHOUT_TOOLS[status]}" for name, status in servers.items() if status in WITHOUT_TOOLS]
    return ProgressEvent(time=time, text=f"MCP servers: {', '.join(missing[:20])}") if missing else None


def delta_event(time: datetime, frame: Frame) -> MessageEvent | None:
    """From a stream_event; None for one without text or thinking."""
    event = object_at(frame, "event")
    if event.get("type") != "content_block_delta":
        return None
    delta = object_at(event, "delta")
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
    """From a message, or one block of it."""
    return MessageEvent.model_validate(
        {
            "time": time,
            "role": role,
            "kind": kind,
            "text": text[:MAX_TEXT],
            "truncated": len(text) > MAX_TEXT,
            "message_id": name_of(object_at(frame, "message").get("id") or frame.get("uuid")),
            "parent_tool_id": name_of(frame.get("parent_tool_use_id")),
        }
    )


def replayed_event(time: datetime, text: str, frame: Frame) -> MessageEvent | ProgressEvent:
    """From the echo of what was said: a command as it was typed, and what it put out as a step."""
    echo = text.rstrip()
    for begin, end in OUTPUTS:
        if echo.startswith(begin) and echo.endswith(end):
            return ProgressEvent(time=time, text=echo[len(begin) : -len(end)].strip()[:500])
    begin, name_end, args_begin, end = COMMAND
    name, _, rest = echo.removeprefix(begin).partition(name_end)
    _, has_args, args = rest.removesuffix(end).partition(args_begin)
    if echo.startswith(begin) and echo.endswith(end) and has_args:
        text = f"{name} {args}".strip()
    return message_event(time, "user", "text", text, frame)


def file_event(time: datetime, tool_id: str, name: str, tool_input: Frame, result: Frame) -> FileChangeEvent | None:
    """From the result of a tool that succeeded; None if it changed no file."""
    path = tool_input.get(FILE_TOOLS.get(name, ""))
    if not isinstance(path, str):
        return None
    created = name == "Write" and object_at(result, "tool_use_result").get("type") == "create"
    return FileChangeEvent(time=time, path=path[:4096], change="created" if created else "edited", tool_id=tool_id)


def rate_limit_event(time: datetime, frame: Frame) -> RateLimitEvent:
    """From rate_limit_event."""
    info = object_at(frame, "rate_limit_info")
    return RateLimitEvent(
        time=time,
        status=text_of(info.get("status"))[:100],
        resets_at=time_of(info.get("resetsAt")),
        limit=text_of(info.get("rateLimitType"))[:100] or None,
    )


def progress_event(time: datetime, frame: Frame) -> ProgressEvent | None:
    """From a system frame; None for those that are not shown."""
    subtype = str(frame.get("subtype"))
    texts: dict[str, Callable[[], str]] = {
        "api_retry": lambda: (
            f"the model's service failed ({text_of(frame.get('error') or frame.get('error_status'))[:100]}); "
            f"retry {count_of(frame.get('attempt'))} of {count_of(frame.get('max_retries'))} "
            f"in {count_of(frame.get('retry_delay_ms')) / 1000:.1f} s"
        ),
        "task_started": lambda: f"task started: {text_of(frame.get('description'))[:200]}",
        "task_notification": lambda: f"task {text_of(frame.get('status'))[:50]}: {text_of(frame.get('summary'))[:200]}",
        "compact_boundary": lambda: "the conversation was compacted",
        "informational": lambda: text_of(frame.get("content"))[:500],
    }
    make = texts.get(subtype)
    return ProgressEvent(time=time, text=make()) if make else None
