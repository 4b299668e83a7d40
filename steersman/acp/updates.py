"""An agent's events as ACP's session updates. No I/O."""

import json
from collections.abc import Iterable
from typing import Any, Final, get_args

from acp import helpers
from acp.schema import PlanEntryStatus, ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolKind

from steersman.contracts.events import (
    AgentEvent,
    CancelledEvent,
    ErrorEvent,
    FailedEvent,
    FileChangeEvent,
    MessageEvent,
    PermissionEvent,
    PlanUpdateEvent,
    ProgressEvent,
    RateLimitEvent,
    ToolOutputEvent,
    ToolResultEvent,
    ToolUseEvent,
)

MAX_OUTPUT: Final = 4_000
"""Characters of a working call's output that are shown: its end."""
TITLE: Final = 120
"""Characters of a tool call's title."""
KINDS: Final[dict[str, ToolKind]] = {
    "bash": "execute",
    "command": "execute",
    "shell": "execute",
    "terminal": "execute",
    "run_shell_command": "execute",
    "edit": "edit",
    "multiedit": "edit",
    "notebookedit": "edit",
    "patch": "edit",
    "apply_patch": "edit",
    "replace": "edit",
    "write": "edit",
    "write_file": "edit",
    "glob": "search",
    "grep": "search",
    "websearch": "search",
    "read": "read",
    "read_file": "read",
    "webfetch": "fetch",
    "web_fetch": "fetch",
}
"""What well-known tools do, by their names in lower case; all others are "other"."""
PLAN_STATUS: Final[dict[str, PlanEntryStatus]] = {status: status for status in get_args(PlanEntryStatus)}
"""An item's status in ACP's words; any other counts as pending."""
TOLD_BY: Final = ("command", "file_path", "path", "filePath", "pattern", "query", "url", "description", "prompt")
"""The inputs that say best what a tool call is about, the best first."""

_Speaker = tuple[str, str | None]
"""The kind of a text, and the sub-agent's call."""


