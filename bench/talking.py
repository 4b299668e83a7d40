"""Interrupts: from the update to the acknowledgement, beside the SDK's own."""

import time

from claude_agent_sdk import SystemMessage
from temporalio.api.history.v1 import HistoryEvent

from bench.agents import Bench, soon
from bench.figures import Figure, Goal, spread
from bench.hops import Hop, history, hops, medians, name_of
from tests.scripted_model import Script, hold

PER_RUN = 15
RUNS = 4
SDK_SAMPLES = 40
GOAL = Goal(p50=60, p99=250)


async def interrupts(bench: Bench) -> list[Figure]:
    """Without a text and with one."""
    script = bench.script("interrupt", hold("Once upon a time"))
    bare: list[float] = []
    worded: list[float] = []
    paths: list[list[Hop]] = []
    lost: list[str] = []
    asked = 0
    for _ in range(RUNS):
        run = await bench.stack.client.start(bench.claude(script))
        asked += 1
        await _held(script, asked)
        for number in range(PER_RUN):
            bare.append(await _interrupt(bench, run, None, lost))
            await bench.stack.client.steer(run, f"Go on ({number}).")
            asked += 1
            await _held(script, asked)
            worded.append(await _interrupt(bench, run, f"Something else ({number}).", lost))
            asked += 1
            await _held(script, asked)
        await bench.stack.client.stop(run)
        paths += _paths(await history(bench.stack.client, run))
    alone, alone_worded = await _sdk(bench, script, asked)
    baseline = f"SDK interrupt(): {spread(alone)}"
    baseline_worded = f"SDK interrupt() + query(), turn begun: {spread(alone_worded)}"
    problems = "; ".join(lost)
    return [
        Figure("interrupt -> acknowledged", "ms", tuple(bare), GOAL, baseline, lost=problems, hops=medians(paths)),
        Figure("interrupt with a text -> acknowledged", "ms", tuple(worded), GOAL, baseline_worded, lost=problems),
    ]


async def _held(script: Script, asked: int) -> None:
    await soon(script.wait_requests(asked), f"the model's request {asked}")
    await soon(script.wait_held(), "the model streams")


async def _interrupt(bench: Bench, run: str, text: str | None, lost: list[str]) -> float:
    begun = time.monotonic()
    receipt = await bench.stack.client.interrupt(run, text)
    took = 1000 * (time.monotonic() - begun)
    if receipt.state != "acknowledged":
        lost.append(f"{run}: an interrupt was {receipt.state}")
    return took


async def _sdk(bench: Bench, script: Script, asked: int) -> tuple[list[float], list[float]]:
    """Milliseconds of interrupt() alone, and of it with what it takes to go on with a text."""
    bare, worded = [], []
    async with bench.sdk(script) as client:
        await client.connect()
        await client.query("Go.")
        for number in range(SDK_SAMPLES):
            await _held(script, asked + number + 1)
            begun = time.monotonic()
            await client.interrupt()
            bare.append(1000 * (time.monotonic() - begun))
            async for _ in client.receive_response():
                pass
            await client.query(f"Something else ({number}).")
            async for message in client.receive_messages():
                if isinstance(message, SystemMessage) and message.subtype == "init":
                    break
            worded.append(1000 * (time.monotonic() - begun))
    return bare, worded


def _paths(events: list[HistoryEvent]) -> list[list[Hop]]:
    begin, end = "WorkflowExecutionUpdateAccepted interrupt", "WorkflowExecutionUpdateCompleted"
    return [hops(events[index:], begin, end) for index, event in enumerate(events) if name_of(event) == begin]
