"""What follows from an iteration: done or not, which limit is reached, what to wait for, how the loop ends. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from steersman.contracts.agents import BOUND_BY_RATE_LIMIT
from steersman.contracts.errors import ErrorType, RunError
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import ItemList, StopReason
from steersman.contracts.request import Limits
from workflows.agent_loop.carried_state import CarriedState, WaitReason
from workflows.agent_loop.outcomes import MAX_ERROR, IterationOutcome

MAX_MISSING = 2
"""A loop fails after this many verifications in a row whose command does not exist."""
LONGEST_BACKOFF = timedelta(minutes=10)
FIRST_LONG_WAIT, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=1)
LATEST_RESET = timedelta(days=8)
"""A rate limit's reset further away than this is an error: no provider's window is longer."""
AFTER_RESET = timedelta(seconds=2)
"""How long after its reset a rate limit is tried again."""
RATE_LIMIT_S = 60.0
"""A rate limit of more seconds ends the run: the loop waits for it with a timer, which needs no process."""
CENT_FRACTION = 1e-9
"""Dollars are added up in floating point: a cost limit is reached this much earlier."""


# Done, and verified.


def items_closed(request: LoopRequest, items: ItemList | None) -> bool:
    """Whether `done.items` holds: no item is left."""
    wanted = request.done.items
    if wanted is None:
        return True
    if items is None or items.error:
        return False
    return items.count.left == 0 and (items.count.total > 0 or wanted.allow_empty)


def is_done(request: LoopRequest, carried: CarriedState) -> bool:
    """Whether everything in `done` holds. What could not be read does not."""
    verified = carried.verification
    passed = verified is not None and verified.status == "passed" and verified.iteration == carried.iteration
    return (
        items_closed(request, carried.items)
        and (request.done.verify is None or passed)
        and (request.done.promise is None or carried.promised)
    )


def has_unread_input(carried: CarriedState) -> bool:
    """Whether there is feedback, or a revised plan, that no prompt has contained yet."""
    return bool(carried.feedback) or carried.revised


def needs_verification(request: LoopRequest, carried: CarriedState) -> bool:
    """Whether the work of this iteration is to be verified."""
    verify = request.done.verify
    if verify is None:
        return False
    promised = request.done.promise is None or carried.promised
    return verify.every_iteration or (items_closed(request, carried.items) and promised)


# Waiting.


def wait_after(
    request: LoopRequest, carried: CarriedState, outcome: IterationOutcome, now: datetime
) -> WaitReason | None:
    """Why the next iteration does not begin at once; None if it does."""
    if outcome.how in ("stopped_by_hand", "interrupted"):
        why = f": {outcome.error}" if outcome.error else " was interrupted"
        return WaitReason(kind="paused", reason=f"iteration {carried.iteration}{why}")
    if outcome.how == "rate_limited":
        until = _limit_ends(carried, outcome, now)
        return WaitReason(kind="rate_limit", reason="the provider limits the account", until=until)
    failed = outcome.how == "failed"
    if reason := _needs_decision(request, carried, failed=failed):
        return WaitReason(kind="decision", reason=reason)
    wait = _backoff(request, carried, outcome) if failed else timedelta(seconds=request.pause_between_s)
    reason = f"after a failure: {outcome.error}"[:MAX_ERROR] if failed else ""
    return WaitReason(kind="sleep", reason=reason, until=now + wait) if wait else None


def _limit_ends(carried: CarriedState, outcome: IterationOutcome, now: datetime) -> datetime:
    wait = long_wait(carried.rate_limits)
    if outcome.resets_at is None:
        return now + wait
    # Bounded before the addition: the year 9999 has no tomorrow.
    reset = min(max(outcome.resets_at, now), now + LATEST_RESET).astimezone(UTC) + AFTER_RESET
    # A limit that is still there after its reset is not tried again every second.
    return max(reset, now + wait) if carried.rate_limits > 1 else reset


def _backoff(request: LoopRequest, carried: CarriedState, outcome: IterationOutcome) -> timedelta:
    least = request.pause_between_s
    if outcome.waits_for_place:
        return max(long_wait(carried.failures), timedelta(seconds=least))
    growing = max(least, 1.0) * 2.0 ** min(carried.failures - 1, 20)
    return timedelta(seconds=max(min(growing, LONGEST_BACKOFF.total_seconds()), least))


def long_wait(times: int) -> timedelta:
    """How long a provider's limit, or a place that is away, is waited for that was met so many times in a row."""
    return min(FIRST_LONG_WAIT * 2.0 ** min(times - 1, 10), LONGEST_WAIT)


