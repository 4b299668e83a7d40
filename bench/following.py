"""`steer attach` of a long run at a terminal, from the start of the process to its end."""

import os
import sys
import time

from bench.agents import Bench
from bench.figures import Figure, Goal, spread
from bench.terminal import Terminal

SAMPLES = 7
LINES = 20_000
WIDTH, HEIGHT = 100, 40
SAYS = f"for n in range({LINES}): print('line', n, 'of what a program says about its work in a few words')"


async def attached(bench: Bench) -> list[Figure]:
    """A closed run of so many lines, each an event, alternating with one that said nothing."""
    client = bench.stack.client
    long, short = [await client.start(bench.process(sys.executable, "-c", says)) for says in (SAYS, "")]
    for run in (long, short):
        await client.result(run)
    events = len(await client.events(long))
    took: dict[str, list[float]] = {long: [], short: []}
    lost: list[str] = []
    for _ in range(SAMPLES):
        for run, samples in took.items():
            samples.append(await _timed(bench, run, lost))
    return [
        Figure(
            f"attach of a closed run of {events:,} events at a terminal, the whole command",
            "ms",
            tuple(took[long]),
            Goal(p50=1000),
            f"of a run that said nothing: {spread(took[short])}",
            lost="; ".join(lost),
        )
    ]


async def _timed(bench: Bench, run: str, lost: list[str]) -> float:
    steer = [sys.executable, "-m", "steersman.cli", "--address", bench.stack.address, "attach", run]
    begun = time.monotonic()
    terminal = await Terminal.start(steer, os.environ, WIDTH, HEIGHT)
    await terminal.ended()
    took = 1000 * (time.monotonic() - begun)
    code = await terminal.finish()
    if code:
        lost.append(f"exit code {code}: {terminal.output[-200:].decode(errors='replace')}")
    return took
