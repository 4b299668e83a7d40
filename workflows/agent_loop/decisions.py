"""Whether a loop is done, and what holds its next iteration up: pure judgement."""

from datetime import UTC, datetime, timedelta

from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import ItemList
from workflows.agent_loop.carried_state import Hold, Memory
from workflows.agent_loop.outcomes import MAX_ERROR, Ran

MAX_MISSING = 2
LONGEST_BACKOFF = timedelta(minutes=10)
FIRST_LIMIT_WAIT, LONGEST_LIMIT_WAIT = timedelta(minutes=1), timedelta(hours=1)
LATEST_RESET = timedelta(days=8)
"""No provider's window is longer; what says so is wrong."""
AFTER_RESET = timedelta(seconds=2)


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


def is_told_more(memory: Memory) -> bool:
    """Whether a person has said something that no iteration has been given yet."""
    return bool(memory.feedback) or memory.revised


def wants_verification(request: LoopRequest, memory: Memory) -> bool:
    """Whether this iteration's work is to be verified."""
    verify = request.done.verify
    if verify is None:
        return False
    promised = request.done.promise is None or memory.promised
    return verify.every_iteration or (items_closed(request, memory.items) and promised)


def hold_after(request: LoopRequest, memory: Memory, outcome: Ran, now: datetime) -> Hold | None:
    """Why the next iteration does not begin at once."""
    if outcome.how in ("stopped_by_hand", "interrupted"):
        why = f": {outcome.error}" if outcome.error else " was interrupted"
        return Hold(kind="paused", reason=f"iteration {memory.iteration}{why}")
    if outcome.how == "rate_limited":
        until = _limit_ends(memory, outcome, now)
        return Hold(kind="rate_limit", reason="the provider limits the account", until=until)
    failed = outcome.how == "failed"
    if reason := needs_person(request, memory, failed=failed):
        return Hold(kind="decision", reason=reason)
    wait = _backoff(request, memory) if failed else timedelta(seconds=request.pause_between_s)
    reason = f"after a failure: {outcome.error}"[:MAX_ERROR] if failed else ""
    return Hold(kind="sleep", reason=reason, until=now + wait) if wait else None


def _limit_ends(memory: Memory, outcome: Ran, now: datetime) -> datetime:
    wait = min(FIRST_LIMIT_WAIT * 2.0 ** min(memory.rate_limits - 1, 10), LONGEST_LIMIT_WAIT)
    if outcome.resets_at is None:
        return now + wait
    # Bounded before it is counted with: the year 9999 has no tomorrow.
    reset = min(max(outcome.resets_at, now), now + LATEST_RESET).astimezone(UTC) + AFTER_RESET
    # A limit that is still there after its reset is not asked again every second.
    return max(reset, now + wait) if memory.rate_limits > 1 else reset


def _backoff(request: LoopRequest, memory: Memory) -> timedelta:
    least = request.pause_between_s
    growing = max(least, 1.0) * 2.0 ** min(memory.failures - 1, 20)
    return timedelta(seconds=max(min(growing, LONGEST_BACKOFF.total_seconds()), least))


def needs_person(request: LoopRequest, memory: Memory, *, failed: bool) -> str | None:
    """Why a person has to decide before the next iteration."""
    items = memory.items
    if items and not items.error and items.count.left and not items.count.workable:
        count = items.count
        return f"nothing that is left can be worked on: {count.blocked} blocked, {count.needs_review} to be reviewed"
    if memory.mode == "checkpoint" or (memory.mode == "batch" and memory.since_decision >= request.batch_size):
        return f"iteration {memory.iteration} {f'failed: {memory.last_error}' if failed else 'is finished'}"
    return None
