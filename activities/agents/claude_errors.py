"""What Claude Code's failures mean to a run: results that are errors, and processes that died."""

from datetime import datetime

from activities.agents.claude_frames import Frame, number, text_of
from activities.agents.claude_limits import too_long
from activities.ports.agent import ExitFact
from steersman.contracts.errors import (
    AgentCrashed,
    AgentFailed,
    AuthenticationFailed,
    InvalidRequest,
    RunError,
)
from steersman.contracts.model import JsonObject

NO_SESSION = ("No conversation found", "does not match any session")
_NO_KEY = ("Not logged in", "Please run /login", "Invalid API key", "OAuth token")


def result_error(frame: Frame, limit: JsonObject) -> RunError | None:
    """The error in a `result` frame, None where it is an answer. `limit`: facts of the limit it failed for, if any."""
    if not frame.get("is_error"):
        return None
    errors = frame.get("errors")
    text = text_of(frame.get("result")) or "; ".join(map(str, errors if isinstance(errors, list) else ()))
    status = number(frame.get("api_error_status"))
    if any(sign in text for sign in NO_SESSION):
        return InvalidRequest(f"session: {text[:1000]}")
    message = (text or text_of(frame.get("subtype")) or "Claude Code gave no reason")[:4000]
    if status in (401, 403) or any(sign in message for sign in _NO_KEY):
        return AuthenticationFailed(f"Claude Code could not authenticate: {message}")
    return AgentFailed(message, **({"api_error_status": status} if status else {}), **limit)


def hopeless(time: datetime, frame: Frame, patience_s: float | None = None) -> RunError | None:
    """An error that Claude Code would retry for minutes to no use: a key that is refused, a limit that lasts longer
    than `patience_s`.
    """
    status, attempt = number(frame.get("error_status")), number(frame.get("attempt"))
    if status in (401, 403) and attempt >= 2:
        return AuthenticationFailed(
            f"the model's service refused the key (HTTP {status}); set another one for the worker"
        )
    return too_long(time, frame, patience_s)


def crash(exit_fact: ExitFact) -> AgentCrashed:
    """A process that ended before its answer."""
    if exit_fact.lost:
        how = "nobody saw the end of the agent's process: its shim or the machine died"
    elif exit_fact.reason == "lease":
        how = "no worker looked after the agent for longer than lease_s, so its shim stopped it"
    elif exit_fact.signal:
        how = f"the agent's process was killed by signal {exit_fact.signal}"
    else:
        how = f"the agent's process ended with exit code {exit_fact.code} before its work was done"
    last = f": {exit_fact.stderr[-1]}" if exit_fact.stderr else ""
    return AgentCrashed((how + last)[:4000], **_facts(exit_fact))


def start_failure(exit_fact: ExitFact) -> RunError:
    """A process that ended before any session began: what it said on stderr is the reason."""
    said = " ".join(exit_fact.stderr).strip()
    if any(sign in said for sign in _NO_KEY):
        return AuthenticationFailed(said[:1000])
    return crash(exit_fact)


def _facts(exit_fact: ExitFact) -> dict[str, object]:
    return {"exit_code": exit_fact.code, "signal": exit_fact.signal, "stderr": list(exit_fact.stderr)}
