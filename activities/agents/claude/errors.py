"""Claude Code's failures as the run's errors: results that are errors, and processes that died."""

from datetime import datetime

from activities.agents.claude.rate_limits import too_long
from activities.agents.crashes import crash
from activities.agents.frames import Frame
from activities.ports.agent import ExitFact
from activities.untrusted_json import count_of, text_of
from steersman.contracts.errors import (
    AgentFailed,
    AuthenticationFailed,
    InvalidRequest,
    RunError,
)
from steersman.contracts.model import JsonObject
from steersman.contracts.request import PermissionMode

NO_SESSION = ("No conversation found", "does not match any session")
_SCHEMA = "--json-schema is not a valid JSON Schema:"
_NO_KEY = ("Not logged in", "Please run /login", "Invalid API key", "OAuth token")


def result_error(frame: Frame, limit: JsonObject) -> RunError | None:
    """The error in a `result` frame; None if it is an answer. `limit`: facts of the limit it failed for, if any."""
    if not frame.get("is_error"):
        return None
    errors = frame.get("errors")
    text = text_of(frame.get("result")) or "; ".join(map(str, errors if isinstance(errors, list) else ()))
    status = count_of(frame.get("api_error_status"))
    if any(sign in text for sign in NO_SESSION):
        return InvalidRequest(f"session: {text[:1000]}")
    message = (text or text_of(frame.get("subtype")) or "Claude Code gave no reason")[:4000]
    if status in (401, 403) or any(sign in message for sign in _NO_KEY):
        return AuthenticationFailed(f"Claude Code could not authenticate: {message}")
    return AgentFailed(message, **({"api_error_status": status} if status else {}), **limit)


def hopeless(time: datetime, frame: Frame, max_wait_s: float | None = None) -> RunError | None:
    """The error in an api_retry frame that no retry will mend: a refused key, a limit that lasts over `max_wait_s`."""
    status, attempt = count_of(frame.get("error_status")), count_of(frame.get("attempt"))
    if status in (401, 403) and attempt >= 2:
        return AuthenticationFailed(
            f"the model's service refused the key (HTTP {status}); set another one for the worker"
        )
    return too_long(time, frame, max_wait_s)


def kept_from_full(mode: PermissionMode, frame: Frame) -> RunError | None:
    """The error in an `init` frame of a run that may do everything, where Claude Code's settings forbid that: it begins
    in a mode that asks instead, and to answer what it asks would be to go round them.
    """
    begun = frame.get("permissionMode")
    if mode != "full" or not isinstance(begun, str) or begun == "bypassPermissions":
        return None
    return InvalidRequest(
        f'permissions.mode: Claude Code refuses "full" here, and began in its mode "{begun[:100]}": its settings have '
        "permissions.disableBypassPermissionsMode; ask for another mode"
    )


def start_failure(exit_fact: ExitFact) -> RunError:
    """A process that ended before any session began: its stderr is the reason."""
    reason = " ".join(exit_fact.stderr).strip()
    if any(sign in reason for sign in _NO_KEY):
        return AuthenticationFailed(reason[:1000])
    if _SCHEMA in reason:
        return InvalidRequest(f"output_schema: Claude Code refuses it:{reason.rpartition(_SCHEMA)[2][:1000]}")
    return crash(exit_fact)
