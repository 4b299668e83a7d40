"""The limits held in the middle of a turn."""

import pytest

from activities.running.limits import Limit, reached, stopped_for
from steersman.contracts.errors import ErrorType
from steersman.contracts.request import Limits
from steersman.contracts.run import Usage

ALL = Limits(turns=2, cost_usd=0.5, tokens=100, idle_s=10)
FULL = Usage(input_tokens=40, output_tokens=30, cache_read_tokens=20, cache_write_tokens=10)
"""As many tokens as ALL allows."""


@pytest.mark.parametrize(
    ("turns", "cost", "silent", "field", "error"),
    [
        (3, 0.0, None, "limits.turns", ErrorType.BUDGET_EXCEEDED),
        (0, 0.51, None, "limits.cost_usd", ErrorType.BUDGET_EXCEEDED),
        (0, 0.0, 10.5, "limits.idle_s", ErrorType.RUN_TIMED_OUT),
        (3, 0.51, 10.5, "limits.cost_usd", ErrorType.BUDGET_EXCEEDED),
    ],
)
def test_a_limit_that_is_passed_is_named(
    turns: int, cost: float, silent: float | None, field: str, error: ErrorType
) -> None:
    limit = reached(ALL, turns=turns, cost_usd=cost, usage=FULL, silent_s=silent)
    assert limit is not None
    assert limit.message.startswith(f"{field}: ")
    assert limit.error().type == error
    assert stopped_for(limit.message) == limit


@pytest.mark.parametrize("kind", list(Usage.model_fields))
def test_tokens_of_every_kind_count(kind: str) -> None:
    limit = reached(ALL, turns=0, cost_usd=0, usage=FULL + Usage(**{kind: 1}), silent_s=None)
    assert limit is not None
    assert limit.message == "limits.tokens: the agent has used 101 of 100 tokens"
    assert limit.error().type == ErrorType.BUDGET_EXCEEDED
    assert stopped_for(limit.message) == limit


@pytest.mark.parametrize(("turns", "cost", "silent"), [(2, 0.5, 10.0), (0, 0.0, None)])
def test_at_a_limit_it_is_kept(turns: int, cost: float, silent: float | None) -> None:
    assert reached(ALL, turns=turns, cost_usd=cost, usage=FULL, silent_s=silent) is None


def test_without_limits_nothing_is_reached() -> None:
    much = Usage(input_tokens=10**12)
    assert reached(Limits(), turns=10**6, cost_usd=1e6, usage=much, silent_s=1e6) is None


def test_a_silence_while_others_are_to_speak_does_not_count() -> None:
    assert reached(Limits(idle_s=1), turns=0, cost_usd=0, usage=Usage(), silent_s=None) is None


@pytest.mark.parametrize("reason", [None, "", "cancelled", "finished"])
def test_other_reasons_of_a_stop_are_no_limit(reason: str | None) -> None:
    assert stopped_for(reason) is None


def test_the_duration_is_a_time_out() -> None:
    assert Limit("limits.duration_s: the run took longer than 5 s").error().type == ErrorType.RUN_TIMED_OUT
