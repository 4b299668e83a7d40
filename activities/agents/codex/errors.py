"""Codex's failures as the run's errors."""

from typing import Any

from activities.agents.crashes import crash
from activities.agents.frames import Frame
from activities.ports.agent import ExitFact
from activities.untrusted_json import count_of, object_at, text_of
from steersman.contracts.errors import AgentFailed, AuthenticationFailed, InvalidRequest, RunError

_NO_KEY = ("Missing environment variable", "not logged in", "Not logged in")


def turn_error(error: Frame) -> RunError:
    """The error of a turn that failed."""
    message, info = text_of(error.get("message"))[:4000] or "Codex gave no reason", error.get("codexErrorInfo")
    status = _status(info)
    if status in (401, 403) or info == "unauthorized" or any(sign in message for sign in _NO_KEY):
        return AuthenticationFailed(f"Codex could not authenticate: {message}")
    facts: dict[str, Any] = {"api_error_status": status} if status else {}
    if info == "usageLimitExceeded" or status == 429:
        facts["rate_limit"] = {}
    return AgentFailed(message, **facts)


def session_error(error: Frame) -> RunError:
    """The error of a thread that cannot be started, resumed or forked."""
    message = text_of(error.get("message"))[:1000]
    if "rollout" in message or "session id" in message or "thread id" in message:
        return InvalidRequest(f"session: {message}")
    return AgentFailed(f"Codex could not begin its session: {message}")


def start_failure(exit_fact: ExitFact) -> RunError:
    """A process that ended before any session began."""
    return crash(exit_fact)


def _status(info: object) -> int:
    """The HTTP status in an error's info, which is an object of one kind for errors that have one."""
    for each in info.values() if isinstance(info, dict) else ():
        if status := count_of(object_at(each).get("httpStatusCode")):
            return status
    return 0
