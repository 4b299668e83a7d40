"""What is left of the limits of a run or loop."""

from steersman.contracts.notices import BUDGET_SHARE, NoticeBudget
from steersman.contracts.request import Limits
from steersman.contracts.run import Usage

_MOST = 1 << 60
"""A limit may have any number of digits; one beyond this is as good as none, and too large for a float."""


def all_tokens(usage: Usage) -> int:
    """What limits.tokens counts."""
    return usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def nearly_spent(
    limits: Limits, *, turns: int, cost_usd: float, usage: Usage, active_s: float = 0
) -> tuple[NoticeBudget, ...]:
    """The limits of which most is spent. `active_s`: what limits.duration_s counts."""
    spent = (
        ("cost_usd", limits.cost_usd, cost_usd),
        ("tokens", limits.tokens, all_tokens(usage)),
        ("turns", limits.turns, turns),
        ("duration_s", limits.duration_s, active_s),
    )
    return tuple(
        NoticeBudget.model_validate({"of": name, "limit": limit, "spent": used})
        for name, limit, used in spent
        if limit is not None and used >= BUDGET_SHARE * min(limit, _MOST)
    )
