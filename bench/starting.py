"""From `start` to the agent's first event, and from an event to who is attached."""

import asyncio
import statistics
import subprocess
import sys
import time
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from claude_agent_sdk import SystemMessage

from bench.agents import Bench, soon
from bench.figures import Figure, Goal, spread
from bench.hops import Hop, history, hops, medians
from steersman.contracts.events import InitEvent, MessageEvent
from tests.scripted_model import Script, say

PAIRS = 30
SETTLE_S = 0.5
"""Before each start, so that nothing of the one before, which ends, takes part in it."""
LINES = 200
CLOCK = """
import random, time
for number in range({lines}):
    time.sleep(random.uniform(0.02, 0.08))
    print(time.time(), flush=True)
"""


async def first_event(bench: Bench) -> list[Figure]:
    """Alternating pairs: a run of ours, then the SDK alone, each up to Claude's own first word of its session."""
    script = bench.script("start", say("Hello."))
    written: list[float] = []
    arrived: list[float] = []
    alone: list[float] = []
    paths: list[list[Hop]] = []
    for _ in range(PAIRS):
        await asyncio.sleep(SETTLE_S)
        run, at_agent, at_client = await until_first_event(bench, bench.claude(script))
        written.append(at_agent)
        arrived.append(at_client)
        paths.append(hops(await history(bench.stack.client, run), "WorkflowExecutionStarted"))
        await asyncio.sleep(SETTLE_S)
        alone.append(await _sdk(bench, script))
    baseline = f"SDK connect() + query(): {spread(alone)}"
    over = tuple(ours - sdk for ours, sdk in zip(written, alone, strict=True))
    over_arrived = tuple(ours - sdk for ours, sdk in zip(arrived, alone, strict=True))
    note = f"start -> first event itself: {spread(written)}"
    return [
        Figure(
            "start -> first event, over the SDK alone", "ms", over, Goal(p50=150), baseline, note, hops=medians(paths)
        ),
        Figure("start -> first event at an attached client, over the SDK alone", "ms", over_arrived, None, baseline),
    ]


async def attached(bench: Bench) -> list[Figure]:
    """A process prints the time every 50 ms; each line says itself how late it arrives."""
    run = await bench.stack.client.start(bench.process(sys.executable, "-c", CLOCK.format(lines=LINES)))
    late = []
    async with aclosing(bench.stack.client.attach(run)) as events:
        async for event in events:
            now = time.time()
            if isinstance(event, MessageEvent):
                late.append(1000 * (now - float(event.text)))
    lost = "" if len(late) == LINES else f"{LINES - len(late)} of {LINES} lines lost"
    direct = await asyncio.to_thread(_pipe)
    return [Figure("agent's event -> attached client", "ms", tuple(late), Goal(p50=100), direct, lost=lost)]


async def until_first_event(bench: Bench, request: dict[str, Any]) -> tuple[str, float, float]:
    """The run, and the milliseconds from its start until the agent named its session, and until a client knew."""
    began, begun = datetime.now(UTC), time.monotonic()
    run = await bench.stack.client.start(request)
    async with aclosing(bench.stack.client.attach(run)) as events:
        async for event in events:
            if isinstance(event, InitEvent):
                arrived = 1000 * (time.monotonic() - begun)
                break
        else:
            raise RuntimeError(f"{run} ended without a first event")
    await soon(bench.stack.client.result(run), f"{run} ends")
    return run, 1000 * (event.time - began).total_seconds(), arrived


async def _sdk(bench: Bench, script: Script) -> float:
    begun = time.monotonic()
    took = None
    async with bench.sdk(script) as client:
        await client.connect()
        await client.query("Go.")
        async for message in client.receive_response():
            if took is None and isinstance(message, SystemMessage) and message.subtype == "init":
                took = 1000 * (time.monotonic() - begun)
    if took is None:
        raise RuntimeError("the SDK alone gave no first event")
    return took


def _pipe() -> str:
    command = [sys.executable, "-c", CLOCK.format(lines=40)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        late = [1000 * (time.time() - float(line)) for line in child.stdout]
    return f"its pipe, read directly: {statistics.median(late):.1f} ms"
