"""The limits held in the middle of a turn."""

import pytest

from activities.limits import Limit, reached, stopped_for
from steersman.contracts.errors import ErrorType
from steersman.contracts.request import Limits

ALL = Limits(turns=2, cost_usd=0.5, idle_s=10)


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
    limit = reached(ALL, turns=turns, cost_usd=cost, silent_s=silent)
    assert limit is not None
    assert limit.message.startswith(f"{field}: ")
    assert limit.error().type == error
    assert stopped_for(limit.message) == limit


@pytest.mark.parametrize(("turns", "cost", "silent"), [(2, 0.5, 10.0), (0, 0.0, None)])
def test_at_a_limit_it_is_kept(turns: int, cost: float, silent: float | None) -> None:
    assert reached(ALL, turns=turns, cost_usd=cost, silent_s=silent) is None


def test_without_limits_nothing_is_reached() -> None:
    assert reached(Limits(), turns=10**6, cost_usd=1e6, silent_s=1e6) is None


def test_a_silence_while_others_are_to_speak_does_not_count() -> None:
    assert reached(Limits(idle_s=1), turns=0, cost_usd=0, silent_s=None) is None


@pytest.mark.parametrize("reason", [None, "", "cancelled", "finished"])
def test_other_reasons_of_a_stop_are_no_limit(reason: str | None) -> None:
    assert stopped_for(reason) is None


def test_the_duration_is_a_time_out() -> None:
    assert Limit("limits.duration_s: the run took longer than 5 s").error().type == ErrorType.RUN_TIMED_OUT
