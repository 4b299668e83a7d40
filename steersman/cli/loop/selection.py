"""Questions before a command acts: which loop to resume where no id is given, and whether to go through with it."""

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rich.text import Text

from steersman.cli.exits import Exit
from steersman.cli.formatting import flat, shortened
from steersman.cli.loop.formatting import HELD, STATUS_WORDS
from steersman.cli.output import console, remark
from steersman.cli.terminal.interactive import is_interactive
from steersman.cli.terminal.keyboard import Interrupted, Keyboard

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.loop_state import LoopState

MAX_OPEN = 200
Candidate = tuple[str, "LoopState"]


async def resumable(steersman: "Steersman", directory: str) -> list[Candidate]:
    """Held loops, the newest first: those whose workspace is this directory, contains it or is in it; else all."""
    import asyncio

    from steersman.errors import RunNotFound

    # Visibility lags by up to a second: each loop is asked for its state.
    listed = await steersman.loops.list('ExecutionStatus="Running"', limit=MAX_OPEN)

    async def look(loop: str) -> "LoopState | None":
        try:
            return await steersman.loops.state(loop)
        except RunNotFound:
            return None

    states = await asyncio.gather(*(look(each.id) for each in listed))
    held = [(each.id, state) for each, state in zip(listed, states, strict=True) if state and state.status in HELD]
    return [each for each in held if _around(each[1].workspace, directory)] or held


def _around(workspace: str | None, directory: str) -> bool:
    if workspace is None:
        return False
    one, other = PurePosixPath(workspace), PurePosixPath(directory)
    return one.is_relative_to(other) or other.is_relative_to(one)


async def pick_resumable(steersman: "Steersman") -> str | Exit:
    """The loop that the person picks; an exit code where there is none, or nobody can be asked."""
    found = await resumable(steersman, os.getcwd())  # noqa: PTH109 - a plain string, not resolved
    if not found:
        remark("no loop is paused or waits for a decision", "yellow")
        return Exit.NOT_FOUND
    for number, (loop, state) in enumerate(found, 1):
        why = f" ({flat(state.waits_for)})" if state.waits_for else ""
        about = f"{STATUS_WORDS.get(state.status, state.status)}{shortened(why, 60)}, iteration {state.iteration}"
        line = f"{number:>3}  {flat(loop)}  {about}  {flat(state.workspace or '')}"
        console(stderr=not is_interactive()).print(Text(line))
    if not is_interactive():
        remark("give the id of one: steer loop resume LOOP", "yellow")
        return Exit.USAGE
    return await _pick([loop for loop, _ in found])


async def _pick(loops: list[str]) -> str | Exit:
    default = " (Enter for 1)" if len(loops) == 1 else ""
    with Keyboard(console()) as keyboard:
        try:
            while True:
                answer = await keyboard.ask(Text(f"Resume which one? 1-{len(loops)}{default} >", style="bold"))
                if answer is None:
                    return Exit.DETACHED
                if not answer and len(loops) == 1:
                    return loops[0]
                if answer.isdecimal() and 1 <= int(answer) <= len(loops):
                    return loops[int(answer) - 1]
        except Interrupted:
            return Exit.TERMINATED if keyboard.terminated else Exit.DETACHED
