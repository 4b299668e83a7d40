"""An ACP agent's failures as the run's errors. The protocol has codes for few of them; agents put the rest in words."""

import re
from typing import Any, Final

from activities.agents.acp.frames import AUTH_REQUIRED
from activities.agents.frames import Frame
from activities.untrusted_json import count_of, object_at, text_of
from steersman.contracts.errors import AgentFailed, AuthenticationFailed, RunError

RATE_LIMITED, OVERLOADED = 429, 529
_STATUS = re.compile(r"\b(?:status|code|HTTP|API Error)\b\W{0,4}(\d{3})\b")
_NO_KEY: Final = ("API key not valid", "Invalid API key", "Not logged in", "Authentication required")


def agent_error(error: Any, what: str) -> RunError:
    """The error in an answer of the agent. `what`: what was asked of it."""
    frame = error if isinstance(error, dict) else {}
    message = _message(frame)
    status = _status(frame, message)
    if frame.get("code") == AUTH_REQUIRED or status in (401, 403) or any(sign in message for sign in _NO_KEY):
        return AuthenticationFailed(f"the agent could not authenticate: {message}")
    facts: dict[str, Any] = {"api_error_status": status} if status else {}
    if status in (RATE_LIMITED, OVERLOADED):
        facts["rate_limit"] = {"resets_at": None, "limit": "overloaded" if status == OVERLOADED else None}
    return AgentFailed(f"{what}: {message}", **facts)


def _message(frame: Frame) -> str:
    """The error's message, with the details that say more than "Internal error"."""
    data = frame.get("data")
    details = data if isinstance(data, str) else text_of(object_at(frame, "data").get("details"))
    parts = [text_of(frame.get("message")), details]
    return ": ".join(part for part in parts if part)[:4000] or "the agent gave no reason"


def _status(frame: Frame, message: str) -> int:
    """The HTTP status of the model's service, where the error says one; else 0."""
    code = count_of(frame.get("code"))
    if 400 <= code < 600:
        return code
    found = _STATUS.search(message)
    return int(found[1]) if found and 400 <= int(found[1]) < 600 else 0
