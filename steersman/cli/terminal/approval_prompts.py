"""Prompts for approval while a run is followed. The first answer counts, wherever it was given."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

from rich.text import Text

from steersman.cli.formatting import chosen, clean, deadline_phrase, flat, none_of
from steersman.cli.terminal.keyboard import Keyboard
from steersman.cli.terminal.renderer import Renderer
from steersman.client import Steersman
from steersman.contracts.errors import RunError
from steersman.contracts.events import AgentEvent, PermissionEvent, is_terminal
from steersman.contracts.run import Approval
from steersman.errors import SteersmanError, Unreachable

AGAIN_S = 1.0
"""Between two tries to hear which approvals are open."""
HEARD_WITHIN = timedelta(seconds=10)
"""A workflow hears of a question within this time, where its server answers."""
SHOWN_LINES = 20
CHOICES = ("yes", "no", "always", "message", "view")
QUESTION = "Allow? [y]es  [n]o  [a]lways (this tool, this run)  [m]essage (no, and say why)"


class ApprovalPrompts:
    """The approvals of one run, one prompt after the other."""

    def __init__(self, steersman: Steersman, run: str, keyboard: Keyboard, view: Renderer) -> None:
        self._steersman = steersman
        self._run = run
        self._keyboard = keyboard
        self._view = view
        self._settled: dict[str, asyncio.Event] = {}
        self._over = False

    def on_event(self, event: AgentEvent) -> None:
        """Note an event when it is read, before it is shown: an approval that is settled meanwhile is not asked."""
        if is_terminal(event):
            self._over = True
            for settled in self._settled.values():
                settled.set()
        elif event.type == "permission":
            settled = self._settled_event(event.id)
            if event.state == "asked":
                settled.clear()
            else:
                settled.set()

    def _settled_event(self, approval_id: str) -> asyncio.Event:
        settled = self._settled.setdefault(approval_id, asyncio.Event())
        if self._over:
            settled.set()
        return settled

    async def ask_open(self) -> None:
        """Prompt for the approvals that were open before following began. Raises Interrupted."""
        for approval in await self._open():
            await self._ask(approval)

    async def ask(self, event: PermissionEvent) -> None:
        """Prompt for an approval, if it is still open. Raises Interrupted."""
        settled = self._settled_event(event.id)
        until = event.time + HEARD_WITHIN
        while not settled.is_set():
            for approval in await self._open():
                if approval.id == event.id:
                    await self._ask(approval)
                    return
            # A question of long ago was another process's; of a new one the workflow may not have heard yet.
            if datetime.now(UTC) > until:
                return
            await self._keyboard.unless_interrupted(asyncio.sleep(AGAIN_S))

    async def _open(self) -> tuple[Approval, ...]:
        """Those that wait now. Who cannot be asked is asked again: a question is not lost. Raises Interrupted."""
        return await self._keyboard.unless_interrupted(self._read_open())

    async def _read_open(self) -> tuple[Approval, ...]:
        while not self._over:
            try:
                return (await self._steersman.state(self._run)).approvals
            except Unreachable:
                await asyncio.sleep(AGAIN_S)
            except SteersmanError:
                break
        return ()

    async def _ask(self, approval: Approval) -> None:
        settled = self._settled_event(approval.id)
        whole = self._describe(approval)
        self._view.note(deadline_phrase(approval), "magenta")
        while not settled.is_set():
            more = "  [v]iew all of it" if whole else ""
            answer = await self._keyboard.ask(Text(f"{QUESTION}{more} >", style="bold magenta"), unless=settled)
            if answer is None:
                if not settled.is_set():
                    self._view.note(f"left open; answer with: steer approve|deny {self._run} {approval.id}")
                return
            choice = chosen(answer, CHOICES if whole else CHOICES[:-1])
            if choice is None and answer.strip():
                self._view.note(none_of(answer, f"y, n, a, m{', v' if whole else ''}: nothing is decided"), "yellow")
            elif choice == "view" and whole:
                self._view.note_block(whole)
            elif choice == "message":
                said = await self._keyboard.ask_message(Text("Tell the agent >", style="bold magenta"), unless=settled)
                if await self._decide(approval.id, allow=False, message=said or None):
                    return
            elif choice and await self._decide(approval.id, allow=choice != "no", remember=choice == "always"):
                return

    def _describe(self, approval: Approval) -> str | None:
        """Show the tool's input, cut to `SHOWN_LINES`; the whole text, if not all of it was shown."""
        text = "\n".join(
            f"{flat(name)}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            for name, value in approval.input.items()
        )
        lines = clean(text).split("\n")
        width = self._view.width - 4
        shown = [line[:width] for line in lines[:SHOWN_LINES]]
        self._view.note_block("\n".join(shown))
        hidden = len(clean(text)) - len("\n".join(shown))
        if hidden <= 0:
            return None
        self._view.note(f"{hidden} more characters are not shown", "bold yellow")
        return clean(text)

    async def _decide(
        self, approval_id: str, *, allow: bool, message: str | None = None, remember: bool = False
    ) -> bool:
        """False where nobody could be told, so that it is to be asked again."""
        try:
            await self._steersman.decide(
                self._run, approval_id, "allow" if allow else "deny", message, remember=remember
            )
        except (SteersmanError, RunError) as error:
            self._view.note(str(error), "yellow")
            return not isinstance(error, Unreachable)
        return True
