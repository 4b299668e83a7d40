"""The status bar: one line at the bottom of a terminal, below text that goes on being written, not in the scrollback.

It is erased before each piece of text and drawn again after it, with cursor moves that every terminal knows: no scroll
region and no saved position stays set. It knows nothing of what the line says.
"""

import asyncio
import io
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TextIO

from rich.cells import cell_len, set_cell_size

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_TAB = 8
DUMB = ("", "dumb", "unknown")
MIN_LINES, MIN_COLUMNS = 4, 20


def terminal_size(out: TextIO) -> os.terminal_size:
    """Columns and lines; 0 of both where the size is unknown, or where the terminal cannot move its cursor."""
    if os.environ.get("TERM", "dumb") in DUMB:
        return os.terminal_size((0, 0))
    try:
        return os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return os.terminal_size((0, 0))


class TerminalStream(io.TextIOBase):
    """A text stream before the terminal's. A closed terminal takes no text; whoever reads from it notices that."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def flush(self) -> None:
        """Flush the terminal's stream."""
        with suppress(OSError):
            self._out.flush()

    def _put(self, text: str) -> None:
        with suppress(OSError):
            self._out.write(text)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._out.isatty()

    def fileno(self) -> int:
        """The terminal's file descriptor."""
        return self._out.fileno()


class StatusBar(TerminalStream):
    """A text stream before the terminal's. What is written to it is printed above the line; `say` sets the line."""

    def __init__(
        self, out: TextIO, *, colored: bool = True, size: Callable[[TextIO], os.terminal_size] = terminal_size
    ) -> None:
        super().__init__(out)
        self._size = size
        self._style = ("\x1b[7m", "\x1b[27m") if colored else ("", "")
        self._line = ""
        self._drawn = False
        self._hidden = False
        self._column = 0
        """The column at which the text ends. At a multiple of the width a terminal may or may not have wrapped."""

    # The stream.

    def write(self, text: str) -> int:
        """Print text above the line."""
        erasure = self._erasure()
        self._advance(text)
        self._put(erasure + text + self._drawing())
        return len(text)

    # The line.

    def say(self, line: str) -> None:
        """Change the text of the line, which has no control characters. Empty: no line."""
        if line != self._line:
            self.redraw(line)

    def redraw(self, line: str | None = None) -> None:
        """Draw the line again, as after a change of the terminal's size."""
        erasure = self._erasure()
        self._line = self._line if line is None else line
        self._put(erasure + self._drawing())
        self.flush()

    def hide(self) -> None:
        """Remove the line until `show`."""
        self._put(self._erasure())
        self.flush()
        self._hidden = True

    def show(self) -> None:
        """Draw the line again; the cursor is at the beginning of an empty line."""
        self._hidden = False
        self._column = 0
        self.redraw()

    @asynccontextmanager
    async def hidden(self) -> AsyncIterator[None]:
        """Meanwhile there is no line. At the end the cursor is at the beginning of an empty one."""
        self.hide()
        try:
            yield
        finally:
            self.show()

    @contextmanager
    def resized(self) -> Iterator[None]:
        """Meanwhile the line is drawn again when the terminal's size changes."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self.redraw)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)

    # Escape sequences: DECSC and DECRC keep the place in the text, IND and RI make sure of a line below it.

    def _erasure(self) -> str:
        if not self._drawn:
            return ""
        self._drawn = False
        return "\r\x1b[J" if self._column == 0 else "\x1b7\x1b[B\r\x1b[J\x1b8"

    def _drawing(self) -> str:
        size = self._size(self._out)
        if not self._line or self._hidden or size.lines < MIN_LINES or size.columns < MIN_COLUMNS:
            return ""
        wrapped = self._column and self._column % size.columns == 0
        if wrapped:
            return ""
        self._drawn = True
        shown = set_cell_size(self._line, size.columns - 1) if cell_len(self._line) >= size.columns else self._line
        styled = f"{self._style[0]}{shown}{self._style[1]}"
        return f"\r{styled}\r" if self._column == 0 else f"\x1bD\x1bM\x1b7\x1b[B\r{styled}\x1b8"

    def _advance(self, text: str) -> None:
        _, newline, last = text.rpartition("\n")
        column = 0 if newline else self._column
        for part in re.split(r"(\t)", _ESCAPE.sub("", last)):
            column = (column // _TAB + 1) * _TAB if part == "\t" else column + cell_len(part)
        self._column = column
