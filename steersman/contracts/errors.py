"""Error types on the wire, the exceptions that stand for them, and wrong inputs described in a sentence.

A run that does not succeed fails with a Temporal ApplicationError whose `type` is one of ErrorType and whose first
detail is a RunResult with status "failed" (of a loop, a LoopResult).
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

from steersman.contracts.run import RunResult

MAX_PATH: Final = 200
"""Characters of a field's path in a sentence."""
ASK_AGAIN: Final = (
    "the workflow was asked while events waited for it, and took them too early: "
    "it begins anew from its history. Ask again"
)
"""The message of a workflow task or query that fails because the worker's memory of the workflow is one that no replay
would produce; see workflows/runner.py. Clients repeat the query.
"""
CLOSED_OVER_UPDATE: Final = "AcceptedUpdateCompletedWorkflow"
"""Temporal's error type of an update whose workflow closed before the update had completed."""
DIVERGED: Final = "[TMPRL1100]"
"""How Temporal begins to say that a worker's memory is another one than the history: of one that was frozen while
another went on. It has forgotten the workflow by then, and the next look replays it.
"""


def asks_again(message: str) -> bool:
    """Whether a query that failed so is worth repeating."""
    return message == ASK_AGAIN or message.startswith(DIVERGED)


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
    PLACE_ERROR = "PlaceError"
    LOOP_FAILED = "LoopFailed"


REFUSED: Final = "Refused"
"""The `type` of the ApplicationError of an update that is well formed and that the workflow cannot accept now."""


class ActivityErrorType(StrEnum):
    """The `type` of an ApplicationError that fails an attempt of an activity. No run closes with one of these."""

    DETACHED = "Detached"
    """The worker let go of the run and left the agent at work; retried, by any worker of the host."""
    FENCED = "Fenced"
    """A newer worker leads the run; retried."""
    INCOMPATIBLE_SHIM = "IncompatibleShim"
    """The agent's shim speaks a protocol that this worker does not; retried, as an older worker may speak it."""
    STORE_GONE = "StoreGone"
    """The state directory is not the store that the run was claimed for; retried, as a disk may come back."""
    STATE_UNWRITABLE = "StateUnwritable"
    """The state directory cannot be read or written. `run_agent` is retried; of `finalize_run` the sweep takes over."""
    EXHAUSTED = "Exhausted"
    """The worker has no descriptors, memory or processes left; `run_agent` is retried."""
    UNREACHABLE = "Unreachable"
    """The machine on which the agent works cannot be reached; retried, and the agent works on."""
    WORKSPACE_GATED = "WorkspaceGated"
    """Changes of another run wait to be merged into the workspace; retried where the request says so."""
    STATE_UNKNOWN = "StateUnknown"
    """The workflow could not be asked how many processes the run has had; retried."""
    AGENT_UNKNOWN = "AgentUnknown"
    """The worker lacks the package of an agent that another worker of the host had; `run_agent` is retried."""
    STATE_GONE = "StateGone"
    """What the host had written down of the run is not there any more; not retried."""
    UNREADABLE_RESULT = "UnreadableResult"
    """Somebody else than a worker has completed the activity, with a result of another shape; not retried."""
    GIT_FAILED = "GitFailed"
    """git refused, with its message; not retried."""


class RunError(Exception):
    """A run or loop failed, or a request was refused. Subclasses set the type on the wire."""

    type: ErrorType = ErrorType.AGENT_FAILED

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.result: RunResult | None = None
        """Where the client raises it: the result with status "failed"; of a loop, a LoopResult."""
        self.facts: dict[str, Any] = facts
        """Details of the failure, as JSON."""
        self.code: str | None = None
        """`result.code`, e.g. "interrupted" where a person ended the run."""


class InvalidRequest(RunError):
    """The request or message is wrong; the message names the field."""

    type = ErrorType.INVALID_REQUEST


class AgentFailed(RunError):
    """The agent ended with an error of its own."""

    type = ErrorType.AGENT_FAILED


class AgentCrashed(RunError):
    """The agent's process ended without an answer. Facts: exit_code, signal, stderr (the last lines)."""

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
    """The agent's program is not on the host."""

    type = ErrorType.AGENT_NOT_INSTALLED


class AuthenticationFailed(RunError):
    """The agent has no key, or its key was refused."""

    type = ErrorType.AUTHENTICATION_FAILED


class PlaceError(RunError):
    """The place where the agent should live cannot be had: an image, a quota, a node. Facts: reason and detail (the
    cluster's own), job, namespace.
    """

    type = ErrorType.PLACE_ERROR


