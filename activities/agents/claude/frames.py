"""Claude Code's stream-json frames: their form, and what is read from several kinds of them.

Frames come from an agent that may be confused or hostile: every field is looked at before it is used. Shapes measured
with Claude Code 2.1.327. The events that a frame becomes must not live here.
"""

from collections.abc import Sequence
from typing import Any

from activities.agents.command_ids import uuid_for
from activities.agents.frames import Frame, TooMuch
from activities.untrusted_json import object_at, objects_in, text_of
from steersman.contracts.activities import RunKey
from steersman.contracts.attachments import Attachment

MAX_BLOCKS = 1_000
"""A message of more content blocks is left out."""
DELEGATED = ("local_agent", "local_workflow")
"""Task types that run an agent."""


def user_frame(key: RunKey, name: str, text: str, images: Sequence[Attachment] = ()) -> dict[str, Any]:
    """A user frame of the stream-json input."""
    shown = [
        {"type": "image", "source": {"type": "base64", "media_type": each.media_type, "data": each.data}}
        for each in images
    ]
    return {
        "type": "user",
        "message": {"role": "user", "content": [{"type": "text", "text": text}, *shown] if shown else text},
        "parent_tool_use_id": None,
        "session_id": "default",
        "uuid": uuid_for(key, name),
    }


def is_control_frame(frame: Frame) -> bool:
    """Whether this is a control frame of the form that the SDK assumes; any other would end its reader."""
    kind = frame.get("type")
    if kind == "control_response":
        response = frame.get("response")
        return isinstance(response, dict) and isinstance(response.get("request_id"), str)
    named = isinstance(frame.get("request_id"), str)
    if kind == "control_request":
        request = frame.get("request")
        return named and isinstance(request, dict) and isinstance(request.get("subtype"), str)
    return kind == "control_cancel_request" and named


def blocks(frame: Frame) -> list[Frame]:
    """The content blocks of a message frame. Raises TooMuch."""
    content = object_at(frame, "message").get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and len(content) > MAX_BLOCKS:
        raise TooMuch(f"the message has more than {MAX_BLOCKS} blocks")
    return objects_in(content)


def delegated(frame: Frame) -> set[str]:
    """The background tasks whose end makes Claude Code begin a turn by itself: agents. A shell may run for ever."""
    tasks = objects_in(frame.get("tasks"))
    return {text_of(task.get("task_id")) for task in tasks if task.get("task_type") in DELEGATED}
