"""A run whose agent has said 2 GB is taken over: how soon it is led again, and how long its worker's other work waits.

Real shim, real agent process, real event log; the worker is this process, so that a watchdog sees each of its stalls.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from activities.running.attempt import SLICE_S
from activities.store.event_reader import Cursor, read
from bench.agents import Bench
from bench.figures import Figure, Goal
from tests.agents.kits import ProcessKit
from tests.agents.stage import Stage
from tests.support.processes import until

LINE = 16 * 1024
LINES = 2 * 1024**3 // LINE
TAKEOVERS = 10
READS = 100
TICK_S = 0.002
PATIENCE_S = 1800.0
TALKING = f"""
import os, sys, time
line = "x" * {LINE - 1} + "\\n"
for number in range({LINES}):
    sys.stdout.write(line)
print("said", flush=True)
for number in range({TAKEOVERS + 1}):
    while not os.path.exists(f"go-{{number}}"):
        time.sleep(0.001)
    print(f"after {{number}}", flush=True)
time.sleep(3600)
"""


@dataclass
class Watch:
    """The longest time that the event loop did not come round, in seconds."""

    longest: float = 0.0


async def takeovers(bench: Bench) -> list[Figure]:
    """Takeovers by a worker that finds a snapshot, one by a worker that does not; readers at any place of the log."""
    async with ProcessKit(bench.workspace.parent).run(TALKING) as stage:
        stage.start()
        await _said(stage, "said")
        took, stalls = [], []
        for number in range(TAKEOVERS):
            seconds, stall = await _takeover(stage, number)
            took.append(seconds)
            stalls.append(1000 * stall)
        size = stage.directory.events.stat().st_size / 1024**3
        reads = await _reads(stage)
        await stage.detach()
        stage.directory.snapshot(1).unlink()
        anew, stall = await _takeover(stage, TAKEOVERS)
    idle, busy = await _machine(10, 0), await _machine(anew, SLICE_S)
    note = f"{LINES:,} lines, log of {size:.2f} GiB; without a snapshot {anew:.0f} s"
    what = "takeover of a run with a log of 2 GB"
    return [
        Figure(f"{what}: until its agent's next word", "s", tuple(took), Goal(p99=2), note=note),
        Figure(
            f"{what}: longest stall of its worker", "ms", tuple(stalls), Goal(p99=50), f"idle for 10 s: {idle:.0f} ms"
        ),
        Figure(
            f"{what}, no snapshot: longest stall of its worker",
            "ms",
            (1000 * stall,),
            Goal(p99=50),
            f"spinning in slices of 10 ms, as long: {busy:.0f} ms",
        ),
        Figure("read_events after any number of a log of 2 GB", "ms", tuple(reads), Goal(p99=1000)),
    ]


async def _takeover(stage: Stage, number: int) -> tuple[float, float]:
    """Seconds until the agent's next word is in the log, and of the longest stall meanwhile."""
    await stage.detach()
    Path(stage.request.workspace.path, f"go-{number}").touch()
    async with _watched() as watch:
        begun = time.monotonic()
        stage.start()
        await _said(stage, f"after {number}")
        return time.monotonic() - begun, watch.longest


async def _machine(seconds: float, slice_s: float) -> float:
    """The longest stall in ms of a loop that does nothing but give way, and after each slice: what the machine does."""
    until_s = time.monotonic() + seconds
    async with _watched() as watch:
        while time.monotonic() < until_s:
            spun = time.monotonic() + slice_s
            while time.monotonic() < spun:
                pass
            await asyncio.sleep(0 if slice_s else TICK_S)
        return 1000 * watch.longest


async def _said(stage: Stage, text: str) -> None:
    """Wait until it is at the end of the log."""
    wanted = f'"text":"{text}"'.encode()

    def there() -> bool:
        try:
            with stage.directory.events.open("rb") as file:
                file.seek(max(stage.directory.events.stat().st_size - 10_000, 0))
                return wanted in file.read()
        except FileNotFoundError:
            return False

    await until(lambda: asyncio.to_thread(there), PATIENCE_S)


async def _reads(stage: Stage) -> list[float]:
    """Milliseconds of a page for a reader of which this worker knows nothing."""
    chance, took = random.Random(1), []
    for _ in range(READS):
        after = chance.choice([LINES, chance.randrange(LINES)])
        begun = time.monotonic()
        events, _ = await asyncio.to_thread(read, stage.directory.events, Cursor(), after, 100_000)
        took.append(1000 * (time.monotonic() - begun))
        if events[0].seq != after + 1:
            raise RuntimeError(f"after event {after} comes {events[0].seq}")
    return took


@asynccontextmanager
async def _watched() -> AsyncIterator[Watch]:
    watch = Watch()

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            watch.longest = max(watch.longest, time.monotonic() - before - TICK_S)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(10 * TICK_S)
    watch.longest = 0.0
    try:
        yield watch
    finally:
        ticking.cancel()
