"""What a terminal shows of what was written to it: enough of one for what Steersman writes, and no more.

An escape sequence that it does not know is an error: nothing may reach a terminal by accident.
"""

import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b([78DM])|([\r\n\t\a\b])|([^\x00-\x1f\x7f])|(.)", re.DOTALL)


_MODES = ("1", "7", "12", "25", "2004")
"""Cursor keys, autowrap, a cursor that blinks or is seen, and brackets around what is pasted."""


Row = list[tuple[str, str]]
"""Characters with their styles: the parameters of an SGR sequence, empty for none."""


class Screen:
    """Columns, lines, a scrollback, and the wrap that waits in the last column, as xterm has it."""

    def __init__(self, columns: int = 40, lines: int = 8) -> None:
        self.columns, self.lines = columns, lines
        self.rows: list[Row] = [[] for _ in range(lines)]
        self.scrollback: list[Row] = []
        self._style = ""
        self._row = self._column = 0
        self._wraps = False
        self._autowrap = True
        self._saved = (0, 0, False)

    def feed(self, text: str) -> "Screen":
        for code, final, escape, control, character, other in _TOKEN.findall(text):
            if character:
                self._put(character)
            elif control:
                self._control(control)
            elif escape:
                self._escape(escape)
            elif final:
                self._sequence(final, code)
            else:
                raise AssertionError(f"{other!r} reached the terminal")
        return self

    @property
    def text(self) -> list[str]:
        """All that was ever shown and stayed, without the empty lines at the end."""
        shown = ["".join(character for character, _ in row).rstrip() for row in (*self.scrollback, *self.rows)]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    @property
    def styled(self) -> str:
        """The same, with its colors."""
        return "\n".join(
            "".join(f"\x1b[0;{style}m{character}" for character, style in row) + "\x1b[0m"
            for row in (*self.scrollback, *self.rows)[: len(self.text)]
        )

    def _put(self, character: str) -> None:
        if self._wraps:
            self._wraps, self._column = False, 0
            self._down()
        row = self.rows[self._row]
        row += [(" ", "")] * (self._column + 1 - len(row))
        row[self._column] = (character, self._style)
        if self._column == self.columns - 1:
            self._wraps = self._autowrap
        else:
            self._column += 1

    def _down(self) -> None:
        if self._row == self.lines - 1:
            self.scrollback.append(self.rows.pop(0))
            self.rows.append([])
        else:
            self._row += 1

    def _control(self, control: str) -> None:
        if control == "\a":
            return
        self._wraps = False
        if control == "\b":
            self._column = max(self._column - 1, 0)
            return
        if control == "\t":
            self._column = min((self._column // 8 + 1) * 8, self.columns - 1)
            return
        self._column = 0
        if control == "\n":  # the terminal makes CR LF of it
            self._down()

    def _escape(self, escape: str) -> None:
        if escape == "7":
            self._saved = (self._row, self._column, self._wraps)
        elif escape == "8":
            self._row, self._column, self._wraps = self._saved
        elif escape == "D":
            self._wraps = False
            self._down()
        else:
            self._wraps = False
            assert self._row, "a reverse index at the top would scroll the text away"
            self._row -= 1

    def _sequence(self, final: str, code: str) -> None:
        if final == "m":
            kept = "" if code in ("", "0") or code.startswith("0;") else self._style
            self._style = ";".join(filter(None, (kept, code.removeprefix("0").removeprefix(";"))))
            return
        if code.startswith("?") and final in "hl":
            assert code[1:] in _MODES, f"mode {code} reached the terminal"
            if code == "?7":
                self._autowrap = final == "h"
            return
        self._wraps = False
        if final in "ABCD":
            self._move(final, int(code or 1))
        elif final == "K" and code in ("", "0"):
            self.rows[self._row] = self.rows[self._row][: self._column]
        elif final == "J" and code in ("", "0"):
            self.rows[self._row] = self.rows[self._row][: self._column]
            self.rows[self._row + 1 :] = [[] for _ in range(self.lines - self._row - 1)]
        else:
            raise AssertionError(f"CSI {code}{final} reached the terminal")

    def _move(self, final: str, by: int) -> None:
        if final in "AB":
            self._row = min(max(self._row + (by if final == "B" else -by), 0), self.lines - 1)
        else:
            self._column = min(max(self._column + (by if final == "C" else -by), 0), self.columns - 1)
