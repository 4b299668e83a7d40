"""`python -m tests.chaos`: rounds of faults, each with the next seed, on a machine of its own; a table for each.

Exits with 1 where something did not hold; what a round with a finding left behind is kept.
"""

import argparse
import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.campaign import campaign
from tests.chaos.report import Report, table

ROUND = 150
"""Faults of one round: some five minutes."""


async def _round(seed: int, faults: int, seconds: float) -> Report:
    root = Path(tempfile.mkdtemp(prefix=f"steersman-chaos-{seed}-"))
    async with campaign(root, seed) as made:
        return await made.run(faults, seconds)


def main(argv: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="of the first round")
    parser.add_argument("--faults", type=int, default=1 << 62, help="how many in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for how long, whichever is first")
    asked = parser.parse_args(argv)
    seed, made, found, until = asked.seed, 0, 0, time.monotonic() + asked.seconds
    while made < asked.faults and time.monotonic() < until:
        _say(f"round with SEED={seed}")
        report = asyncio.run(_round(seed, min(ROUND, asked.faults - made), until - time.monotonic()))
        _say(table(report))
        if not report.findings:
            shutil.rmtree(report.root, ignore_errors=True)
        made, found, seed = made + report.faults.total(), found + len(report.findings), seed + 1
    _say(f"{made} faults in {seed - asked.seed} rounds from SEED={asked.seed}: {found} findings")
    return 1 if found else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # Temporal's native threads can crash an interpreter that shuts down
