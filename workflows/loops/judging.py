"""What an iteration came to, and what follows from it: pure judgement."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import ValidationError
from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError

from steersman.contracts.errors import ErrorType
from steersman.contracts.loop import LoopRequest, Verify
from steersman.contracts.loop_state import CheckpointKind, ItemList, StopReason, Verification
from steersman.contracts.request import Limits
from steersman.contracts.run import RunResult, RunState, Usage
from workflows.loops.memory import Hold, Memory

MAX_OUTPUT = 4000
NOT_FOUND_CODES = (126, 127)
"""What a shell says of a command that is not there, or is no program."""
MAX_MISSING = 2
LONGEST_BACKOFF = timedelta(minutes=10)
FIRST_LIMIT_WAIT, LONGEST_LIMIT_WAIT = timedelta(minutes=1), timedelta(hours=1)
LATEST_RESET = timedelta(days=8)
"""No provider's window is longer; what says so is wrong."""
AFTER_RESET = timedelta(seconds=2)


NOTHING = Usage()


@dataclass(frozen=True)
class Ran:
    """How the run of an iteration ended."""

    how: Literal["finished", "interrupted", "failed", "rate_limited", "stopped_by_hand"]
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
        return {"finished": "iteration", "failed": "failure"}.get(self.how, "pause")  # type: ignore[return-value]


def ran(result: RunResult) -> Ran:
    """A run that closed without an error."""
    interrupted = result.stop_reason == "interrupted"
    return _with(result, "interrupted" if interrupted else "finished")


def did_not_run(error: BaseException) -> Ran:
    """A run that raised; "stopped_by_hand" for one that was cancelled or terminated: its state is asked for next."""
    cause: BaseException | None = error.cause if isinstance(error, ChildWorkflowError) else error
    if isinstance(cause, ApplicationError):
        result = _details(cause)
        limited = _rate_limit(result)
        told = {"error": cause.message, "error_type": cause.type}
        if limited is not None:
            return _with(result, "rate_limited", **told, resets_at=_time(limited.get("resets_at")))
        return _with(result, "failed", **told)
    if isinstance(cause, CancelledError):
        return Ran("stopped_by_hand", error="its run was stopped")
    return Ran("stopped_by_hand", error=f"its run ended unasked: {cause}"[:500])


def as_far_as_known(found: RunState, before: Ran) -> Ran:
    """What a run that closed without a result had come to."""
    return Ran(
        before.how,
        session_id=found.session_id,
        usage=found.usage,
        cost_usd=found.cost_usd,
        turns=found.turns,
        error=before.error,
    )


def _with(result: RunResult | None, how: Any, **more: Any) -> Ran:
    if result is None:
        return Ran(how, **more)
    return Ran(
        how,
        text=result.text,
        session_id=result.session_id,
        usage=result.usage,
        cost_usd=result.cost_usd,
        turns=result.turns,
        took_s=(result.ended_at - result.started_at).total_seconds(),
        **more,
    )


def _details(error: ApplicationError) -> RunResult | None:
    try:
        return RunResult.model_validate(error.details[0]) if error.details else None
    except ValidationError:
        return None


def _rate_limit(result: RunResult | None) -> dict[str, Any] | None:
    found = result.facts.get("rate_limit") if result else None
    return found if isinstance(found, dict) else None


def _time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found and found.tzinfo else None


# ---- limits


def limits_left(request: LoopRequest, memory: Memory, active_s: float) -> Limits:
    """The limits of the next run: what the template asks for, and no more than the loop has left."""
    own, limits, totals = request.run.limits, memory.limits, memory.totals
    cost = limits.cost_usd - totals.cost_usd if limits.cost_usd is not None else None
    tokens = limits.tokens - totals.tokens if limits.tokens is not None else None
    left = limits.duration_s - active_s if limits.duration_s is not None else None
    return own.model_copy(
        update={
            "cost_usd": _least(own.cost_usd, cost),
            "tokens": _least(own.tokens, tokens),
            "duration_s": _least(limits.iteration_duration_s, left),
            "idle_s": limits.idle_s,
        }
    )


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def reached(memory: Memory, active_s: float) -> tuple[StopReason, str] | None:
    """The loop's limit that is used up, and a sentence on it."""
    limits, totals = memory.limits, memory.totals
    spent: tuple[tuple[StopReason, float | None, float, str], ...] = (
        (StopReason.COST, limits.cost_usd, totals.cost_usd, "limits.cost_usd: ${0:.4f} of ${1:g} are spent"),
        (StopReason.TOKENS, limits.tokens, totals.tokens, "limits.tokens: {0} of {1} are used"),
        (StopReason.DURATION, limits.duration_s, active_s, "limits.duration_s: the loop was at work for {0:.0f} s"),
        (StopReason.FAILURES, limits.failures or None, memory.failures, "{0} iterations in a row failed"),
        (
            StopReason.NO_PROGRESS,
            limits.no_progress or None,
            memory.no_progress,
            "{0} iterations in a row changed nothing",
        ),
    )
    for reason, limit, used, text in spent:
        if limit is not None and used >= limit:
            last = f", the last one: {memory.last_error}" if reason == StopReason.FAILURES else ""
            return reason, text.format(used, limit) + last
    if totals.iterations >= limits.iterations and not memory.unfinished:
        return StopReason.ITERATIONS, f"limits.iterations: {totals.iterations} of {limits.iterations} are done"
    return None


