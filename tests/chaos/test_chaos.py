"""Faults against everything at once, for three minutes or as long as STEERSMAN_CHAOS_SECONDS says.

STEERSMAN_CHAOS_SEED and STEERSMAN_CHAOS_FAULTS make a round again.
"""

import os
import secrets
import sys
from pathlib import Path

import pytest

from tests.chaos.campaign import campaign
from tests.chaos.report import table

SECONDS = float(os.environ.get("STEERSMAN_CHAOS_SECONDS", "180"))
FAULTS = int(os.environ.get("STEERSMAN_CHAOS_FAULTS", str(1 << 62)))


@pytest.mark.acceptance
@pytest.mark.linux
@pytest.mark.timeout(SECONDS + 900)
async def test_everything_holds(tmp_path: Path) -> None:
    seed = int(os.environ.get("STEERSMAN_CHAOS_SEED") or secrets.randbelow(1 << 32))
    sys.stdout.write(f"STEERSMAN_CHAOS_SEED={seed}\n")
    async with campaign(tmp_path, seed) as made:
        report = await made.run(FAULTS, SECONDS)
    sys.stdout.write(table(report))
    assert not report.findings, table(report)
    assert report.faults.total() > min(FAULTS, SECONDS / 6) - 1
