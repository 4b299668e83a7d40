"""What a terminal shows of what was written to it: enough of one for what Steersman writes, and no more.

An escape sequence that it does not know is an error: nothing may reach a terminal by accident.
"""

import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b([78DM])|([\r\n\t])|([^\x00-\x1f\x7f])|(.)", re.DOTALL)


class Screen:
    """Columns, lines, a scrollback, and the wrap that waits in the last column, as xterm has it."""

    def __init__(self, columns: int = 40, lines: int = 8) -> None:
        self.columns, self.lines = columns, lines
        self.rows = [""] * lines
        self.scrollback: list[str] = []
        self._row = self._column = 0
        self._wraps = False
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
        shown = [row.rstrip() for row in (*self.scrollback, *self.rows)]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def _put(self, character: str) -> None:
        if self._wraps:
            self._wraps, self._column = False, 0
            self._down()
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
        if self._column == self.columns - 1:
            self._wraps = True
        else:
            self._column += 1

    def _down(self) -> None:
        if self._row == self.lines - 1:
            self.scrollback.append(self.rows.pop(0))
            self.rows.append("")
        else:
            self._row += 1

    def _control(self, control: str) -> None:
        self._wraps = False
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
            return
        self._wraps = False
        if final == "B":
            self._row = min(self._row + int(code or 1), self.lines - 1)
        elif final == "J" and code in ("", "0"):
            self.rows[self._row] = self.rows[self._row][: self._column]
            self.rows[self._row + 1 :] = [""] * (self.lines - self._row - 1)
        else:
            raise AssertionError(f"CSI {code}{final} reached the terminal")
