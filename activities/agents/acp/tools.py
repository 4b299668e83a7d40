"""Tool calls of an ACP agent: from the call to its result, with the change of a file that it reports.

Functions over the transcript's calls of the turn (tool id -> what is known of the call). Agents tell a call in pieces,
some only when they ask for a permission, some only its result, so it is shown when there is something to show.
"""

from datetime import datetime
from typing import Any, Final, Literal

from activities.agents.frames import Frame
from activities.agents.tool_output import ToolOutputs, both_ends
from activities.untrusted_json import bounded, object_at, objects_in, text_of
from steersman.contracts.events import MAX_TEXT, EventBase, FileChangeEvent, ToolResultEvent, ToolUseEvent

MAX_OPEN: Final = 200
"""This many tool calls of a turn are remembered; the result of an older one is shown without its name."""
MAX_TITLE: Final = 2_000
SHOWN_INPUT: Final = 4096
"""Strings of a tool's input have this many characters in an approval."""
_KINDS: Final = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
)


def tool_id(call: Frame) -> str:
    """The id of a tool call."""
    return text_of(call.get("toolCallId"))[:200]


def tool_name(call: Frame) -> str:
    """What kind of tool it is: the protocol has kinds and titles, no names."""
    kind = call.get("kind")
    return kind if kind in _KINDS else "other"


def tool_input(call: Frame) -> dict[str, Any]:
    """The call's input, its title, which often says all that there is, and what its content adds to them.

    Some agents have no input (Gemini CLI): what is to be written is in the content alone. Once a call is at work, its
    content is what it puts out.
    """
    given, status = object_at(call, "rawInput"), call.get("status")
    found: dict[str, Any] = {"title": text_of(call.get("title"))[:MAX_TITLE]}
    if status not in ("completed", "failed"):
        found |= _changes(call, [each for each in given.values() if isinstance(each, str)])
    if not given and status in (None, "pending"):
        found |= {"paths": _paths(call), "content": _content_text(call)}
    return bounded({**{name: each for name, each in found.items() if each}, **given})


def _changes(call: Frame, said: list[str]) -> dict[str, Any]:
    """The changes of files of which the input has not all."""
    diffs = [
        {"path": text_of(each.get("path")), "old": text_of(each.get("oldText")), "new": text_of(each.get("newText"))}
        for each in _diffs(call)
    ]
    whole = all(any(each[text] in one for one in said) for each in diffs for text in ("path", "old", "new"))
    return {} if whole else {"changes": diffs}


def _diffs(call: Frame) -> list[Frame]:
    return [each for each in objects_in(call.get("content")) if each.get("type") == "diff"]


def _paths(call: Frame) -> list[str]:
    return [text_of(each.get("path")) for each in objects_in(call.get("locations"))]


def whole(call: Frame, calls: dict[str, Frame]) -> Frame:
    """The call with what was told of it before: a request for permission may have no more than what is new."""
    known = calls.get(tool_id(call), {})
    given = {**object_at(known, "input"), **tool_input(call)}
    kind = known.get("name") if call.get("kind") is None else call["kind"]
    return {"toolCallId": tool_id(call), "kind": kind, "rawInput": given}


def begun(call: Frame, calls: dict[str, Frame]) -> None:
    """What begins with the id of a call that has ended is another one: models give two calls one id."""
    known = calls.get(tool_id(call))
    if known is not None and known["ended"]:
        calls[tool_id(call)] = {**_unknown(), "over": known.get("over")}


def _unknown() -> Frame:
    """A call of which nothing was told."""
    return {"name": "other", "input": {}, "shown": False, "ended": False}


def cut_off(calls: dict[str, Frame]) -> dict[str, Frame]:
    """The calls whose turn has ended before their results, ended with it. What is said of them later is of the past."""
    return {
        ident: {**call, "input": {}, "ended": True, "cut_off": True}
        for ident, call in calls.items()
        if call["shown"] and not call["ended"]
    }


