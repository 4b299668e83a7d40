"""Which cases of a test are tried each time."""

from typing import Any

import pytest


def but_first(*cases: Any) -> list[Any]:
    """`make test` tries the first of them, `make test-all` each."""
    given = [each if isinstance(each, tuple) else (each,) for each in cases]
    return [pytest.param(*each, marks=pytest.mark.exhaustive if number else ()) for number, each in enumerate(given)]
