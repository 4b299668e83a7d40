"""Faults against everything at once, for three minutes or as long as STEERSMAN_CHAOS_SECONDS says.

STEERSMAN_CHAOS_SEED and STEERSMAN_CHAOS_FAULTS make a round again.
"""

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.campaign import campaign
from tests.chaos.report import table

SECONDS = float(os.environ.get("STEERSMAN_CHAOS_SECONDS", "180"))
SEED = "STEERSMAN_CHAOS_SEED"
FAULTS = int(os.environ.get("STEERSMAN_CHAOS_FAULTS", str(1 << 62)))


@pytest.mark.acceptance
@pytest.mark.linux
@pytest.mark.timeout(SECONDS + 900)
async def test_everything_holds(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get(SEED) or secrets.randbelow(1 << 32))
    record_property(SEED, seed)
    async with campaign(tmp_path, seed) as made:
        report = await made.run(FAULTS, SECONDS)
    sys.stdout.write(table(report))
    assert not report.findings, table(report)
    assert report.faults.total() > min(FAULTS, SECONDS / 6) - 1
