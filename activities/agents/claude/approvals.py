"""Claude Code's requests for permission: asked, answered and withdrawn, as the journal has them.

Functions over the transcript's `pending` (request id -> frame) and `withdrawn` (approval ids). Who answers must not
live here (see conversation).
"""

import hashlib
import json
from datetime import datetime
from typing import Any

from activities.agents.claude.frames import is_control_frame
from activities.agents.claude.snapshot import MAX_ASKED, MAX_TASKS
from activities.agents.frames import Frame
from activities.untrusted_json import bounded, object_at, text_of
from steersman.contracts.events import ErrorEvent, EventBase, PermissionEvent


def is_approval(frame: Frame | None) -> bool:
    """Whether this control request asks for a permission."""
    return object_at(frame, "request").get("subtype") == "can_use_tool"


def asked(time: datetime, frame: Frame, pending: dict[str, Frame], withdrawn: set[str]) -> list[EventBase]:
    """Take a control request of the agent."""
    if not is_control_frame(frame):
        return [ErrorEvent(time=time, message="the agent asked something that nobody can answer")]
    if len(pending) >= MAX_ASKED:
        return [ErrorEvent(time=time, message=f"the agent asks more than {MAX_ASKED} things at once")]
    pending[str(frame.get("request_id"))] = frame
    if not is_approval(frame):
        return []
    request = object_at(frame, "request")
    tool_input, approval = bounded(object_at(request, "input")), approval_id(request)
    withdrawn.discard(approval)
    return [PermissionEvent(time=time, id=approval, tool=_tool(request), input=tool_input, state="asked")]


def answered(time: datetime, frame: Frame, pending: dict[str, Frame]) -> list[EventBase]:
    """Take a control response that was written to the agent."""
    question = pending.pop(str(object_at(frame, "response").get("request_id")), None)
    if not is_approval(question):
        return []
    answer, request = object_at(frame, "response", "response"), object_at(question, "request")
    allowed = answer.get("behavior") == "allow"
    return [
        PermissionEvent(
            time=time,
            id=approval_id(request),
            tool=_tool(request),
            state="allowed" if allowed else "denied",
            message=None if allowed else text_of(answer.get("message"))[:2000],
        )
    ]


def cancelled(time: datetime, frame: Frame, pending: dict[str, Frame], withdrawn: set[str]) -> list[EventBase]:
    """Take a cancel of the agent's own request."""
    question = pending.pop(str(frame.get("request_id")), None)
    if not is_approval(question):
        return []
    request = object_at(question, "request")
    approval = approval_id(request)
    if len(withdrawn) < MAX_TASKS:
        withdrawn.add(approval)
    return [PermissionEvent(time=time, id=approval, tool=_tool(request), state="withdrawn")]


def approval_id(request: dict[str, Any]) -> str:
    """An approval's id: the tool call's own, which a second worker sees again in the journal."""
    tool_id = request.get("tool_use_id")
    if isinstance(tool_id, str) and 0 < len(tool_id) <= 200:
        return tool_id
    question = json.dumps([request.get("tool_name"), request.get("input")], sort_keys=True, default=str)
    return f"ask-{hashlib.sha256(question.encode()).hexdigest()[:16]}"


def _tool(request: Frame) -> str:
    return text_of(request.get("tool_name"))[:200]
