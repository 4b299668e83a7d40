"""What is left of a limit."""

import pytest

from steersman.contracts.budget import nearly_spent
from steersman.contracts.request import Limits
from steersman.contracts.run import Usage


@pytest.mark.parametrize("digits", [1, 16, 20, 310, 4000])
def test_a_limit_of_any_number_of_digits(digits: int) -> None:
    limits = Limits(turns=10**digits, tokens=10**digits)
    told = nearly_spent(limits, turns=8, cost_usd=0, usage=Usage(input_tokens=8))
    assert [each.of for each in told] == (["tokens", "turns"] if digits == 1 else [])