def _needs_decision(request: LoopRequest, carried: CarriedState, *, failed: bool) -> str | None:
    """Why a person has to decide before the next iteration; None if nobody has to."""
    items = carried.items
    if items and not items.error and items.count.left and not items.count.workable:
        count = items.count
        return f"nothing that is left can be worked on: {count.blocked} blocked, {count.needs_review} to be reviewed"
    if carried.mode == "checkpoint" or (carried.mode == "batch" and carried.since_decision >= request.batch_size):
        return f"iteration {carried.iteration} {f'failed: {carried.last_error}' if failed else 'is finished'}"
    return None


# Limits.


def remaining_limits(request: LoopRequest, carried: CarriedState, active_s: float) -> Limits:
    """The limits of the next run: those of the request's run, and no more than the loop has left."""
    own, limits, totals = request.run.limits, carried.limits, carried.totals
    cost = limits.cost_usd - totals.cost_usd if limits.cost_usd is not None else None
    tokens = limits.tokens - totals.tokens if limits.tokens is not None else None
    duration = limits.duration_s - active_s if limits.duration_s is not None else None
    return own.model_copy(
        update={
            "cost_usd": _least(own.cost_usd, cost),
            "tokens": _least(own.tokens, tokens),
            "duration_s": _least(limits.iteration_duration_s, duration),
            "idle_s": limits.idle_s,
            "rate_limit_s": own.rate_limit_s or (RATE_LIMIT_S if request.run.agent in BOUND_BY_RATE_LIMIT else None),
        }
    )


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def reached_limit(carried: CarriedState, active_s: float) -> tuple[StopReason, str] | None:
    """The limit that is used up, and a sentence on it; None if none is. Causes come first: cost, tokens, time."""
    limits, totals = carried.limits, carried.totals
    spent: tuple[tuple[StopReason, float | None, float, str], ...] = (
        (StopReason.COST, limits.cost_usd, totals.cost_usd + CENT_FRACTION, "${0:.4f} of ${1:g} are spent"),
        (StopReason.TOKENS, limits.tokens, totals.tokens, "{0} of {1} are used"),
        (StopReason.DURATION, limits.duration_s, active_s, "the loop was at work for {0:.0f} s"),
        (
            StopReason.FAILURES,
            limits.failures or None,
            carried.failures,
            "{0} in a row failed, the last one:",
        ),
        (StopReason.NO_PROGRESS, limits.no_progress or None, carried.no_progress, "{0} in a row changed nothing"),
        (StopReason.ITERATIONS, limits.iterations, totals.iterations, "{0} of {1} are done"),
    )
    fields = {StopReason.COST: "cost_usd", StopReason.DURATION: "duration_s"}
    for reason, limit, used, text in spent:
        if limit is None or used < limit or (reason == StopReason.ITERATIONS and carried.unfinished):
            continue
        last = f" {carried.last_error}" if reason == StopReason.FAILURES else ""
        return reason, f"limits.{fields.get(reason, reason)}: {text.format(used, limit)}{last}"
    return None


# The end.


@dataclass(frozen=True)
class Ending:
    """How a loop ends."""

    status: Literal["completed", "exited", "failed", "cancelled"]
    reason: StopReason | None = None
    message: str = ""
    error: ErrorType | None = None
    given_reason: str = ""
    """The reason that a person gave for ending the loop."""

    @property
    def exited_because(self) -> str | None:
        """Why the loop exited: the reason that a person gave, or the limit that was reached."""
        return self.given_reason or (self.message if self.status == "exited" else "") or None

    @classmethod
    def of_limit(cls, carried: CarriedState, active_s: float) -> "Ending | None":
        """The end if a limit is reached; None if none is."""
        found = reached_limit(carried, active_s)
        if found is None:
            return None
        reason, message = found
        if reason == StopReason.FAILURES:
            return cls("failed", reason, message, ErrorType.LOOP_FAILED)
        return cls("exited", reason, message)

    @classmethod
    def of_error(cls, error: FailureError | RunError) -> "Ending":
        """The end after an error that the loop cannot continue after."""
        if isinstance(error, RunError):
            return cls("failed", None, error.message, error.type)
        # A local activity's failure comes bare, an activity's wrapped in an ActivityError.
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
            return cls("failed", None, cause.message, ErrorType(cause.type))
        return cls("failed", None, f"{error}: {cause}" if cause is not error else str(error), ErrorType.LOOP_FAILED)
