"""Error types on the wire and how a wrong input becomes a sentence.

A run that does not succeed fails with a Temporal ApplicationError whose `type` is one of ErrorType and whose first
detail is what a RunResult would be.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

from steersman.contracts.run import RunResult

MAX_PATH = 200
ASK_AGAIN: Final = (
    "the workflow was asked while events waited for it, and took them too early: "
    "it begins anew from its history. Ask again"
)
"""How a workflow task or a query fails that comes to a memory of the workflow which no replay would have; see
workflows/runner.py.
"""


class ErrorType(StrEnum):
    """The `type` of the ApplicationError that a failed run closes with."""

    INVALID_REQUEST = "InvalidRequest"
    AGENT_FAILED = "AgentFailed"
    AGENT_CRASHED = "AgentCrashed"
    RUN_TIMED_OUT = "RunTimedOut"
    BUDGET_EXCEEDED = "BudgetExceeded"
    WORKSPACE_ERROR = "WorkspaceError"
    AGENT_NOT_INSTALLED = "AgentNotInstalled"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    LOOP_FAILED = "LoopFailed"


class RunError(Exception):
    """A run cannot go on, for a reason its owner must be told. Subclasses fix the wire type."""

    type: ErrorType = ErrorType.AGENT_FAILED

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.result: RunResult | None = None
        """What the run came to, where a client tells of its end; of a loop, a LoopResult."""
        self.facts: dict[str, Any] = facts
        self.code: str | None = None
        """`result.code`, e.g. "interrupted" where a person had ended the run."""


class InvalidRequest(RunError):
    """The request itself is wrong; the message names the field."""

    type = ErrorType.INVALID_REQUEST


class AgentFailed(RunError):
    """The agent ended its work with an error of its own."""

    type = ErrorType.AGENT_FAILED


class AgentCrashed(RunError):
    """The agent's process ended without an answer. Facts: exit_code, signal, stderr (its last lines)."""

    type = ErrorType.AGENT_CRASHED


class RunTimedOut(RunError):
    """limits.duration_s or limits.idle_s was reached."""

    type = ErrorType.RUN_TIMED_OUT


class BudgetExceeded(RunError):
    """limits.turns, limits.cost_usd or limits.tokens was reached."""

    type = ErrorType.BUDGET_EXCEEDED


class WorkspaceError(RunError):
    """The workspace exists but cannot be worked in."""

    type = ErrorType.WORKSPACE_ERROR


class AgentNotInstalled(RunError):
    """The agent's program is not on the machine."""

    type = ErrorType.AGENT_NOT_INSTALLED


class AuthenticationFailed(RunError):
    """The agent has no key, or its key was refused."""

    type = ErrorType.AUTHENTICATION_FAILED


class LoopFailed(RunError):
    """A loop gave up: too many failed iterations, or nothing that could verify them."""

    type = ErrorType.LOOP_FAILED


ERRORS: dict[ErrorType, type[RunError]] = {
    error.type: error
    for error in (
        InvalidRequest,
        AgentFailed,
        AgentCrashed,
        RunTimedOut,
        BudgetExceeded,
        WorkspaceError,
        AgentNotInstalled,
        AuthenticationFailed,
        LoopFailed,
    )
}


def sentence(error: ValidationError, what: str, under: tuple[str, ...] = ()) -> str:
    """What is wrong with `what`, naming each field, at most five. Values are not repeated: they may be secret.

    `under`: where the validated object stands in `what`.
    """
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    parts = [": ".join(filter(None, (_path((*under, *each["loc"])), _plain(each["msg"])))) for each in problems[:5]]
    more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
    return f"{what}: {'; '.join(parts)}{more}"


_FORMS = {(field, form) for field in ("plan", "command") for form in ("text", "file", "list")}
"""Field and tag of unions whose members are told apart by their form."""


def _path(loc: Sequence[int | str]) -> str:
    # pydantic puts the tag of a union's member into the path, which says nothing to the caller.
    names = [str(part) for part in loc]
    names = [name for name, before in zip(names, ["", *names], strict=False) if (before, name) not in _FORMS]
    if len(names) > 1 and names[-1] in ("literal", "from_env", "from_file"):
        names = names[:-1] if names[-1] == "literal" or names[-2] == names[-1] else names
    path = ".".join(names)
    return path if len(path) <= MAX_PATH else f"{path[:MAX_PATH]}…"


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return {"Extra inputs are not permitted": "unknown field", "Field required": "is required"}.get(text, text)
