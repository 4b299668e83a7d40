"""An ACP agent's requests for permission: asked, answered and withdrawn, as the journal has them, and their answers.

Functions over the transcript's `pending` (key of the request's id -> frame). Who answers must not live here (see
conversation).
"""

from datetime import datetime
from typing import Any, Final, Literal

from activities.agents import approval_ids
from activities.agents.acp import tools
from activities.agents.frames import Frame
from activities.untrusted_json import bounded, object_at, objects_in
from steersman.contracts.events import EventBase, PermissionEvent
from steersman.contracts.request import PermissionMode
from steersman.contracts.run import Approval

PERMISSION: Final = "session/request_permission"

RECORD: Final = "_record"
"""In a question that is kept: the number of its record. An agent may use the id of an answered request again."""

READING: Final = frozenset({"read", "search", "think", "fetch"})
"""Kinds of tools that change nothing."""
WRITING: Final = frozenset({"edit", "move", "delete"})
"""Kinds of tools that change files of the workspace."""


def is_approval(frame: Frame) -> bool:
    """Whether this request of the agent asks for a permission."""
    return frame.get("method") == PERMISSION


def call_of(frame: Frame) -> Frame:
    """The tool call that a request is about."""
    return object_at(frame, "params", "toolCall")


def approval_id(frame: Frame) -> str:
    """The id of the approval that a request asks for."""
    return approval_ids.of_request(frame.get(RECORD, frame.get("id")))


def kept(frame: Frame, record: int, calls: dict[str, Frame]) -> Frame:
    """A request that awaits its answer. `calls`: the tool calls of the turn."""
    params = object_at(frame, "params")
    if is_approval(frame):
        params = {**params, "toolCall": tools.whole(call_of(frame), calls)}
    return {"id": frame.get("id"), "method": frame.get("method"), "params": params, RECORD: record}


def approval_of(frame: Frame, now: datetime) -> Approval:
    """What a person is asked by a request."""
    call = call_of(frame)
    shown = bounded(tools.tool_input(call), tools.SHOWN_INPUT)
    return Approval(
        id=approval_id(frame), tool=tools.tool_name(call), tool_id=tools.tool_id(call) or None, input=shown, since=now
    )


def automatic(mode: PermissionMode, frame: Frame) -> Literal["allow", "deny"] | None:
    """What the mode says of this tool; None where a person decides."""
    kind = tools.tool_name(call_of(frame))
    if mode == "full":
        return "allow"
    if kind in READING:
        return "allow"
    if mode == "ask":
        return None
    return "allow" if mode == "accept_edits" and kind in WRITING else "deny"


def answer(frame: Frame, decision: Literal["allow", "deny", "cancel"], *, for_good: bool) -> dict[str, Any]:
    """The result of a request: the option of this kind for once, or that the turn was cancelled.

    An agent that offers no such option is told that the turn was cancelled, which no agent takes for a yes. With
    `for_good` it may be one after which the agent asks no more: a word on one call is no word on those that follow.
    """
    allowing = ("allow_once", "allow_always") if for_good else ("allow_once",)
    wanted = {"allow": allowing, "deny": ("reject_once", "reject_always")}.get(decision, ())
    options = objects_in(object_at(frame, "params").get("options"))
    for kind in wanted:
        for option in options:
            if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return {"outcome": {"outcome": "cancelled"}}


def asked(time: datetime, frame: Frame) -> list[EventBase]:
    """The event of a request for permission."""
    return [_event(time, frame, state="asked", input=tools.tool_input(call_of(frame)))]


def answered(time: datetime, question: Frame, reply: Frame) -> PermissionEvent:
    """The event of an answer that was written to the agent."""
    outcome = object_at(reply, "result", "outcome")
    chosen = [
        each
        for each in objects_in(object_at(question, "params").get("options"))
        if each.get("optionId") == outcome.get("optionId")
    ]
    allowed = bool(chosen) and str(chosen[0].get("kind")).startswith("allow")
    state: Literal["allowed", "denied", "withdrawn"] = "allowed" if allowed else "denied"
    if outcome.get("outcome") != "selected":
        state = "withdrawn"
    return _event(time, question, state=state)


def _event(time: datetime, question: Frame, **fields: Any) -> PermissionEvent:
    call = call_of(question)
    named: dict[str, Any] = {
        "id": approval_id(question),
        "tool": tools.tool_name(call),
        "tool_id": tools.tool_id(call) or None,
    }
    return PermissionEvent(time=time, **named, **fields)
