"""What is left of a run's limits of cost, tokens and turns."""

from steersman.contracts.notices import BUDGET_SHARE, NoticeBudget
from steersman.contracts.request import Limits
from steersman.contracts.run import Usage


def all_tokens(usage: Usage) -> int:
    """What limits.tokens counts."""
    return usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def nearly_spent(limits: Limits, *, turns: int, cost_usd: float, usage: Usage) -> tuple[NoticeBudget, ...]:
    """The limits of which most is spent."""
    spent = (
        ("cost_usd", limits.cost_usd, cost_usd),
        ("tokens", limits.tokens, all_tokens(usage)),
        ("turns", limits.turns, turns),
    )
    return tuple(
        NoticeBudget.model_validate({"of": name, "limit": limit, "spent": used})
        for name, limit, used in spent
        if limit is not None and used >= BUDGET_SHARE * limit
    )
