"""A run that says a lot: how long its history is, and how long that takes to replay."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from bench.agents import Bench
from bench.figures import Figure, Goal
from bench.stack import ROOT
from steersman.converter import DATA_CONVERTER
from tests.scripted_model import say
from workflows.agent_run import AgentRun
from workflows.runner import ReplaySafeRunner

THINGS = 10_000
REPLAYS = 20
COLD = 5
REPLAY = "import asyncio, pathlib, sys; from bench import histories; histories.main(pathlib.Path(sys.argv[1]))"


async def talkative(bench: Bench) -> list[Figure]:
    """Claude streams 10,000 pieces of text; a process prints 10,000 lines."""
    words = bench.script("talkative", say("word " * THINGS, chunks=THINGS))
    lines = f"for number in range({THINGS}): print(number)"
    runs = {
        "Claude": await bench.stack.client.start(bench.claude(words)),
        "a process": await bench.stack.client.start(bench.process(sys.executable, "-c", lines)),
    }
    figures, histories = [], {}
    for name, run in runs.items():
        await bench.stack.client.result(run)
        said = sum(event.type == "message" for event in await bench.stack.client.events(run))
        text = histories[name] = await bench.stack.client.history(run)
        count = float(len(json.loads(text)["events"]))
        lost = "" if said >= THINGS else f"{THINGS - said} of {THINGS} things lost"
        what = f"history of a run that said {THINGS:,} things: {name}"
        figures.append(Figure(what, "events", (count,), Goal(p99=100), "", f"{said:,} events in its log", lost))
    longest = max(histories.values(), key=len)
    file = bench.workspace / "history.json"
    file.write_text(longest)
    warm = [await replay(longest) for _ in range(REPLAYS + 1)][1:]
    cold = [await asyncio.to_thread(_in_a_new_process, file) for _ in range(COLD)]
    return [
        *figures,
        Figure("replay of that history, in a new process", "ms", tuple(cold), Goal(p50=100), "", "imports not counted"),
        Figure("replay of that history, again", "ms", tuple(warm), Goal(p50=100)),
    ]


async def replay(history: str) -> float:
    """Milliseconds. Raises what a replay raises when the code has diverged."""
    begun = time.monotonic()
    # A default build id is a hash of every loaded module: ten times what the replay itself takes.
    runner = ReplaySafeRunner()
    replayer = Replayer(workflows=[AgentRun], data_converter=DATA_CONVERTER, workflow_runner=runner, build_id="bench")
    await replayer.replay_workflow(WorkflowHistory.from_json("run", history))
    return 1000 * (time.monotonic() - begun)


def main(file: Path) -> None:
    """Replay one history and print how long it took."""
    sys.stdout.write(f"{asyncio.run(replay(file.read_text()))}\n")
    sys.stdout.flush()
    os._exit(0)  # the SDK's runtime can crash the interpreter at exit


def _in_a_new_process(file: Path) -> float:
    ran = subprocess.run(
        [sys.executable, "-c", REPLAY, str(file)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(ran.stdout)
