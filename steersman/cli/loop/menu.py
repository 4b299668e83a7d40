"""The menu of a loop that is followed: continue, revise, give feedback, start over, exit.

It opens with Ctrl-C, when the loop waits for a decision, or by a key. FollowedLoop carries out what is chosen.
"""

import asyncio
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from steersman.cli.formatting import chosen, flat, shortened
from steersman.cli.loop.followed_loop import FEEDBACK, FollowedLoop
from steersman.cli.terminal.keyboard import Keyboard
from steersman.contracts.errors import RunError
from steersman.contracts.loop import LoopMode
from steersman.contracts.loop_state import CLOSED, LoopState
from steersman.errors import SteersmanError

MENU = "[C]ontinue (default)  [R]evise  [F]eedback  [S]tart over  [E]xit"
CHOICES = ("continue", "revise", "feedback", "start over", "exit")
MODES: tuple[LoopMode, ...] = ("checkpoint", "batch", "autonomous")
REVISE = Text(
    "The new plan; an empty line ends it. @PATH alone: a file or directory in the workspace, read anew.", style="bold"
)
START = Text("Start over from: Enter for the very beginning, or the number of an iteration >", style="bold")
FILES = Text("Take the files back, too? [y]es  [k]eep them as they are  [n]o, do not start over >", style="bold")


class Menu:
    """One loop's menu. `update` takes every state: a question that was answered elsewhere is withdrawn.

    But for one that asks for a text: the rest of it would be taken for keys, and the loop takes it all the same.
    """

    def __init__(self, followed: FollowedLoop, keyboard: Keyboard, out: Console) -> None:
        self._followed = followed
        self._keyboard = keyboard
        self._out = out
        self._open = False
        self._was_held = False
        self._overtaken = asyncio.Event()

    def update(self, state: LoopState) -> None:
        """Take the newest state, also while a question is open."""
        if not self._open:
            return
        if state.status in CLOSED or (self._was_held and not self._followed.held):
            self._overtaken.set()
        self._was_held = self._was_held or self._followed.held

    async def open(self, note: Callable[..., None]) -> bool:
        """Ask until something is chosen that closes the menu; whether the person leaves. Raises Interrupted.

        `note` prints a line.
        """
        self._overtaken.clear()
        self._open, self._was_held = True, self._followed.held
        try:
            self._note_state(note)
            while True:
                question = Text(f"{MENU} >", style="bold")
                answer = await self._keyboard.ask(question, unless=self._overtaken)
                if answer is None:
                    if not self._overtaken.is_set():
                        return True  # Ctrl-D, or the terminal was closed
                    note("the loop went on meanwhile")
                    return False
                if await self._carry_out(answer, note):
                    return False
        finally:
            self._open = False

    def _note_state(self, note: Callable[..., None]) -> None:
        if self._followed.pausing:
            note("pausing now")
        elif not self._followed.held:
            note("the loop goes on while this menu is open")
        note("Ctrl-C again: leave the loop as it is and go")

    async def _carry_out(self, answer: str, note: Callable[..., None]) -> bool:
        """Carry out a choice; whether the menu closes."""
        word, _, rest = answer.lower().partition(" ")
        choice = next((each for each in CHOICES if each.startswith(answer.lower())), None)
        mode = next((each for each in MODES if rest.strip() and each.startswith(rest.strip())), None)
        if choice is None and mode and "continue".startswith(word):
            self._followed.resume(mode)
            return True
        match choice:
            case "continue":
                self._followed.resume(None)
            case "exit":
                self._followed.exit()
            case "start over":
                return await self._start_over(note)
            case "feedback":
                await self._feedback(note)
                return False
            case "revise":
                await self._revise(note)
                return False
            case _:
                note(
                    f"{shortened(flat(answer), 40)!r} is none of c, r, f, s, e; c MODE goes on in another mode",
                    "yellow",
                )
                return False
        return True

    async def _feedback(self, note: Callable[..., None]) -> None:
        if text := await self._keyboard.ask_text(FEEDBACK):
            try:
                note(await self._keyboard.unless_interrupted(self._followed.feedback(text)))
            except (SteersmanError, RunError) as error:
                note(str(error), "yellow")

    async def _revise(self, note: Callable[..., None]) -> None:
        text = await self._keyboard.ask_text(REVISE)
        if not text:
            note("the plan stays as it is")
            return
        plan = {"path": text[1:].strip()} if text.startswith("@") and "\n" not in text else text
        try:
            note(await self._keyboard.unless_interrupted(self._followed.revise(plan)))
        except (SteersmanError, RunError) as error:
            note(str(error), "yellow")

    async def _start_over(self, note: Callable[..., None]) -> bool:
        start = await self._ask(START)
        if start is None or (wrong := self._no_iteration(start)):
            note("not started over" if start is None else f"not started over: {wrong}", "yellow")
            return False
        files = chosen(await self._ask(FILES) or "no", ("yes", "keep", "no"))
        if files not in ("yes", "keep"):
            note("not started over")
            return False
        note("starting over; what is there now is kept as a rescue checkpoint")
        self._followed.restart(int(start) if start else None, files=files == "yes")
        return True

    def _no_iteration(self, start: str) -> str | None:
        """Why the loop cannot start over from there; None if it can, as far as is known here."""
        if not start:
            return None
        if not start.isdecimal():
            return "that is no number"
        last = self._followed.state.iteration if self._followed.state else int(start)
        return None if 1 <= int(start) <= last else f"there is no iteration {start}: the loop is at iteration {last}"

    async def _ask(self, question: Text) -> str | None:
        return await self._keyboard.ask(question, unless=self._overtaken)