def told(time: datetime, call: Frame, calls: dict[str, Frame], *, now: bool) -> list[EventBase]:
    """Take what is said of a call; its event, once. `now`: it is to be shown, with what is known."""
    ident = tool_id(call)
    known = calls.setdefault(ident, _unknown())
    if len(calls) > MAX_OPEN:  # a call that is at work, as one of a sub-agent, may be the oldest
        del calls[next((each for each in calls if calls[each]["ended"]), next(iter(calls)))]
    # An update has only what is new of the call, and null where nothing is.
    if call.get("kind") is not None:
        known["name"] = tool_name(call)
    if diffs := _diffs(call):
        known["diffs"] = [{"path": text_of(e.get("path"))[:4096], "oldText": bool(e.get("oldText"))} for e in diffs]
    if not known["shown"] and (given := tool_input(call)):
        known["input"] = bounded({**known["input"], **given})
    if known["shown"] or not now:
        return []
    event = ToolUseEvent(time=time, id=ident, name=known["name"], input=known["input"])
    # No file's whole content is kept, above all; a question that follows is shown with it.
    known["shown"], known["input"] = True, bounded(known["input"], SHOWN_INPUT)
    return [event]


def put_out(time: datetime, call: Frame, calls: dict[str, Frame], outputs: ToolOutputs) -> list[EventBase]:
    """Take what an update says of the output of a call at work.

    The protocol has it whole in each update (opencode). By a convention beside it, an update has what is new of a
    terminal's (codex-acp). What a call that waits has for its content is no output, but a description of it.
    """
    ident = tool_id(call)
    if ident not in calls or calls[ident]["ended"]:
        return []
    if new := _terminal_output(call):
        return [*outputs.added(time, ident, new)]
    if call.get("status") == "in_progress" and (whole := _content_text(call)):
        return [*outputs.replaced(time, ident, whole)]
    return []


def ended(time: datetime, call: Frame, calls: dict[str, Frame], outputs: ToolOutputs) -> list[EventBase]:
    """Take a call's result. Where it has no text, it is the end of what the call has put out."""
    found = told(time, call, calls, now=True)
    ident = tool_id(call)
    known = calls.get(ident, {"name": None, "ended": False})
    if known["ended"]:  # some agents say more of it afterwards
        return found
    known["ended"], known["input"] = True, {}
    diffs = objects_in(known.pop("diffs", None))
    failed = call.get("status") == "failed"
    outputs.added(time, ident, _terminal_output(call))
    end, cut = outputs.close(ident)
    said = _content_text(call) or _output(call.get("rawOutput"))
    text = said or end
    found.append(
        ToolResultEvent(
            time=time,
            id=ident,
            name=known["name"],
            text=both_ends(text),
            is_error=failed,
            truncated=len(text) > MAX_TEXT or (cut and not said),
        )
    )
    if not failed:  # some agents tell the change before they make it, and no more at its end (claude-agent-acp)
        found += [_change(time, ident, each) for each in diffs]
    return found


def _change(time: datetime, ident: str, diff: Frame) -> FileChangeEvent:
    change: Literal["created", "edited"] = "edited" if diff.get("oldText") else "created"
    return FileChangeEvent(time=time, path=text_of(diff.get("path"))[:4096], change=change, tool_id=ident)


def _content_text(call: Frame) -> str:
    """The text of a call's content."""
    contents = objects_in(call.get("content"))
    return "\n".join(filter(None, (text_of(object_at(each, "content").get("text")) for each in contents)))


def _terminal_output(call: Frame) -> str:
    """What is new of a terminal's output."""
    return text_of(object_at(call, "_meta", "terminal_output_delta").get("data"))


def _output(value: Any) -> str:
    """The text in a tool's raw output, of which the protocol says nothing."""
    output = value.get("output") if isinstance(value, dict) else value
    return output if isinstance(output, str) else ""
