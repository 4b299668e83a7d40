"""Runs on another machine by ssh, beside the same on this one: a real sshd on loopback."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from activities.agents.claude.agent import ClaudeAgent
from bench import marks
from bench.agents import TOOL, Bench, soon
from bench.figures import Figure, Goal, spread
from bench.hops import Hop, history, hops, medians
from bench.stopping import cancelled
from steersman.contracts.events import AgentEvent
from tests.scripted_model import Script, hold, tool
from tests.support.sshd import Sshd

STOPS = 25
INTERRUPTS = 40
CUTS = 25
THERE = {"runtime": {"kind": "ssh", "address": "place"}}
COUNT = "import itertools, time\nfor number in itertools.count(): print(number, flush=True); time.sleep(0.01)"


class Elsewhere:
    """The other machine: its sessions have a home of their own, with Claude Code."""

    def __init__(self, bench: Bench) -> None:
        self.home = bench.stack.home / "elsewhere"
        (self.home / ".local" / "bin").mkdir(parents=True)
        (self.home / ".profile").write_text('PATH="$HOME/.local/bin:$PATH"\n')
        (self.home / ".local" / "bin" / "claude").symlink_to(ClaudeAgent({}).program())
        self.sshd = Sshd(bench.stack.home / "sshd", self.home)

    async def mark(self, count: int) -> str:
        """What the processes of the one run there carry, once there are so many."""
        while True:
            for state in self.home.glob(".local/state/steersman/places/*/*/state.json"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    mark = str(json.loads(state.read_bytes())["mark"])
                    if len(marks.marked(mark)) >= count:
                        return mark
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def elsewhere(bench: Bench) -> AsyncIterator[Elsewhere]:
    """With the one worker of the stack at it."""
    there = Elsewhere(bench)
    try:
        await bench.stack.workers[0].kill()
        await bench.stack.start_worker(*bench.worker, "--allow-ssh", "place", "--ssh-config", str(there.sshd.config))
        yield there
    finally:
        there.sshd.close()


async def stops(bench: Bench) -> list[Figure]:
    """Claude in a tool is cancelled there."""
    script = bench.script("ssh-cancel", tool("Bash", command=TOOL))
    took: list[float] = []
    problems: list[str] = []
    paths: list[list[Hop]] = []
    async with elsewhere(bench) as there:
        for number in range(STOPS):
            run = await bench.stack.client.start(bench.claude(script) | THERE)
            await soon(script.wait_requests(number + 1), "the model is asked")
            mark = await soon(there.mark(2), f"processes of {run}")
            sample, problem = await cancelled(bench, run, mark)
            took.append(sample)
            problems.extend(filter(None, [problem]))
            paths.append(hops(await history(bench.stack.client, run), "WorkflowExecutionCancelRequested"))
    what = "ssh: cancel -> nothing left there: Claude in a tool"
    lost = "; ".join(problems)
    return [Figure(what, "ms", tuple(took), Goal(p50=300, p99=2000), lost=lost, hops=medians(paths))]


async def interrupts(bench: Bench) -> list[Figure]:
    """Claude is interrupted there and here, in turn."""
    there_ms: list[float] = []
    here_ms: list[float] = []
    lost: list[str] = []
    async with elsewhere(bench):
        there_script = bench.script("ssh-interrupt", hold("Once upon a time"))
        await interrupt_both(bench, (there_script, THERE, there_ms), here_ms, INTERRUPTS, lost)
    over = [there - here for there, here in zip(there_ms, here_ms, strict=True)]
    what = "ssh: interrupt -> acknowledged, beyond what it takes here"
    baseline = f"here {spread(here_ms)}, there {spread(there_ms)}"
    return [Figure(what, "ms", tuple(over), Goal(p50=60), baseline, lost="; ".join(lost))]


async def interrupt_both(
    bench: Bench, there: tuple[Script, dict[str, Any], list[float]], here_ms: list[float], count: int, lost: list[str]
) -> None:
    """A Claude that is elsewhere and one that is here, in turn. `there`: what it says, its runtime, what it takes."""
    both = [there, (bench.script("here-interrupt", hold("Once upon a time")), {}, here_ms)]
    runs = [await bench.stack.client.start(bench.claude(script) | fields) for script, fields, _ in both]
    for number in range(count):
        for run, (script, _, took) in zip(runs, both, strict=True):
            took.append(await _interrupted(bench, run, script, number, lost))
    for run in runs:
        await bench.stack.client.stop(run)


async def _interrupted(bench: Bench, run: str, script: Script, number: int, lost: list[str]) -> float:
    await soon(script.wait_requests(number + 1), f"the model's request {number + 1}")
    await soon(script.wait_held(), "the model streams")
    begun = time.monotonic()
    receipt = await bench.stack.client.interrupt(run)
    took = 1000 * (time.monotonic() - begun)
    if receipt.state != "acknowledged":
        lost.append(f"{run}: an interrupt was {receipt.state}")
    await bench.stack.client.steer(run, f"Go on ({number}).")
    return took


async def reconnects(bench: Bench) -> list[Figure]:
    """Every connection is cut while a process counts; until an attached client has the next number."""
    took: list[float] = []
    async with elsewhere(bench) as there:
        run = await bench.stack.client.start(bench.process("python3", "-c", COUNT) | THERE)
        numbers: list[int] = []
        follower = asyncio.create_task(_follow(bench, run, numbers))
        for _ in range(CUTS):
            await soon(_beyond(numbers, (numbers or [0])[-1] + 50), "it counts")
            there.sshd.cut()
            cut = time.monotonic()
            # What was on its way comes first: a line that was printed after the cut is the first to count.
            await soon(_beyond(numbers, _printed(there)), "it counts again")
            took.append(1000 * (time.monotonic() - cut))
        follower.cancel()
        await bench.stack.client.stop(run)
    whole = numbers == list(range(len(numbers)))
    lost = "" if whole else "numbers were lost or doubled"
    return [Figure("ssh: connections cut -> next event", "ms", tuple(took), Goal(p50=1000), lost=lost)]


async def _follow(bench: Bench, run: str, numbers: list[int]) -> None:
    event: AgentEvent
    async for event in bench.stack.client.attach(run):
        if event.type == "message":
            numbers.append(int(event.text))  # noqa: PERF401 - others read it meanwhile


async def _beyond(numbers: list[int], number: int) -> None:
    while not numbers or numbers[-1] <= number:
        await asyncio.sleep(0.005)


def _printed(there: Elsewhere) -> int:
    """The last number in the journal there."""
    (journal,) = there.home.glob(".local/state/steersman/places/*/1/journal")
    lines = [line for line in journal.read_bytes().split(b"\n") if line.isdigit()]
    return int(lines[-1])
