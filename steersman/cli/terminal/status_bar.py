"""One line at the bottom of a terminal, beneath text that goes on being written: it is no part of the scrollback.

It is taken away before each piece of text and put back after it, with nothing but moves that every terminal knows: no
scroll region, no position is ever left behind. Knows nothing of what the line says.
"""

import asyncio
import io
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.cells import cell_len, set_cell_size

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_TAB = 8
DUMB = ("", "dumb", "unknown")
MIN_LINES, MIN_COLUMNS = 4, 20


def terminal_size(out: TextIO) -> os.terminal_size:
    """Columns and lines; none of either where it cannot be told, or where the terminal cannot move its cursor."""
    if os.environ.get("TERM", "dumb") in DUMB:
        return os.terminal_size((0, 0))
    try:
        return os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return os.terminal_size((0, 0))


class StatusBar(io.TextIOBase):
    """A text stream in front of a terminal's. What is written to it is printed; `say` changes the line below."""

    def __init__(
        self, out: TextIO, *, colored: bool = True, size: Callable[[TextIO], os.terminal_size] = terminal_size
    ) -> None:
        self._out = out
        self._size = size
        self._style = ("\x1b[7m", "\x1b[27m") if colored else ("", "")
        self._line = ""
        self._drawn = False
        self._hidden = False
        self._column = 0
        """Where the text stands; not a multiple of the width, where a terminal may or may not have wrapped."""

    # The stream.

    def write(self, text: str) -> int:
        """Text, which ends up above the line."""
        erasure = self._erasure()
        self._advance(text)
        self._put(erasure + text + self._drawing())
        return len(text)

    def flush(self) -> None:
        """At once."""
        with suppress(OSError):
            self._out.flush()

    def _put(self, text: str) -> None:
        # A terminal that has gone takes no text; whoever reads from it hears of that.
        with suppress(OSError):
            self._out.write(text)

    def isatty(self) -> bool:
        """As the terminal's stream says."""
        return self._out.isatty()

    def fileno(self) -> int:
        """The terminal's."""
        return self._out.fileno()

    # The line.

    def say(self, line: str) -> None:
        """What the line says from now on; it has no control characters. Empty: no line."""
        if line != self._line:
            self.redraw(line)

    def redraw(self, line: str | None = None) -> None:
        """Draw it anew, as after a change of the terminal's size."""
        erasure = self._erasure()
        self._line = self._line if line is None else line
        self._put(erasure + self._drawing())
        self.flush()

    def hide(self) -> None:
        """No line, until `show`."""
        self._put(self._erasure())
        self.flush()
        self._hidden = True

    def show(self) -> None:
        """The line again; the cursor is at the beginning of an empty line."""
        self._hidden = False
        self._column = 0
        self.redraw()

    @contextmanager
    def resized(self) -> Iterator[None]:
        """Meanwhile it is drawn anew when the terminal's size changes."""
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
