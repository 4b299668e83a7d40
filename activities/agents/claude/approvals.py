"""Claude Code's requests for permission: asked, answered and withdrawn, as the journal has them.

Functions over the transcript's `pending` (request id -> frame) and `withdrawn` (approval ids). Who answers must not
live here (see conversation).
"""

from datetime import datetime
from typing import Any, TypeGuard

from activities.agents import approval_ids
from activities.agents.claude.frames import is_control_frame
from activities.agents.claude.snapshot import MAX_TASKS
from activities.agents.frames import Frame
from activities.untrusted_json import MAX_NAME, bounded, object_at, text_of
from steersman.contracts.events import ErrorEvent, EventBase, PermissionEvent
from steersman.contracts.run import Approval

SHOWN_INPUT = 4096
"""Strings of a tool's input have this many characters in an approval."""


def is_approval(frame: Frame | None) -> TypeGuard[Frame]:
    """Whether this control request asks for a permission."""
    return object_at(frame, "request").get("subtype") == "can_use_tool"


def asked(time: datetime, frame: Frame, pending: dict[str, Frame]) -> list[EventBase]:
    """Take a control request of the agent."""
    if not is_control_frame(frame):
        return [ErrorEvent(time=time, message="the agent asked something that nobody can answer")]
    pending[str(frame.get("request_id"))] = frame
    if not is_approval(frame):
        return []
    return [_event(time, frame, state="asked", input=bounded(object_at(frame, "request", "input")))]


def answered(time: datetime, frame: Frame, pending: dict[str, Frame]) -> list[EventBase]:
    """Take a control response that was written to the agent."""
    question = pending.pop(str(object_at(frame, "response").get("request_id")), None)
    if not is_approval(question):
        return []
    answer = object_at(frame, "response", "response")
    if answer.get("behavior") == "allow":
        return [_event(time, question, state="allowed")]
    return [_event(time, question, state="denied", message=text_of(answer.get("message"))[:2000])]


def cancelled(time: datetime, frame: Frame, pending: dict[str, Frame], withdrawn: set[str]) -> list[EventBase]:
    """Take a cancel of the agent's own request."""
    question = pending.pop(str(frame.get("request_id")), None)
    if not is_approval(question):
        return []
    if len(withdrawn) < MAX_TASKS:
        withdrawn.add(approval_id(question))
    return [_event(time, question, state="withdrawn")]


def approval_id(question: Frame) -> str:
    """The id of the approval that this control request asks for."""
    return approval_ids.of_request(question.get("request_id"))


def asks(question: Frame, asked: Frame) -> bool:
    """Whether this control request asks just that: for these values of the fields of a request for permission."""
    request = object_at(question, "request")
    return all(request.get(name) == value for name, value in asked.items())


def approval_of(question: Frame, now: datetime) -> Approval:
    """What a person is asked by this control request."""
    shown = bounded(object_at(question, "request", "input"), SHOWN_INPUT)
    return Approval(id=approval_id(question), tool=_tool(question), tool_id=_tool_id(question), input=shown, since=now)


def _event(time: datetime, question: Frame, **fields: Any) -> PermissionEvent:
    named: dict[str, Any] = {"id": approval_id(question), "tool": _tool(question), "tool_id": _tool_id(question)}
    return PermissionEvent(time=time, **named, **fields)


def _tool(question: Frame) -> str:
    return text_of(object_at(question, "request").get("tool_name"))[:MAX_NAME]


def _tool_id(question: Frame) -> str | None:
    return text_of(object_at(question, "request").get("tool_use_id"))[:MAX_NAME] or None
