"""The follower of a loop on the terminal: the events of its runs, the status bar, keys, and the menu.

It shows and asks; `followed_loop` carries out keys, `menu` is the menu. The loop goes on, whatever happens here, unless
the person chooses otherwise.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from datetime import UTC, datetime
from typing import TextIO, cast

from rich.console import Console

from steersman.cli.exits import Exit
from steersman.cli.loop import formatting
from steersman.cli.loop.followed_loop import FollowedLoop
from steersman.cli.loop.menu import Menu
from steersman.cli.loop.outcome import end_line, read_outcome, write_item, write_outcome
from steersman.cli.output import complain, console, left_by_reader, remark, terminal_console
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
from steersman.loop_items import LoopItem, RunBegun, RunEvent

TICK_S = 1.0
SETTLE_S = 10.0
"""Seconds that leaving waits for the last requests to reach the loop."""


class Follower:
    """One loop on one terminal. `status_bar`: None where no person sits at it."""

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
        """Whether the run that is shown is a verification."""
        self._approvals: dict[str, ApprovalPrompts] = {}
        self._shown: LoopState | None = None
        self._pump: EventPump[LoopItem] = EventPump(self._items(), keyboard, self._on_read)
        self._followed = FollowedLoop(steersman, loop, self._pump, self._wake)
        self._menu = Menu(self._followed, keyboard, out)

    async def _items(self) -> AsyncGenerator[tuple[LoopItem], None]:
        async with aclosing(self._steersman.loops.follow(self._loop, wake=self._wake)) as items:
            async for item in items:
                yield (item,)

    def _on_read(self, item: LoopItem) -> None:
        """Note an item when it is read, which may be long before it is shown."""
        if isinstance(item, LoopState):
            self._followed.update(item)
            self._menu.update(item)
            self._status()
        elif isinstance(item, RunBegun):
            self._approvals[item.run] = ApprovalPrompts(self._steersman, item.run, self._keyboard, Renderer(self._out))
        else:
            self._approvals[item.run].on_event(item.event)

    async def run(self) -> Exit:
        """Follow until the loop's end, or until the person leaves; the exit code."""
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
        """Show the stream; whether the person left before its end."""
        try:
            while True:
                item = await self._pump.next()
                if item is None:
                    if self._status_bar is None or self._keyboard.terminated or await self._ctrl_c():
                        return True
                elif isinstance(item, Note):
                    self._view.note(item.text, item.style)
                elif isinstance(item, KeyPress):
                    if await self._on_key(item.keys):
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
        """Show an item; whether the person leaves at a question that comes with it."""
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
        # Somebody may have decided meanwhile: the state that was read last counts.
        if asks and self._status_bar and self._followed.waits_for_decision:
            return await self._open_menu()
        return False

    async def _show_event(self, item: RunEvent) -> bool:
        event: AgentEvent = item.event
        # A verification command that fails is no crash; the state that follows has its exit code.
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
                    await approver.ask(event)
                    return False
                except Interrupted:
                    if self._keyboard.terminated or await self._ctrl_c():
                        return True
        return False

    def _status(self) -> None:
        state = self._followed.state
        if self._status_bar is None or state is None:
            return
        line = "" if self._followed.closed else formatting.status_line(state, datetime.now(UTC))
        line = f"pausing · {line}" if self._followed.pausing else line
        at_work = self._view.tool_line() if line else ""
        self._status_bar.say(f"{line} · {at_work}" if at_work else line)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._status()

    # Keys and Ctrl-C.

    async def _on_key(self, keys: str) -> bool:
        """Carry out a key; whether the person leaves."""
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
        with suppress(Interrupted):  # Ctrl-C in a question that the key opened
            for line in await self._followed.on_key(keys, self._keyboard):
                self._view.note(line)
        return self._keyboard.terminated

    async def _ctrl_c(self) -> bool:
        """Pause the loop now and open the menu; whether the person leaves."""
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
        await self._followed.refresh()
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
        elif result.error and result.code == Exit.USAGE and not self._approvals:
            complain(result.error)  # it was refused before anything began
        else:
            self._view.note(*end_line(result))
        return result.code


def _moved(before: LoopState, state: LoopState) -> bool:
    """Whether the loop is held anew: a short iteration may begin and end between two reads of the state."""
    return (before.status, before.totals.iterations) != (state.status, state.totals.iterations)


async def follow(steersman: Steersman, which: Callable[[], Awaitable[str]], *, as_json: bool) -> Exit:
    """Follow a loop until its end or until the person leaves; the exit code. `which` starts or finds the loop."""
    with ExitStack() as ending:
        ending.enter_context(left_by_reader())
        status_bar = None
        if is_interactive() and not as_json:
            status_bar = StatusBar(sys.stdout, colored=console().color_system is not None)
        out = terminal_console(cast("TextIO", status_bar)) if status_bar else console()
        # Signals are handled before the start: no Ctrl-C leaves a loop behind whose id was not printed.
        keyboard = ending.enter_context(Keyboard(out, status_bar))
        return await Follower(steersman, await which(), out, keyboard, status_bar, as_json=as_json).run()