class Updates:
    """Of one run: made in the order of its events, from the first one or from any other."""

    def __init__(self, run: str = "") -> None:
        """`run`: tells it from the other runs of the session."""
        self._run = run
        self._streamed: dict[_Speaker, tuple[tuple[int, str | None], str]] = {}
        """What has come piece by piece, of which process and message: the whole of it follows."""
        self._last: tuple[bool, _Speaker] | None = None
        """Whether the last update was a thought or an answer, and whose. None: something else. An editor makes one text
        of all that come in a row.
        """
        self._tools: dict[str, ToolUseEvent] = {}
        """The calls without a result, by their ids."""
        self._questions: set[str] = set()
        """The approvals that wait, of calls that are not told: of opencode's sub-agents."""
        self._outputs: dict[str, str] = {}
        """The end of what these have put out."""

    def of(self, event: AgentEvent) -> list[Any]:
        """The updates that tell the event; none for one that says nothing to a reader."""
        if isinstance(event, MessageEvent):
            return self._message(event)
        updates = self._of_work(event)
        if updates:
            self._last = None
        return updates

    def unfinished(self) -> list[Any]:
        """The updates that end the calls without a result: the run is over, and none comes any more."""
        return [helpers.update_tool_call(id, status="failed") for id in (*self._tools, *self._questions)]

    def _of_work(self, event: AgentEvent) -> list[Any]:
        match event:
            case ToolUseEvent() | ToolOutputEvent() | ToolResultEvent():
                return self._tool(event)
            case FileChangeEvent():
                return [self._change(event)]
            case PermissionEvent():
                return self._decided(event)
            case PlanUpdateEvent():
                return [helpers.update_plan(_plan(event))]
            case _:
                after = "\n\n" if self._last is not None and self._last[0] else ""
                return [helpers.update_agent_thought_text(f"{after}{said}\n") for said in _remarks(event)]

    def _tool(self, event: ToolUseEvent | ToolOutputEvent | ToolResultEvent) -> list[Any]:
        if isinstance(event, ToolOutputEvent):
            return self._output(event)
        return [self._tool_call(event) if isinstance(event, ToolUseEvent) else self._result(event)]

    def _tool_call(self, event: ToolUseEvent) -> Any:
        self._tools[event.id] = event
        title, kind = _title(event.name, event.input), _kind(event.name)
        return helpers.start_tool_call(event.id, title, kind=kind, status="in_progress", raw_input=event.input)

    def _output(self, event: ToolOutputEvent) -> list[Any]:
        """The end of a call's output so far: an update's content is all of the call's."""
        if event.id not in self._tools:
            return []
        before = "…\n" if event.omitted else self._outputs.get(event.id, "")
        text = self._outputs[event.id] = (before + event.text)[-MAX_OUTPUT:]
        content = [helpers.tool_content(helpers.text_block(text))]
        return [helpers.update_tool_call(event.id, status="in_progress", content=content)]

    def _result(self, event: ToolResultEvent) -> Any:
        self._tools.pop(event.id, None)
        self._outputs.pop(event.id, None)
        content = [helpers.tool_content(helpers.text_block(event.text))]
        status: ToolCallStatus = "failed" if event.is_error else "completed"
        return helpers.update_tool_call(event.id, status=status, content=content)

    def _message(self, event: MessageEvent) -> list[Any]:
        if event.role == "user":
            self._last = None
            return [helpers.update_user_message_text(event.text)]
        speaker = (event.kind, event.parent_tool_id)
        text, is_new = self._untold(event, speaker)
        if not text:
            return []
        # What a sub-agent says is none of the agent's own answer.
        thinks = event.kind == "thinking" or event.parent_tool_id is not None
        if self._last is not None and self._last[0] == thinks and (is_new or self._last[1] != speaker):
            text = f"\n\n{text}"
        self._last = thinks, speaker
        return [helpers.update_agent_thought_text(text) if thinks else helpers.update_agent_message_text(text)]

    def _untold(self, event: MessageEvent, speaker: _Speaker) -> tuple[str, bool]:
        """What of the text has not come yet, and whether a message begins with it."""
        origin = event.attempt, event.message_id
        of, streamed = self._streamed.pop(speaker, (origin, ""))
        if event.delta:
            if of != origin:
                streamed = ""  # the earlier message was cut off, and never came whole
            self._streamed[speaker] = origin, streamed + event.text
            return event.text, not streamed
        if of[0] != event.attempt:
            streamed = ""
        if streamed.startswith(event.text):
            # What was streamed beyond this text belongs to the next.
            if rest := streamed[len(event.text) :]:
                self._streamed[speaker] = of, rest
            return "", False
        return ("" if streamed.endswith(event.text) else event.text.removeprefix(streamed)), not streamed

    def _change(self, event: FileChangeEvent) -> Any:
        places = [ToolCallLocation(path=event.path)]
        if event.tool_id in self._tools:
            return helpers.update_tool_call(str(event.tool_id), locations=places)
        title = _short(f"{event.change} {event.path}")
        return helpers.start_tool_call(
            f"change-{self._run}-{event.seq}", title, kind="edit", status="completed", locations=places
        )

    def _decided(self, event: PermissionEvent) -> list[Any]:
        """The end of a question about a call that is not told: no result of it comes."""
        if event.state == "asked" or event.id not in self._questions:
            return []
        self._questions.remove(event.id)
        return [helpers.update_tool_call(event.id, status="completed" if event.state == "allowed" else "failed")]

    def asked(self, event: PermissionEvent) -> ToolCallUpdate:
        """The tool call that an approval is asked for, as `session/request_permission` describes it."""
        same = (each.id for each in self._tools.values() if (each.name, each.input) == (event.tool, event.input))
        known = event.tool_id if event.tool_id in self._tools else next(same, None)
        if known is None:
            self._questions.add(event.id)
        return ToolCallUpdate(
            tool_call_id=known or event.id,
            title=_title(event.tool, event.input),
            kind=_kind(event.tool),
            status="pending",
            raw_input=event.input,
        )


def ended(event: AgentEvent) -> list[Any]:
    """How a run ended that was not well, for who only looks on."""
    match event:
        case FailedEvent():
            return [helpers.update_agent_thought_text(f"The run failed: {event.message}\n")]
        case CancelledEvent():
            return [helpers.update_agent_thought_text(f"The run was cancelled: {event.reason or 'no reason given'}\n")]
        case _:
            return []


def _kind(name: str) -> ToolKind:
    return KINDS.get(name.lower(), "other")


def _title(name: str, given: dict[str, Any]) -> str:
    about = next((given[key] for key in TOLD_BY if given.get(key)), None)
    told = about if isinstance(about, str) else json.dumps(about) if about else ""
    return _short(f"{name} {told}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TITLE else line[: TITLE - 1] + "…"


def _plan(event: PlanUpdateEvent) -> Iterable[Any]:
    for item in event.items:
        yield helpers.plan_entry(item.text, status=PLAN_STATUS.get(item.status, "pending"))


def _remarks(event: AgentEvent) -> Iterable[str]:
    match event:
        case ProgressEvent():
            yield event.text
        case ErrorEvent():
            yield f"Error: {event.message}"
        case RateLimitEvent():
            until = f", until {event.resets_at:%Y-%m-%d %H:%M} UTC" if event.resets_at else ""
            yield f"Rate limit: {event.status}{until}"