# ---- done


def items_closed(request: LoopRequest, items: ItemList | None) -> bool:
    """Whether nothing is left to do, as far as `done` asks."""
    wanted = request.done.items
    if wanted is None:
        return True
    if items is None or items.error:
        return False
    return items.count.left == 0 and (items.count.total > 0 or wanted.allow_empty)


def is_done(request: LoopRequest, memory: Memory) -> bool:
    """Whether everything in `done` holds. What could not be looked at does not."""
    verified = memory.verification
    passed = verified is not None and verified.status == "passed" and verified.iteration == memory.iteration
    return (
        items_closed(request, memory.items)
        and (request.done.verify is None or passed)
        and (request.done.promise is None or memory.promised)
    )


def wants_verification(request: LoopRequest, memory: Memory) -> bool:
    """Whether this iteration's work is to be verified."""
    verify = request.done.verify
    if verify is None:
        return False
    promised = request.done.promise is None or memory.promised
    return verify.every_iteration or (items_closed(request, memory.items) and promised)


# ---- verification


def verified(
    verify: Verify, outcome: RunResult | BaseException, iteration: int, run: str, now: datetime
) -> Verification:
    """What the verification's run says."""
    told: dict[str, Any] = {"command": verify.shown()[:500], "iteration": iteration, "run": run, "time": now}
    if isinstance(outcome, RunResult):
        return Verification(status="passed", exit_code=0, output=outcome.text[-MAX_OUTPUT:], **told)
    cause = outcome.cause if isinstance(outcome, ChildWorkflowError) else outcome
    result = _details(cause) if isinstance(cause, ApplicationError) else None
    kind = cause.type if isinstance(cause, ApplicationError) else None
    output = (result.text if result else "")[-MAX_OUTPUT:] or str(cause)[:500]
    code = result.facts.get("exit_code") if result else None
    exit_code = code if isinstance(code, int) else None
    if kind == ErrorType.RUN_TIMED_OUT:
        return Verification(status="timed_out", output=output, **told)
    # Only a program that ran and said no is a failure; all else means that nobody could verify.
    missing = kind != ErrorType.AGENT_CRASHED or exit_code in NOT_FOUND_CODES
    return Verification(status="missing" if missing else "failed", exit_code=exit_code, output=output, **told)


# ---- what holds the next iteration up


def hold_after(request: LoopRequest, memory: Memory, outcome: Ran, now: datetime) -> Hold | None:
    """Why the next iteration does not begin at once."""
    if outcome.how == "stopped_by_hand":
        return Hold(kind="paused", reason=f"iteration {memory.iteration}: {outcome.error}")
    if outcome.how == "interrupted":
        return Hold(kind="paused", reason=f"iteration {memory.iteration} was interrupted")
    if outcome.how == "rate_limited":
        until = _limit_ends(memory, outcome, now)
        return Hold(kind="rate_limit", reason="the provider limits the account", until=until)
    if outcome.how == "failed":
        until = now + _backoff(request, memory)
        return Hold(kind="sleep", reason=f"after a failure: {outcome.error}"[:500], until=until)
    return _hold_between(request, memory, now)


def _limit_ends(memory: Memory, outcome: Ran, now: datetime) -> datetime:
    wait = min(FIRST_LIMIT_WAIT * 2 ** min(memory.rate_limits - 1, 10), LONGEST_LIMIT_WAIT)
    until = outcome.resets_at + AFTER_RESET if outcome.resets_at else now + wait
    return min(max(until, now + timedelta(seconds=1)), now + LATEST_RESET)


def _backoff(request: LoopRequest, memory: Memory) -> timedelta:
    least = request.pause_between_s
    growing = max(least, 1.0) * 2.0 ** min(memory.failures - 1, 20)
    return timedelta(seconds=max(min(growing, LONGEST_BACKOFF.total_seconds()), least))


def _hold_between(request: LoopRequest, memory: Memory, now: datetime) -> Hold | None:
    if waits := needs_person(memory):
        return Hold(kind="decision", reason=waits)
    if memory.mode == "checkpoint" or (memory.mode == "batch" and memory.since_decision >= request.batch_size):
        return Hold(kind="decision", reason=f"iteration {memory.iteration} is finished")
    if request.pause_between_s:
        return Hold(kind="sleep", until=now + timedelta(seconds=request.pause_between_s))
    return None


def needs_person(memory: Memory) -> str | None:
    """Why no agent can go on: all that is left is blocked, or waits for a review."""
    items = memory.items
    if items is None or items.error or items.count.left == 0 or items.count.workable:
        return None
    count = items.count
    return f"nothing that is left can be worked on: {count.blocked} blocked, {count.needs_review} to be reviewed"
