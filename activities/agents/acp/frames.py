"""Frames of the Agent Client Protocol: JSON-RPC 2.0, one object a line.

A request of ours has the id of the command under which it is written, so every worker makes the same. The official
client library (agent-client-protocol 0.12) counts its ids in memory, which a worker that takes over would begin anew;
tests hold these frames against its schema.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from activities.agents.frames import Frame
from steersman.contracts.attachments import Attachment

PROTOCOL_VERSION: Final = 1

INITIALIZE, SESSION, PROMPT, REPAIR = "initialize", "session", "prompt", "repair"
"""Ids of our own requests. A resumed process's prompt is `resume-N`, a message's `message-<message id>`."""
SETTING = "setting-"
"""The request that sets a mode or a model of the session has the id `setting-<name>`."""
AGAIN = "again-"
"""A message that came too late to steer a turn is written once more, as a prompt, with the id `again-<message id>`."""

METHOD_NOT_FOUND, AUTH_REQUIRED = -32601, -32000


def request(command: str, method: str, params: dict[str, Any]) -> str:
    """A line with a request of ours."""
    return _line({"id": command, "method": method, "params": params})


def notification(method: str, params: dict[str, Any]) -> str:
    """A line with a notification."""
    return _line({"method": method, "params": params})


def result(request_id: Any, value: dict[str, Any]) -> str:
    """A line that answers a request of the agent."""
    return _line({"id": request_id, "result": value})


def refusal(request_id: Any, method: str) -> str:
    """A line that refuses a request of the agent."""
    return _line({"id": request_id, "error": {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}})


def prompt(command: str, session: str, content: Sequence[Frame]) -> str:
    """A line with a prompt of these content blocks."""
    return request(command, "session/prompt", {"sessionId": session, "prompt": list(content)})


def text_blocks(*texts: str) -> list[Frame]:
    """Content blocks of texts; empty ones are left out."""
    return [{"type": "text", "text": text} for text in texts if text]


def image_blocks(images: Sequence[Attachment]) -> list[Frame]:
    """Content blocks of images."""
    return [{"type": "image", "mimeType": each.media_type, "data": each.data} for each in images]


def is_request(frame: Frame) -> bool:
    """Whether the other side waits for an answer."""
    return isinstance(frame.get("method"), str) and "id" in frame


def key_of(request_id: Any) -> str:
    """A request's id as a key: 1 and "1" are two."""
    return json.dumps(request_id)[:200]


def _line(frame: Frame) -> str:
    return json.dumps({"jsonrpc": "2.0", **frame}) + "\n"
