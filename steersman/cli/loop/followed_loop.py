"""A followed loop: its newest state, and the requests that keys and the menu send to it, beside the stream of events.

Requests are sent in the order in which they were chosen. Nothing is printed here: receipts come as notes in the stream.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from rich.text import Text

from steersman.cli.loop.formatting import ACTIVE, HELD, RESUMED
from steersman.cli.terminal.event_pump import EventPump, Note
from steersman.cli.terminal.keyboard import Keyboard
from steersman.client import Steersman
from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.errors import RunError
from steersman.contracts.loop import LoopMode
from steersman.contracts.loop_messages import LoopReceipt
from steersman.contracts.loop_state import CLOSED, LoopState
from steersman.errors import SteersmanError

STATE_TIMEOUT_S = 2.0
"""Seconds that `refresh` waits for the state."""
CTRL_C, KEY = "Ctrl-C at the terminal", "a key at the terminal"
PAUSE_NOW = "P      pause now: end the agent's turn, keep its session"
PAUSE_BY_STOP = "P      pause now: stop the run at work"
INTERRUPT = "i      interrupt the agent in its turn, with a message"
KEYS = (
    "p      pause when the iteration has ended",
    PAUSE_NOW,
    "r      resume",
    "n      next iteration now: skip the wait",
    "f      feedback for the next iteration",
    INTERRUPT,
    "s      status",
    "m      menu, without pausing",
    "q, d   leave; the loop goes on",
    "Ctrl-C pause now, and the menu",
)
WITHOUT_INTERRUPT = tuple(PAUSE_BY_STOP if each == PAUSE_NOW else each for each in KEYS if each != INTERRUPT)
FEEDBACK = Text("Feedback for the next iteration; an empty line ends it.", style="bold")


class FollowedLoop:
    """The newest state of one loop, and requests to it."""

    def __init__(self, steersman: Steersman, loop: str, pump: EventPump[Any], wake: asyncio.Event) -> None:
        self._steersman = steersman
        self._loops = steersman.loops
        self.loop = loop
        self._pump = pump
        self._wake = wake
        self.state: LoopState | None = None
        """The state that was read last."""
        self.pausing = False
        """The loop was told to pause, and is not held yet."""
        self.resume_reported = False
        """A receipt has said already that the loop goes on: the state that shows it is no news."""

    def update(self, state: LoopState) -> None:
        """Take the newest state."""
        self.state = state
        if state.status in HELD or state.status in CLOSED:
            self.pausing = False

    async def refresh(self) -> None:
        """Read the state again, if it can be had at once: the one that was read last may be a second old."""
        with suppress(SteersmanError, TimeoutError):
            self.update(await asyncio.wait_for(self._loops.state(self.loop), STATE_TIMEOUT_S))

    @property
    def held(self) -> bool:
        """Whether the loop waits for a person."""
        return self.state is not None and self.state.status in HELD

    @property
    def closed(self) -> bool:
        """Whether the loop has ended."""
        return self.state is not None and self.state.status in CLOSED

    @property
    def waits_for_decision(self) -> bool:
        """Whether the loop waits for the decision that its mode asks for."""
        return self.state is not None and self.state.status == "waiting_for_decision"

    def leave_message(self) -> str:
        """What is said of the loop when the person leaves."""
        status = self.state.status if self.state else "running"
        if self.pausing:
            return f"the loop is being paused; resume it with: steer loop resume {self.loop}"
        if status == "paused":
            return f"the loop stays paused; resume it with: steer loop resume {self.loop}"
        if status == "waiting_for_decision":
            return f"the loop waits for your decision; resume it with: steer loop resume {self.loop}"
        return "the loop goes on" if status in ACTIVE else f"the loop is {status}"

    # Requests.

    def pause_now(self, reason: str = CTRL_C) -> None:
        """End the agent's turn and hold the loop, unless it is held."""
        if self.state is None or self.state.status not in (*HELD, *CLOSED):
            self.pausing = True
            self._send(self._loops.pause(self.loop, now=True, reason=reason), "pause")

    def resume(self, mode: LoopMode | None) -> None:
        """Go on, where the loop is held or about to be, or with another mode."""
        if self.held or self.pausing or mode is not None:
            self._send(self._loops.resume(self.loop, mode=mode), "resume")

    def exit(self) -> None:
        """End the loop as it stands (status exited)."""
        self._send(self._loops.exit(self.loop, reason="chosen at the terminal"), "exit")

    def restart(self, iteration: int | None, *, files: bool) -> None:
        """Start over."""
        self._send(self._loops.restart(self.loop, iteration, files=files), "start over")

    async def feedback(self, text: str) -> str:
        """Give the next iteration feedback; the receipt as a line. Raises SteersmanError, RunError."""
        receipt = await self._loops.feedback(self.loop, text)
        self._wake.set()
        return f"{receipt.id or 'feedback'}: {receipt.note}"

    async def revise(self, plan: str | dict[str, str]) -> str:
        """Give the loop a new plan; the receipt as a line. Raises SteersmanError, RunError."""
        receipt = await self._loops.revise(self.loop, plan)
        self._wake.set()
        return f"plan version {receipt.plan_version}: {receipt.note}"

    def _send(self, said: Coroutine[Any, Any, LoopReceipt], what: str) -> None:
        self._pump.run_beside(self._report(said, what), in_turn=True)

    async def _report(self, said: Coroutine[Any, Any, LoopReceipt], what: str) -> Note | None:
        try:
            receipt = await said
        except (SteersmanError, RunError) as error:
            if what == "pause":
                self.pausing = False
            return Note(f"{what}: {error}", "yellow")
        finally:
            self._wake.set()
        if self.state is not None:
            self.update(self.state.model_copy(update={"status": receipt.status}))
        if what == "resume" and receipt.status in ACTIVE:
            # The loop may have been paused between two reads of its state.
            self.pausing, self.resume_reported = False, True
            return Note(RESUMED)
        return Note(f"{what}: {receipt.note}") if receipt.note else None

    # Keys.

    async def on_key(self, keys: str, keyboard: Keyboard) -> tuple[str, ...]:
        """Carry out a key; lines to show at once. Raises Interrupted out of a question."""
        match keys:
            case "p":
                self._send(self._loops.pause(self.loop, reason=KEY), "pause")
            case "P":
                self.pause_now(KEY)
            case "r":
                self._send(self._loops.resume(self.loop), "resume")
            case "n":
                self._send(self._loops.skip_wait(self.loop), "next iteration")
            case "f":
                if text := await keyboard.ask_text(FEEDBACK):
                    self._send(self._loops.feedback(self.loop, text), "feedback")
            case "i":
                return await self._interrupt(keyboard)
            case "?":
                return KEYS if self._cannot_interrupt() is None else WITHOUT_INTERRUPT
            case _ if len(keys) > 1:
                return ("one key at a time, please; ? shows them",)
        return ()

    def _cannot_interrupt(self) -> str | None:
        """Why the loop's agent cannot be interrupted; None where it can be, or where the agent is unknown."""
        agent = self.state.agent if self.state else None
        can = (self.state.capabilities if self.state else None) or CAPABILITIES.get(agent or "")
        if can is None or can.interrupt:
            return None
        return f'agent "{agent}" cannot interrupt: P pauses now, f gives feedback to the next iteration'

    async def _interrupt(self, keyboard: Keyboard) -> tuple[str, ...]:
        if refusal := self._cannot_interrupt():
            return (refusal,)
        run = self.state.run if self.state else None
        if run is None or (self.state and self.state.status == "verifying"):
            return ("no agent is at work now; f gives feedback to the next iteration",)
        text = await keyboard.ask_message(Text("Message to the agent (empty: just end its turn) >", style="bold"))
        if text is not None:
            self._pump.run_beside(self._interrupted(run, text or None))
        return ()

    async def _interrupted(self, run: str, text: str | None) -> Note:
        try:
            receipt = await self._steersman.interrupt(run, text)
        except (SteersmanError, RunError) as error:
            return Note(f"not interrupted: {error}", "yellow")
        return Note(f"interrupt {receipt.state}{f' ({receipt.how})' if receipt.how else ''}")
