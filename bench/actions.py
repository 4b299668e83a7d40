"""What Temporal Cloud would bill: its actions, as the server itself counts them (its metric `action`), for one run."""

import asyncio
import contextlib
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator

from bench.agents import Bench, soon
from bench.figures import Figure, Goal
from bench.stack import Stack
from steersman.contracts.run import RunState
from tests.scripted_model import say, tool

IDLE_RUNS = 20
IDLE_S = 120.0
RUNS = 5
IDLE = "import time; time.sleep(100_000)"
SETTLED_S = 2.0
"""The server tells its metrics once a second."""
BEFORE = {
    "idle": "with a heartbeat a second: 3563",
    "claude": "with a heartbeat a second: 29 to 31",
    "followed": "with a heartbeat a second: 44 to 55",
    "idle followed": "with a heartbeat a second: 4756",
}
"""What the same measure came to before heartbeats became rare (2bc4e99)."""
ACTION = re.compile(r"^action\{([^}]*)\} (\S+)$", re.MULTILINE)
REQUEST = re.compile(r"^service_requests\{([^}]*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


async def actions(bench: Bench) -> list[Figure]:
    """Idle runs for two minutes, then Claude at work: two tool calls, one message."""
    idle, kinds = await _idle(bench)
    watched, watched_kinds = await _idle(bench, followed=True)
    claude, claude_kinds = await _claude(bench)
    followed, followed_kinds = await _claude(bench, followed=True)
    return [
        Figure("billed actions of an idle run, an hour", "actions", idle, Goal(p99=90), BEFORE["idle"], kinds),
        Figure(
            "billed actions of a Claude run: two tool calls, a message",
            "actions",
            claude,
            Goal(p99=30),
            BEFORE["claude"],
            claude_kinds,
        ),
        Figure(
            "billed actions of an idle run that a client follows, an hour",
            "actions",
            watched,
            None,
            BEFORE["idle followed"],
            watched_kinds,
        ),
        Figure(
            "billed actions of that Claude run, followed by a client",
            "actions",
            followed,
            None,
            BEFORE["followed"],
            followed_kinds,
        ),
    ]


async def _idle(bench: Bench, *, followed: bool = False) -> tuple[tuple[float, ...], str]:
    count = 1 if followed else IDLE_RUNS
    client = bench.stack.client
    runs = [await client.start(bench.process(sys.executable, "-c", IDLE)) for _ in range(count)]
    for run in runs:
        await _at(bench, run, "running")
    async with contextlib.AsyncExitStack() as stack:
        if followed:
            await stack.enter_async_context(_following(bench, runs[0]))
        await asyncio.sleep(3)
        before, began = counted(bench.stack), time.monotonic()
        await asyncio.sleep(IDLE_S)
        spent, took = counted(bench.stack) - before, time.monotonic() - began
    for run in runs:
        await client.stop(run)
    return (3600 / took * spent.total() / count,), f"in {took:.0f} s of {count} runs: {_told(spent)}"


async def _claude(bench: Bench, *, followed: bool = False) -> tuple[tuple[float, ...], str]:
    """Each run alone, so that all that the server counts meanwhile is its own."""
    samples, kinds = [], Counter[str]()
    script = bench.script("billed", tool("Bash", command="sleep 2"), tool("Bash", command="true"), say("Done."))
    for number in range(RUNS):
        await asyncio.sleep(SETTLED_S)
        before = counted(bench.stack)
        run = await bench.stack.client.start(bench.claude(script))
        async with contextlib.AsyncExitStack() as stack:
            if followed:
                await stack.enter_async_context(_following(bench, run))
            await soon(script.wait_requests(3 * number + 1), "Claude is asked")
            await asyncio.sleep(0.5)  # the tool runs
            await soon(bench.stack.client.steer(run, "Go on."), "the message is delivered")
            await soon(bench.stack.client.result(run), f"{run} ends")
        await asyncio.sleep(SETTLED_S)
        spent = counted(bench.stack) - before
        samples.append(float(spent.total()))
        kinds += spent
    return tuple(samples), f"{RUNS} runs: {_told(kinds)}"


async def _at(bench: Bench, run: str, phase: str) -> RunState:
    while True:
        state = await bench.stack.client.state(run)
        if state.phase == phase:
            return state
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _following(bench: Bench, run: str) -> AsyncIterator[None]:
    async def follow() -> None:
        async for _ in bench.stack.client.attach(run):
            pass

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counted(stack: Stack) -> Counter[str]:
    """Actions since the server's start. A standalone activity is one, but not of those that the metric counts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.metrics_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for labels, value in ACTION.findall(text):
        known = dict(LABEL.findall(labels))
        kind = known.get("action_type", "")
        # A schedule is the host's, not a run's.
        if known.get("namespace") == "default" and not kind.endswith("Schedule"):
            found[kind] += round(float(value))
    for labels, value in REQUEST.findall(text):
        known = dict(LABEL.findall(labels))
        if known.get("operation") == "StartActivityExecution" and known.get("service_name") == "frontend":
            found["standalone activity"] += round(float(value))
    return found


def _told(kinds: Counter[str]) -> str:
    words = {kind.removeprefix("grpc_").removeprefix("command_COMMAND_TYPE_"): count for kind, count in kinds.items()}
    return ", ".join(f"{count} {kind}" for kind, count in sorted(words.items(), key=lambda each: -each[1]) if count)
