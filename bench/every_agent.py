"""Every agent but Claude Code, beside its own program driven directly: interrupt, cancel in a tool, first event."""

import asyncio
import statistics
import sys
import time
from typing import Final

from bench import marks
from bench.agents import Bench, soon
from bench.casts import CASTS, Player
from bench.direct import begun
from bench.figures import Figure, Goal, spread
from bench.stack import until
from bench.starting import SETTLE_S, until_first_event
from bench.stopping import cancelled
from tests.scripted_model import Say, Script, answer, say
from tests.support.programs import installed

INTERRUPTS: Final = 20
DIRECT: Final = 20
CANCELS: Final = 10
PAIRS: Final = 20
WORDS, WORD_S = 3000, 0.02
STORY: Final = " ".join(f"{number:04}" for number in range(WORDS))
"""Outlasts what is measured, is as quick as a model, and repeats nothing: Gemini CLI would end the turn. Hermes looks
for an interrupt at each word, and in a silence three times a second.
"""
OWN_MS: Final = 50
"""What an interrupt may take beyond the program's own, in the median of the same minute."""
GONE: Final = {"hermes": Goal(p99=7000)}
TOOL: Final = """
import os, time
with open("tool.pid", "w") as file:
    file.write(str(os.getpid()))
time.sleep(600)
"""


async def interrupts(bench: Bench) -> list[Figure]:
    """In an answer that is being streamed, without a text."""
    return [await _interrupts(bench, agent) for agent in _agents()]


async def cancels(bench: Bench) -> list[Figure]:
    """While a tool runs."""
    return [await _cancels(bench, agent) for agent in _agents()]


async def starts(bench: Bench) -> list[Figure]:
    """Alternating pairs: a run, then the program alone, each until it has named its session."""
    return [await _starts(bench, agent) for agent in _agents()]


async def _interrupts(bench: Bench, agent: str) -> Figure:
    script = bench.script(f"interrupt-{agent}", say(STORY, WORDS, WORD_S))
    player = await _at_work(bench, agent, script)
    took, lost = [], []
    run = await bench.stack.client.start(player.request(bench.own_workspace(), "Go."))
    asked = 0
    for number in range(INTERRUPTS):
        asked = await _streaming(script, asked)
        at = time.monotonic()
        receipt = await bench.stack.client.interrupt(run)
        took.append(1000 * (time.monotonic() - at))
        if receipt.state != "acknowledged":
            lost.append(f"{run}: an interrupt was {receipt.state}")
        await bench.stack.client.interrupt(run, f"Something else ({number}).")
    await _streaming(script, asked)
    await bench.stack.client.stop(run)
    alone = await _interrupts_alone(bench, player, script)
    return Figure(
        f"{agent}: interrupt -> acknowledged",
        "ms",
        tuple(took),
        Goal(p50=round(statistics.median(alone) + OWN_MS)),
        f"the program itself: {spread(alone)}",
        lost="; ".join(lost),
    )


async def _interrupts_alone(bench: Bench, player: Player, script: Script) -> list[float]:
    took = []
    async with begun(player, bench.own_workspace()) as (program, _):
        for number in range(DIRECT):
            asked = script.requests[-1].number
            await program.prompt(f"Go on ({number}).")
            await _streaming(script, asked)
            at = time.monotonic()
            await program.interrupt()
            took.append(1000 * (time.monotonic() - at))
    return took


async def _cancels(bench: Bench, agent: str) -> Figure:
    tool = answer(Say("I run it."), CASTS[agent].shell(f"{sys.executable} tool.py"))
    player = await _at_work(bench, agent, bench.script(f"cancel-{agent}", tool))
    took: list[float] = []
    problems: list[str] = []
    for _ in range(CANCELS):
        workspace = bench.own_workspace()
        (workspace / "tool.py").write_text(TOOL)
        run = await bench.stack.client.start(player.request(workspace, "Go."))
        await until(f"{agent}: its tool runs", (workspace / "tool.pid").exists)
        sample, problem = await cancelled(bench, run, marks.mark_of(bench.stack.state, run))
        took.append(sample)
        problems.extend(filter(None, [problem]))
    what = f"{agent}: cancel -> nothing left, in a tool"
    return Figure(what, "ms", tuple(took), GONE.get(agent, Goal(p99=1900)), lost="; ".join(problems))


async def _starts(bench: Bench, agent: str) -> Figure:
    player = await _at_work(bench, agent, bench.script(f"start-{agent}", say("Hello.")))
    ours, alone = [], []
    await _first_event(bench, player)  # the first of a home makes its files, and of a worker loads the agent
    for _ in range(PAIRS):
        await asyncio.sleep(SETTLE_S)
        ours.append(await _first_event(bench, player))
        await asyncio.sleep(SETTLE_S)
        async with begun(player, bench.own_workspace()) as (_, took):
            alone.append(took)
    over = tuple(mine - own for mine, own in zip(ours, alone, strict=True))
    what = f"{agent}: start -> first event, over the program alone"
    note = f"start -> first event itself: {spread(ours)}"
    return Figure(what, "ms", over, Goal(p50=120), f"spawn -> session: {spread(alone)}", note)


async def _first_event(bench: Bench, player: Player) -> float:
    _, at_agent, _ = await until_first_event(bench, player.request(bench.own_workspace(), "Go."))
    return at_agent


async def _at_work(bench: Bench, agent: str, script: Script) -> Player:
    """The agent, with a worker of its own."""
    player = Player(agent)
    await bench.stack.workers[-1].kill()
    await player.start_worker(bench.stack, script, "--trust", str(bench.workspaces))
    return player


def _agents() -> list[str]:
    """Those that are installed: `make agents`."""
    return [agent for agent, cast in CASTS.items() if installed(cast.program)]


async def _streaming(script: Script, after: int) -> int:
    """Wait until the model answers a request after that number; the number of the newest."""
    await soon(script.wait_requests(after + 1), "the model is asked")
    await asyncio.sleep(SETTLE_S)  # a stream begins with work of the program's own
    return script.requests[-1].number
