"""The limits that are enforced in the middle of a turn: pure decisions."""

from dataclasses import dataclass

from steersman.contracts.budget import all_tokens
from steersman.contracts.errors import BudgetExceeded, RunError, RunTimedOut
from steersman.contracts.request import Limits
from steersman.contracts.run import Usage


@dataclass(frozen=True)
class Limit:
    """A limit that was reached; the message names the field and is also the reason that the shim is told."""

    message: str

    def error(self) -> RunError:
        """The failure of the run."""
        timed = self.message.startswith(("limits.idle_s", "limits.duration_s"))
        return (RunTimedOut if timed else BudgetExceeded)(self.message)


def reached(limits: Limits, *, turns: int, cost_usd: float, usage: Usage, silent_s: float | None) -> Limit | None:
    """The first limit that is reached.

    `silent_s`: seconds since the agent's last output, None while others are to speak.
    """
    if limits.cost_usd is not None and cost_usd > limits.cost_usd:
        return Limit(f"limits.cost_usd: the agent has cost ${cost_usd:.4f} of ${limits.cost_usd:g}")
    if limits.tokens is not None and (tokens := all_tokens(usage)) > limits.tokens:
        return Limit(f"limits.tokens: the agent has used {tokens} of {limits.tokens} tokens")
    if limits.turns is not None and turns > limits.turns:
        return Limit(f"limits.turns: the agent began turn {turns} of {limits.turns}")
    if limits.idle_s is not None and silent_s is not None and silent_s > limits.idle_s:
        return Limit(f"limits.idle_s: the agent said nothing for {limits.idle_s:g} s")
    return None


def stopped_for(reason: str | None) -> Limit | None:
    """The limit in a stop's recorded reason, where the worker that enforced it died before it could tell."""
    return Limit(reason) if reason and reason.startswith("limits.") else None
