"""One-shot commands of `steer`, from the start of the process to its end."""

import asyncio
import sys
import time

from bench.agents import Bench, soon
from bench.figures import Figure, Goal, spread
from tests.scripted_model import hold

SAMPLES = 30
GOAL = Goal(p50=350)
CLIENT_ALONE = "import os, temporalio.client; os._exit(0)"
"""The floor: a Python program that loads Temporal's client and does nothing with it."""


async def commands(bench: Bench) -> list[Figure]:
    """A list, a state and a message, alternating with the floor."""
    script = bench.script("commands", hold("Once upon a time"))
    run = await bench.stack.client.start(bench.claude(script))
    await soon(script.wait_requests(1), "the model is asked")
    await soon(script.wait_held(), "the model streams")
    calls = {
        "steer list": ("list",),
        "steer show RUN": ("show", run),
        "steer steer RUN TEXT": ("steer", run, "Look left."),
    }
    took: dict[str, list[float]] = {what: [] for what in calls}
    alone: list[float] = []
    lost: list[str] = []
    for _ in range(SAMPLES):
        alone.append(await timed(lost, "-c", CLIENT_ALONE))
        for what, words in calls.items():
            steer = ("-m", "steersman.cli", "--address", bench.stack.address, *words)
            took[what].append(await timed(lost, *steer))
    await bench.stack.client.stop(run)
    baseline = f"import temporalio.client: {spread(alone)}"
    return [
        Figure(f"{what}, the whole command", "ms", tuple(samples), GOAL, baseline, lost="; ".join(lost))
        for what, samples in took.items()
    ]


async def timed(lost: list[str], *words: str) -> float:
    """Milliseconds that a Python program of these arguments takes, its output thrown away; `lost`: what went wrong."""
    begun = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    took = 1000 * (time.monotonic() - begun)
    if process.returncode:
        lost.append(f"{' '.join(words[2:])}: exit code {process.returncode}: {said.decode(errors='replace')[-200:]}")
    return took
