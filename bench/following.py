"""`steer attach` of closed runs, a long one and one that said nothing, from the start of the process to its end."""

import os
import sys
import time

from bench.agents import Bench
from bench.commands import CLIENT_ALONE, timed
from bench.figures import Figure, Goal, spread
from bench.terminal import Terminal

SAMPLES = 11
LINES = 20_000
WIDTH, HEIGHT = 100, 40
LONG = Goal(p50=1000)
EMPTY = Goal(p50=450)
SAYS = f"for n in range({LINES}): print('line', n, 'of what a program says about its work in a few words')"


async def attached(bench: Bench) -> list[Figure]:
    """A run of so many lines, each an event, at a terminal and in a pipe, in turn with an empty one and the floor."""
    client = bench.stack.client
    long, short = [await client.start(bench.process(sys.executable, "-c", says)) for says in (SAYS, "")]
    for run in (long, short):
        await client.result(run)
    events = f"{len(await client.events(long)):,} events"
    lost: list[str] = []
    samples = [
        (
            await timed(lost, "-c", CLIENT_ALONE),
            await _at_terminal(bench, short, lost),
            await _at_terminal(bench, long, lost),
            await timed(lost, *_steer(bench, long)),
        )
        for _ in range(SAMPLES)
    ]
    alone, empty, terminal, pipe = map(list, zip(*samples, strict=True))
    baseline = f"import temporalio.client: {spread(alone)}"
    rows = (
        (f"a closed run of {events} at a terminal", terminal, LONG),
        (f"a closed run of {events} in a pipe", pipe, LONG),
        ("a closed run that said nothing at a terminal", empty, EMPTY),
    )
    return [
        Figure(f"attach of {what}, the whole command", "ms", tuple(took), goal, baseline, lost="; ".join(lost))
        for what, took, goal in rows
    ]


def _steer(bench: Bench, run: str) -> list[str]:
    return ["-m", "steersman.cli", "--address", bench.stack.address, "attach", run]


async def _at_terminal(bench: Bench, run: str, lost: list[str]) -> float:
    begun = time.monotonic()
    terminal = await Terminal.start([sys.executable, *_steer(bench, run)], os.environ, WIDTH, HEIGHT)
    await terminal.ended()
    took = 1000 * (time.monotonic() - begun)
    code = await terminal.finish()
    if code:
        lost.append(f"exit code {code}: {terminal.output[-200:].decode(errors='replace')}")
    return took
