"""What the doctor knows before it asks a cluster anything."""

from decimal import Decimal

import pytest

from workers.cluster_check import quantity
from workers.pod_check import modules


@pytest.mark.parametrize(
    ("text", "amount"), [("500m", "0.5"), ("2", "2"), ("4Gi", str(4 * 1024**3)), ("1k", "1000"), ("0", "0")]
)
def test_quantities(text: str, amount: str) -> None:
    assert quantity(text) == Decimal(amount)


def test_what_is_looked_for_of_python_is_what_our_programs_load() -> None:
    assert {"json", "hashlib", "selectors", "tempfile"} <= set(modules())
    assert "program" not in modules()
