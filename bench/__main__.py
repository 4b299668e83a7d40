"""`make bench`: every goal measured, beside a baseline of the same run. `python -m bench NAME...` measures some.

A missed goal is shown as missed. The exit code is 1 only where something was lost or broken.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

from rich.console import Console

from bench import (
    actions,
    biglog,
    carry,
    changes,
    commands,
    copies,
    crowd,
    elsewhere,
    every_agent,
    following,
    histories,
    loops,
    pods,
    report,
    starting,
    stopping,
    takeover,
    talking,
)
from bench.agents import Bench
from bench.figures import Figure
from bench.stack import stack
from tests.scripted_model import ScriptedModel

WORKER = ("--allow-env", "ANTHROPIC_BASE_URL", "--max-runs", "1000")

Measure = Callable[[Bench], Awaitable[list[Figure]]]

MEASURES: dict[str, Measure] = {
    "cancel-streaming": stopping.streaming,
    "cancel-tool": stopping.in_a_tool,
    "cancel-stubborn": stopping.stubborn,
    "interrupt": talking.interrupts,
    "start": starting.first_event,
    "attach": starting.attached,
    "attach-long": following.attached,
    "agents-interrupt": every_agent.interrupts,
    "agents-cancel": every_agent.cancels,
    "agents-start": every_agent.starts,
    "commands": commands.commands,
    "changes": changes.changes,
    "copies": copies.copies,
    "ssh-cancel": elsewhere.stops,
    "ssh-interrupt": elsewhere.interrupts,
    "ssh-reconnect": elsewhere.reconnects,
    "pod-cancel": pods.stops,
    "pod-interrupt": pods.interrupts,
    "pod-start": pods.starts,
    "pod-pool": pods.pools,
    "pod-crowd": pods.crowd,
    "carry": carry.carry,
    "takeover": takeover.takeover,
    "actions": actions.actions,
    "crowd": crowd.crowd,
    "idle": crowd.idle,
    "takeover-big-log": biglog.takeovers,
    "crowd-cancel": crowd.cancelled_beside,
    "history": histories.talkative,
    "loop": loops.iterations,
    "loop-wake": loops.waking,
    "loop-long": loops.ten_thousand,
}


async def measure(names: list[str], console: Console) -> int:
    """The exit code."""
    load = os.getloadavg()
    figures: list[Figure] = []
    broken = False
    async with ScriptedModel() as model:
        for name in names:
            console.print(f"measuring {name} ...", style="dim")
            begun = time.monotonic()
            try:
                figures += await alone(MEASURES[name], model)
            except Exception as error:  # noqa: BLE001 - the other rows are worth having
                broken = True
                console.print(f"{name} broke: {type(error).__name__}: {error}", style="bold red")
            console.print(f"  {time.monotonic() - begun:.0f} s", style="dim")
        report.show(console, figures)
        console.print(f"written to {report.keep(figures, load)}", style="dim")
        if not broken and names == list(MEASURES):
            report.document(figures, load)
            console.print(f"written to {report.DOCUMENT}", style="dim")
    return 1 if broken or any(figure.lost for figure in figures) else 0


async def alone(measured: Measure, model: ScriptedModel) -> list[Figure]:
    """One measure on a stack of its own, so that no other leaves its traces in it."""
    async with stack() as made:
        workspace, config = made.home / "workspace", made.home / "claude"
        workspace.mkdir()
        bench = Bench(made, model, workspace, config, WORKER)
        env = model.script(f"env-{made.port}").env(config)
        made.agent_env({name: value for name, value in env.items() if name != "ANTHROPIC_BASE_URL"})
        await made.start_worker(*bench.worker)
        return await measured(bench)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *MEASURES], metavar="NAME", help=", ".join(MEASURES))
    names = parser.parse_args().names or list(MEASURES)
    console = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else report.WIDTH)
    if not sys.platform.startswith("linux"):
        console.print("the benchmarks look at processes through /proc: they need Linux", style="bold red")
        return 2
    return asyncio.run(measure(names, console))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Temporal's native threads can crash the interpreter while it shuts down; nothing is left to clean up.
    os._exit(code)
