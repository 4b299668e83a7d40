"""The input line: below a run's text a line that a person types on, and one that says how the run stands.

A text stream before the terminal's: what is written to it comes above both. It knows nothing of runs; prompt_toolkit
edits and draws.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from steersman.cli.terminal.status_bar import TerminalStream, terminal_size

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from steersman.cli.terminal.raw_input import RawInput

PROMPT = "» "
LIVE_LINES = 6
"""Of a text that is still coming at most so many lines are shown, the last ones."""
INPUT_LINES = 6
DRAW_S = 0.04
"""What is written within this time is drawn at once."""
TICK_S = 1.0
ESCAPE_S = 0.1
"""Longer than the bytes of one key are apart on a slow connection: Esc alone interrupts an agent."""
MIN_LINES, MIN_COLUMNS = 10, 20
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Actions:
    """What keys do. `say` and `escape` get what was typed, which is gone from the line."""

    say: Callable[[str], None]
    escape: Callable[[str], None]
    interrupt: Callable[[], None]
    leave: Callable[[], None]
    status: Callable[[], str]


def can_draw(out: TextIO) -> bool:
    """Whether the terminal can move its cursor, and has room for lines below the text."""
    size = terminal_size(out)
    return size.columns >= MIN_COLUMNS and size.lines >= MIN_LINES


class InputLine(TerminalStream):
    """One line to type on. It is drawn while `opened`, but for the time of a question (`hidden`)."""

    def __init__(self, out: TextIO, *, colored: bool = True) -> None:
        super().__init__(out)
        self._colored = colored
        self._buffer: Buffer | None = None
        """What stands on the line, once it was opened. The library is loaded no earlier: a closed run needs none."""
        self._input: RawInput | None = None
        """What is typed comes from here, once it was opened."""
        self._live: str | Callable[[], str] = ""
        self._written: list[str] = []
        self._changed = asyncio.Event()
        self._drawn = self._ending = False
        self._suspending: asyncio.Future[None] | None = None

    # The stream.

    def write(self, text: str) -> int:
        """Print text above the line: soon, if it is drawn."""
        if self._drawn:
            self._written.append(text)
            self._changed.set()
        else:
            self._put(text)
        return len(text)

    def flush(self) -> None:
        """Nothing: what is printed at once is flushed, and what waits to be drawn cannot be."""

    def _put(self, text: str) -> None:
        super()._put(text)
        super().flush()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Meanwhile, for a run that has closed and needs no line: what is written goes out by the thousand, and at the
        end.
        """
        self._drawn, draws = True, asyncio.create_task(self._draw_gathered())
        try:
            yield
        finally:
            self._drawn = False
            draws.cancel()
            self._put(self._taken())

    async def _draw_gathered(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._put(self._taken())

    # What is below the text.

    def live(self, text: str | Callable[[], str]) -> None:
        """Show a text that is still coming, clean already, without keeping it: its end, if it is long. A function is
        asked for it whenever it is drawn.
        """
        self._live = text
        if self._drawn:
            self._changed.set()

    @property
    def typed(self) -> str:
        """What stands on the line."""
        return self._buffer.text if self._buffer else ""

    def put_back(self, text: str) -> None:
        """Give the person back what was typed, unless something else stands there by now."""
        if self._buffer and not self._buffer.text:
            self._buffer.text = text
            self._buffer.cursor_position = len(text)

    # Drawing.

    @asynccontextmanager
    async def opened(self, actions: Actions) -> AsyncIterator[None]:
        """Draw the line, and carry out keys, until the end."""
        application = self._application(actions)
        started = asyncio.Event()
        running = asyncio.create_task(application.run_async(pre_run=started.set, handle_sigint=False))
        running.add_done_callback(lambda _: started.set())
        await started.wait()
        self._drawn = True
        drawing = asyncio.create_task(self._draw())
        running.add_done_callback(lambda _: self._closed(running, actions))
        try:
            yield
        finally:
            # Not cancelled: the application waits for whoever prints above it.
            self._drawn, self._ending = False, True
            self._changed.set()
            await drawing
            if application.is_running:
                application.exit()
            await asyncio.gather(running, return_exceptions=True)
            self._put(self._taken())

    def _closed(self, running: "asyncio.Task[None]", actions: Actions) -> None:
        """The terminal was closed, if nobody has ended the line."""
        if self._drawn and not running.cancelled():
            actions.leave()

    @asynccontextmanager
    async def hidden(self) -> AsyncIterator[None]:
        """Meanwhile the terminal is as it was before, and what is written is printed at once."""
        if not self._drawn:
            yield
            return
        async with self._released():
            self._drawn = False
            try:
                yield
            finally:
                self._drawn = True

    @asynccontextmanager
    async def _released(self) -> AsyncIterator[None]:
        """Meanwhile the line is gone, and the terminal edits and echoes; one after another."""
        from prompt_toolkit.application import in_terminal

        assert self._input is not None  # the line was opened
        async with in_terminal():
            self._put(self._taken())
            with self._input.line_mode():
                yield

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets the terminal as it was before, until it continues this process."""
        self._suspending = asyncio.ensure_future(self._suspended())

    async def _suspended(self) -> None:
        async with self._released():  # once a question is answered
            os.kill(0, signal.SIGTSTP)
            # The process was stopped here.

    async def _draw(self) -> None:
        from prompt_toolkit.application import in_terminal

        while not self._ending:
            await self._changed.wait()
            self._changed.clear()
            async with in_terminal():
                self._put(self._taken())
            await asyncio.sleep(DRAW_S)

    def _taken(self) -> str:
        text = "".join(self._written)
        self._written.clear()
        return text

    def _application(self, actions: Actions) -> "Application[None]":
        from prompt_toolkit.application import Application
        from prompt_toolkit.buffer import Buffer
        from prompt_toolkit.data_structures import Size
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.layout import (
            BufferControl,
            ConditionalContainer,
            Dimension,
            FormattedTextControl,
            HSplit,
            Layout,
            Window,
        )
        from prompt_toolkit.layout.processors import BeforeInput
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.output.vt100 import Vt100_Output
        from prompt_toolkit.styles import Style

        from steersman.cli.terminal.raw_input import RawInput

        self._input = RawInput(sys.stdin)
        buffer = self._buffer = Buffer(multiline=True)
        live = Window(FormattedTextControl(self._live_end), wrap_lines=True, dont_extend_height=True)
        line = Window(
            BufferControl(buffer, input_processors=[BeforeInput(PROMPT, style="class:prompt")]),
            height=Dimension(min=1, max=INPUT_LINES),
            wrap_lines=True,
            dont_extend_height=True,
        )
        status = Window(
            FormattedTextControl(lambda: [("class:status", actions.status())]), height=1, style="class:status"
        )
        below = HSplit([ConditionalContainer(live, Condition(lambda: bool(self._live_text()))), line, status])

        def size() -> Size:
            known = terminal_size(self._out)
            return Size(rows=known.lines or 24, columns=known.columns or 80)

        application: Application[None] = Application(
            layout=Layout(below, focused_element=line),
            key_bindings=_keys(buffer, actions, self._suspend),
            style=Style.from_dict({"status": "reverse", "prompt": "bold"}),
            color_depth=None if self._colored else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            refresh_interval=TICK_S,
            min_redraw_interval=DRAW_S,
            input=self._input,
            output=Vt100_Output(self._out, size, term=os.environ.get("TERM"), enable_cpr=False),
        )
        application.ttimeoutlen = ESCAPE_S
        application.timeoutlen = ESCAPE_S
        return application

    def _live_text(self) -> str:
        return self._live if isinstance(self._live, str) else self._live()

    def _live_end(self) -> str:
        """The last lines: the width counts, and not where lines end."""
        columns = max(terminal_size(self._out).columns, MIN_COLUMNS)
        lines, left = [], LIVE_LINES
        for text in reversed(_STYLE.sub("", self._live_text()).split("\n")):
            needs = max(-(-cell_len(text) // columns), 1)
            if needs > left:
                lines.append(text[-left * columns // 2 :] if left else "")
                break
            lines.append(text)
            left -= needs
        return "\n".join(reversed(lines))


def _keys(buffer: "Buffer", actions: Actions, suspend: Callable[[], None]) -> "KeyBindings":
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    def take() -> str:
        text = buffer.text.strip()
        buffer.reset(append_to_history=bool(text))
        return text

    @keys.add("enter")
    @keys.add("c-j")
    def _(_event: "KeyPressEvent") -> None:
        if text := take():
            actions.say(text)

    @keys.add("escape", "enter")
    def _(_event: "KeyPressEvent") -> None:
        buffer.insert_text("\n")

    @keys.add("escape")
    def _(_event: "KeyPressEvent") -> None:
        actions.escape(take())

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _(_event: "KeyPressEvent") -> None:
        actions.interrupt()

    @keys.add("c-d")
    def _(_event: "KeyPressEvent") -> None:
        if buffer.text:
            buffer.delete()
        else:
            actions.leave()

    @keys.add("c-z")
    def _(_event: "KeyPressEvent") -> None:
        suspend()

    return keys
