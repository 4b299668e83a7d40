"""What a run came to: pure reading of how a child workflow closed. What follows from it is in `judging`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError, WorkflowAlreadyStartedError

from steersman.contracts.errors import ErrorType
from steersman.contracts.loop import Verify
from steersman.contracts.loop_state import CheckpointKind, Verification
from steersman.contracts.run import RunResult, RunState, Usage

MAX_ERROR = 300
MAX_OUTPUT = 4000
NOT_FOUND_CODES = (126, 127)
"""What a shell says of a command that is not there, or is no program."""
NOTHING = Usage()

Closed = RunResult | BaseException
"""How a child closed."""


@dataclass(frozen=True)
class Ran:
    """How the run of an iteration ended."""

    how: Literal["finished", "interrupted", "failed", "rate_limited", "stopped_by_hand"]
    run: str | None = None
    text: str = ""
    session_id: str | None = None
    usage: Usage = NOTHING
    cost_usd: float = 0.0
    turns: int = 0
    error: str | None = None
    error_type: str | None = None
    resets_at: datetime | None = None
    took_s: float = 0.0

    @property
    def checkpoint_kind(self) -> CheckpointKind:
        """The kind of checkpoint that is made of it."""
        if self.how == "finished":
            return "iteration"
        return "failure" if self.how == "failed" else "pause"

    @property
    def reached_agent(self) -> bool:
        """The agent has read its prompt, and its session can be gone on with."""
        return self.session_id is not None and self.turns > 0


def ran(run: str, closed: Closed) -> Ran:
    """What a run of the agent came to; of one "stopped_by_hand" the state has to be asked for."""
    if isinstance(closed, RunResult):
        interrupted = closed.stop_reason == "interrupted"
        return _of(run, closed, "interrupted" if interrupted else "finished")
    if isinstance(closed, WorkflowAlreadyStartedError):
        return Ran("stopped_by_hand", error=taken(run))
    cause = _cause(closed)
    if isinstance(cause, ApplicationError):
        result, limited = _details(cause), _rate_limit(cause)
        told = {"error": cause.message[:MAX_ERROR], "error_type": cause.type}
        if limited is not None:
            return _of(run, result, "rate_limited", **told, resets_at=_time(limited.get("resets_at")))
        return _of(run, result, "failed", **told)
    if isinstance(cause, CancelledError):
        return Ran("stopped_by_hand", run, error="its run was stopped")
    return Ran("stopped_by_hand", run, error=f"its run was ended: {cause}"[:MAX_ERROR])


def stopped(closed: Closed) -> bool:
    """It was cancelled or terminated, and came to nothing of itself."""
    return not isinstance(closed, RunResult) and not isinstance(_cause(closed), ApplicationError)


def taken(run: str) -> str:
    """Why a run could not be started whose id is somebody else's."""
    return f"a workflow {run} that is none of this loop's runs is open: end it, then resume"[:MAX_ERROR]


def as_far_as_known(found: RunState, before: Ran) -> Ran:
    """What a run that closed without a result had come to."""
    return Ran(
        before.how,
        before.run,
        session_id=found.session_id,
        usage=found.usage,
        cost_usd=found.cost_usd,
        turns=found.turns,
        error=before.error,
    )


def verified(verify: Verify, closed: Closed, iteration: int, run: str, now: datetime) -> Verification:
    """What the verification's run says."""
    told: dict[str, Any] = {"command": verify.shown()[:500], "iteration": iteration, "run": run, "time": now}
    if isinstance(closed, RunResult):
        return Verification(status="passed", exit_code=0, output=closed.text[-MAX_OUTPUT:], **told)
    cause = _cause(closed)
    result = _details(cause) if isinstance(cause, ApplicationError) else None
    kind = cause.type if isinstance(cause, ApplicationError) else None
    said = cause.message if isinstance(cause, ApplicationError) else str(cause)
    output = (result.text if result else "")[-MAX_OUTPUT:] or said[:MAX_ERROR]
    code = result.facts.get("exit_code") if result else None
    exit_code = code if isinstance(code, int) else None
    if kind == ErrorType.RUN_TIMED_OUT:
        return Verification(status="timed_out", output=output, **told)
    # Only a program that ran and said no is a failure; all else means that nobody could verify.
    missing = kind != ErrorType.AGENT_CRASHED or exit_code in NOT_FOUND_CODES
    return Verification(status="missing" if missing else "failed", exit_code=exit_code, output=output, **told)


def _of(run: str, result: RunResult | None, how: Any, **more: Any) -> Ran:
    if result is None:
        return Ran(how, run, **more)
    return Ran(
        how,
        run,
        text=result.text,
        session_id=result.session_id,
        usage=result.usage,
        cost_usd=result.cost_usd,
        turns=result.turns,
        took_s=(result.ended_at - result.started_at).total_seconds(),
        **more,
    )


def _cause(error: BaseException) -> BaseException | None:
    return error.cause if isinstance(error, ChildWorkflowError) else error


def _details(error: ApplicationError) -> RunResult | None:
    try:
        return RunResult.model_validate(error.details[0]) if error.details else None
    except ValueError:  # pydantic's error is one
        return None


def _rate_limit(error: ApplicationError) -> dict[str, Any] | None:
    result = _details(error)
    found = result.facts.get("rate_limit") if result else None
    return found if isinstance(found, dict) else None


def _time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found and found.tzinfo else None
