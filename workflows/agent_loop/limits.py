"""The limits of a loop: what an iteration may still use, and which of them is used up. Pure."""

from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import StopReason
from steersman.contracts.request import Limits
from workflows.agent_loop.carried_state import Memory

RATE_LIMIT_S = 60.0
"""A provider's limit that lasts longer is waited for with a timer, which holds no process."""
CENT_FRACTION = 1e-9
"""Money is added up in floating point."""


def left(request: LoopRequest, memory: Memory, active_s: float) -> Limits:
    """The limits of the next run: what the template asks for, and no more than the loop has left."""
    own, limits, totals = request.run.limits, memory.limits, memory.totals
    cost = limits.cost_usd - totals.cost_usd if limits.cost_usd is not None else None
    tokens = limits.tokens - totals.tokens if limits.tokens is not None else None
    duration = limits.duration_s - active_s if limits.duration_s is not None else None
    return own.model_copy(
        update={
            "cost_usd": _least(own.cost_usd, cost),
            "tokens": _least(own.tokens, tokens),
            "duration_s": _least(limits.iteration_duration_s, duration),
            "idle_s": limits.idle_s,
            "rate_limit_s": own.rate_limit_s or (RATE_LIMIT_S if CAPABILITIES[request.run.agent].cost else None),
        }
    )


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def reached(memory: Memory, active_s: float) -> tuple[StopReason, str] | None:
    """The limit that is used up, and a sentence on it. Money, tokens and time come before what they may have caused."""
    limits, totals = memory.limits, memory.totals
    spent: tuple[tuple[StopReason, float | None, float, str], ...] = (
        (StopReason.COST, limits.cost_usd, totals.cost_usd + CENT_FRACTION, "${0:.4f} of ${1:g} are spent"),
        (StopReason.TOKENS, limits.tokens, totals.tokens, "{0} of {1} are used"),
        (StopReason.DURATION, limits.duration_s, active_s, "the loop was at work for {0:.0f} s"),
        (
            StopReason.FAILURES,
            limits.failures or None,
            memory.failures,
            "{0} in a row failed, the last one:",
        ),
        (StopReason.NO_PROGRESS, limits.no_progress or None, memory.no_progress, "{0} in a row changed nothing"),
        (StopReason.ITERATIONS, limits.iterations, totals.iterations, "{0} of {1} are done"),
    )
    fields = {StopReason.COST: "cost_usd", StopReason.DURATION: "duration_s"}
    for reason, limit, used, text in spent:
        if limit is None or used < limit or (reason == StopReason.ITERATIONS and memory.unfinished):
            continue
        last = f" {memory.last_error}" if reason == StopReason.FAILURES else ""
        return reason, f"limits.{fields.get(reason, reason)}: {text.format(used, limit)}{last}"
    return None