class LoopFailed(RunError):
    """A loop gave up: too many iterations failed in a row, or the verification command is missing."""

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
        PlaceError,
        LoopFailed,
    )
}


def sentence(error: ValidationError, what: str, under: tuple[str, ...] = ()) -> str:
    """What is wrong with `what` (the model's name). `under`: the path of the validated object in `what`."""
    return f"{what}: {problems(error, under)}"


def why_unreadable(error: Exception) -> str:
    """What is wrong with what could not be read, without its values."""
    return problems(error) if isinstance(error, ValidationError) else type(error).__name__


def problems(error: ValidationError, under: tuple[str, ...] = ()) -> str:
    """What is wrong: at most five fields and their problems, without values, which may be secret."""
    errors = error.errors(include_url=False, include_input=False)
    places = [each["loc"] for each in errors]
    # A list is also short of what was wrong in it.
    found = [e for e in errors if e["type"] != "too_short" or not any(_is_in(loc, e["loc"]) for loc in places)]
    told = [_problem(each) for each in found]
    parts = [": ".join(filter(None, (_path((*under, *loc)), message))) for loc, message in told[:5]]
    more = f" (and {len(told) - 5} more)" if len(told) > 5 else ""
    return f"{'; '.join(parts)}{more}"


def _is_in(loc: Sequence[int | str], whole: Sequence[int | str]) -> bool:
    return len(loc) > len(whole) and loc[: len(whole)] == whole


def _problem(error: Mapping[str, Any]) -> tuple[tuple[int | str, ...], str]:
    """Where something is wrong, and what."""
    if error["type"] == "union_tag_invalid":
        wrong = error["ctx"]
        return (*error["loc"], wrong["discriminator"].strip("'")), f"must be one of {wrong['expected_tags']}"
    if error["type"] == "json_invalid" and "hex escape" in error["msg"]:  # half of a pair, of a JSON that is one else
        return error["loc"], "a text in it is no Unicode: it has half of a surrogate pair"
    if error["type"] == "string_unicode":
        return error["loc"], "is no Unicode: it has half of a surrogate pair"
    return error["loc"], plain(error["msg"])


_FORMS = {(field, form) for field in ("plan", "command") for form in ("text", "file", "list")}
_FORMS |= {("runtime", kind) for kind in ("local", "ssh", "kubernetes")}
"""Field and tag of the unions whose members have a tag."""


def _path(loc: Sequence[int | str]) -> str:
    # pydantic puts the tag of a union's member into the path: the caller has never seen it.
    names = [str(part) for part in loc]
    names = [name for name, before in zip(names, ["", *names], strict=False) if (before, name) not in _FORMS]
    if len(names) > 1 and names[-1] in ("literal", "from_env", "from_file"):
        names = names[:-1] if names[-1] == "literal" or names[-2] == names[-1] else names
    path = ".".join(names)
    return path if len(path) <= MAX_PATH else f"{path[:MAX_PATH]}…"


_KINDS: Final = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "dictionary": "an object",
    "list": "a list",
    "tuple": "a list",
    "array": "a list",
}
_WORDS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (r"Value error, (.*)", r"\1"),
        (r"Extra inputs are not permitted", "unknown field"),
        (r"Field required", "is required"),
        (r"Input should be greater than or equal to (.*)", r"must be at least \1"),
        (r"Input should be greater than (.*)", r"must be more than \1"),
        (r"Input should be less than or equal to (.*)", r"must be at most \1"),
        (r"Input should be (?!a valid )(.*)", r"must be \1"),
        (r"String should match pattern '(.*)'", r"must be as the pattern \1 says"),
        (r"\w+ should have at least 1 (?:item after validation.*|character)", "must not be empty"),
        (r"\w+ should have (at most 1) item after validation.*", r"must have \1 entry"),
        (r"\w+ should have (at (?:least|most) \d+) items? after validation.*", r"must have \1 entries"),
        (r"\w+ should have (.*)", r"must have \1"),
    )
)
"""What pydantic says, and what a person is told."""
_KIND: Final = re.compile(r"Input should be a valid (\w+)(.*)", re.DOTALL)


def plain(message: str) -> str:
    """What pydantic says of a wrong value, in words that go after its name."""
    if found := _KIND.fullmatch(message):
        kind = _KINDS.get(found[1])
        return f"must be {kind}" if kind else f"must be a {found[1]}{found[2]}"
    for pattern, words in _WORDS:
        if found := pattern.fullmatch(message):
            return found.expand(words)
    return message
