"""Following a loop on the terminal: the events of its runs, a status line, keys, and the menu.

Shows and asks; what a key does is in talking, the menu in menu. Whatever happens here, the loop goes on as it is unless
the person said otherwise.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import TextIO, cast

from rich.console import Console

from steersman.cli.exits import Exit
from steersman.cli.loop import formatting
from steersman.cli.loop.followed_loop import FollowedLoop
from steersman.cli.loop.menu import Menu
from steersman.cli.loop.outcome import end_line, read_outcome, write_item, write_outcome
from steersman.cli.output import console, remark, terminal_console
from steersman.cli.terminal.approval_prompts import ApprovalPrompts
from steersman.cli.terminal.event_pump import EventPump, KeyPress, Note, SourceEnded
from steersman.cli.terminal.interactive import is_interactive
from steersman.cli.terminal.keyboard import Interrupted, Keyboard
from steersman.cli.terminal.renderer import Renderer
from steersman.cli.terminal.status_bar import StatusBar
from steersman.client import Steersman
from steersman.contracts.errors import ErrorType
from steersman.contracts.events import AgentEvent, FailedEvent, PermissionEvent, is_terminal
from steersman.contracts.loop_state import LoopState
from steersman.loopfollowing import LoopItem, RunBegun, RunEvent

TICK_S = 1.0
SETTLE_S = 10.0
"""How long what was said last may take to reach the loop before we leave."""


class Follower:
    """One loop on one terminal. `bottom`: where a person sits."""

    def __init__(
        self,
        steersman: Steersman,
        loop: str,
        out: Console,
        keyboard: Keyboard,
        status_bar: StatusBar | None,
        *,
        as_json: bool,
    ) -> None:
        self._steersman = steersman
        self._loop = loop
        self._out = out
        self._keyboard = keyboard
        self._status_bar = status_bar
        self._json = as_json
        self._wake = asyncio.Event()
        self._view = Renderer(out)
        self._verifies = False
        """What is shown are the events of a verification."""
        self._approvals: dict[str, ApprovalPrompts] = {}
        self._shown: LoopState | None = None
        self._pump: EventPump[LoopItem] = EventPump(self._items(), keyboard, self._hear)
        self._followed = FollowedLoop(steersman, loop, self._pump, self._wake)
        self._menu = Menu(self._followed, keyboard, out)

    def _items(self) -> AsyncGenerator[LoopItem, None]:
        return self._steersman.loops.follow(self._loop, wake=self._wake)

    def _hear(self, item: LoopItem) -> None:
        """Read, maybe long before it is shown."""
        if isinstance(item, LoopState):
            self._followed.hear(item)
            self._menu.hear(item)
            self._status()
        elif isinstance(item, RunBegun):
            self._approvals[item.run] = ApprovalPrompts(self._steersman, item.run, self._keyboard, Renderer(self._out))
        else:
            self._approvals[item.run].hear(item.event)

    async def run(self) -> Exit:
        """Until the loop's end, or until the person leaves."""
        ticking = asyncio.create_task(self._tick())
        try:
            with ExitStack() as keys:
                if self._status_bar:
                    keys.callback(self._status_bar.hide)
                    keys.callback(self._end_line)
                    keys.enter_context(self._keyboard.reading_keys())
                    keys.enter_context(self._status_bar.resized())
                leaves = await self._stream()
            return await self._leave() if leaves else await self._ending()
        finally:
            ticking.cancel()
            await self._pump.close()

    async def _stream(self) -> bool:
        """Whether the person left before the end."""
        try:
            while True:
                item = await self._pump.next()
                if item is None:
                    if self._status_bar is None or self._keyboard.terminated or await self._ctrl_c():
                        return True
                elif isinstance(item, Note):
                    self._view.note(item.text, item.style)
                elif isinstance(item, KeyPress):
                    if await self._key(item.keys):
                        return True
                elif await self._show(item):
                    return True
        except Interrupted:
            return True
        except SourceEnded:
            return False

    # Showing.

    def _end_line(self) -> None:
        self._view.end_line()

    async def _show(self, item: LoopItem) -> bool:
        """Whether the person leaves over a question that comes with it."""
        if self._json:
            write_item(item)
            return False
        if isinstance(item, LoopState):
            return await self._show_state(item)
        if isinstance(item, RunBegun):
            self._view.end_line()
            self._view, self._verifies = Renderer(self._out), item.verifies
            state = self._followed.state if self._followed.state and self._followed.state.run == item.run else None
            self._view.note(formatting.heading(item.iteration, verifies=item.verifies, state=state), "bold")
            return False
        return await self._show_event(item)

    async def _show_state(self, state: LoopState) -> bool:
        before, self._shown = self._shown, state
        if before is None:
            self._view.note(f"{state.agent or '?'} in {state.workspace or '?'}, mode {state.mode}")
        for line, style in formatting.changes(before, state):
            if line != formatting.RESUMED or not self._followed.resume_reported:
                self._view.note(line, style)
        if state.status not in formatting.HELD:
            self._followed.resume_reported = False
        self._status()
        asks = state.status == "waiting_for_decision" and (before is None or _moved(before, state))
        # Somebody may have decided since: what was read last counts.
        if asks and self._status_bar and self._followed.waits_for_decision:
            return await self._open_menu()
        return False

    async def _show_event(self, item: RunEvent) -> bool:
        event: AgentEvent = item.event
        # A command that says no is no crash; the state that follows tells its exit code.
        said_no = self._verifies and isinstance(event, FailedEvent) and event.error == ErrorType.AGENT_CRASHED
        if not said_no:
            self._view.show(event)
        if is_terminal(event):
            self._approvals.pop(item.run, None)
        elif self._status_bar and isinstance(event, PermissionEvent) and event.state == "asked":
            approver = self._approvals[item.run]
            while True:
                try:
                    self._view.end_line()
                    await approver.ask(event.id)
                    return False
                except Interrupted:
                    if self._keyboard.terminated or await self._ctrl_c():
                        return True
        return False

    def _status(self) -> None:
        state = self._followed.state
        if self._status_bar is None or state is None:
            return
        line = "" if self._followed.closed else formatting.status_line(state, self._followed.read_at, datetime.now(UTC))
        self._status_bar.say(f"pausing · {line}" if self._followed.pausing else line)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._status()

    # Talking.

    async def _key(self, keys: str) -> bool:
        """Whether the person leaves."""
        self._view.end_line()
        if keys in ("q", "d"):
            return True
        if keys == "m":
            return await self._open_menu()
        if keys == "s" and self._followed.state:
            for name, value in formatting.status_rows(self._loop, self._followed.state, datetime.now(UTC)):
                if value:
                    self._view.note(f"  {name:<12}{value}", "")
            return False
        with suppress(Interrupted):  # out of the question, which a key had opened
            for line in await self._followed.key(keys, self._keyboard):
                self._view.note(line)
        return self._keyboard.terminated

    async def _ctrl_c(self) -> bool:
        """Ctrl-C: pause now, and ask. Whether the person leaves."""
        self._view.end_line()
        if self._followed.closed:
            return True
        self._followed.pause_now()
        return await self._open_menu()

    async def _open_menu(self) -> bool:
        self._view.end_line()
        try:
            return await self._menu.open(self._view.note)
        except Interrupted:
            return True

    # Leaving, and the end.

    async def _leave(self) -> Exit:
        if self._keyboard.terminated:
            remark(f"the loop goes on without this terminal; follow it again with: steer loop attach {self._loop}")
            return Exit.TERMINATED
        if not await self._pump.wait_idle(0) and not await self._settled():
            remark("what was said last has not reached the loop yet", "yellow")
        await self._followed.look()
        remark(f"{self._followed.leave_message()}; follow it again with: steer loop attach {self._loop}")
        return Exit.DETACHED

    async def _settled(self) -> bool:
        remark("waiting for the loop to take what was said last ... (Ctrl-C: do not wait)")
        try:
            return await self._keyboard.unless_interrupted(self._pump.wait_idle(SETTLE_S))
        except Interrupted:
            return False

    async def _ending(self) -> Exit:
        result = await read_outcome(self._steersman, self._loop)
        if self._json:
            write_outcome(result)
        else:
            self._view.note(*end_line(result))
        return result.code


def _moved(before: LoopState, state: LoopState) -> bool:
    """Whether it is held anew: a short iteration comes and goes between two looks."""
    return (before.status, before.totals.iterations) != (state.status, state.totals.iterations)


async def follow(steersman: Steersman, which: Callable[[], Awaitable[str]], *, as_json: bool) -> Exit:
    """Show what a loop does until its end or until the person leaves; the exit code. `which`: starts or finds it."""
    with ExitStack() as ending:
        status_bar = None
        if is_interactive() and not as_json:
            status_bar = StatusBar(sys.stdout, colored=console().color_system is not None)
        out = terminal_console(cast("TextIO", status_bar)) if status_bar else console()
        # From before the start, so that no Ctrl-C leaves a loop behind unsaid.
        keyboard = ending.enter_context(Keyboard(out, status_bar))
        return await Follower(steersman, await which(), out, keyboard, status_bar, as_json=as_json).run()
