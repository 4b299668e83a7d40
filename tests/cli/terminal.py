"""A pseudo-terminal with a program on it: what a person types and sees."""

import asyncio
import contextlib
import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from tests.cli.screen import Screen
from tests.support.forkserver import Forked

# The program gets the terminal as its controlling one, so that Ctrl-C is a signal and not a character. A hang-up means
# what it means at a terminal, and so does Ctrl-C, also where the tests themselves run under nohup, or behind a `&`.
TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[78DM])")


class Terminal:
    """100 columns, 40 lines, until it is resized."""

    columns = 100

    def __init__(self, master: int, process: subprocess.Popen[bytes] | Forked) -> None:
        self._master = master
        self._process = process
        self.raw = ""
        self._seen = 0
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    @classmethod
    async def open(cls, command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> Self:
        """Start the program."""

        def start(slave: int) -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, "-c", TAKE_TERMINAL, *command],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )

        return cls.of(start)

    @classmethod
    def of(cls, start: "Callable[[int], subprocess.Popen[bytes] | Forked]") -> Self:
        """What is started with its end of a new terminal."""
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        process = start(slave)
        os.close(slave)
        return cls(master, process)

    @property
    def text(self) -> str:
        """Everything printed so far, without colors."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    async def until(self, words: str, timeout_s: float = 30) -> str:
        """Wait until these words were printed, after those waited for before; what came up to them."""
        try:
            async with asyncio.timeout(timeout_s):
                while (at := self.text.find(words, self._seen)) < 0:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{words!r} was not printed after {self._seen} of {self.raw!r}") from None
        before, self._seen = self.text[self._seen : at], at + len(words)
        return before

    def screen(self) -> list[str]:
        """The lines of the terminal and of its scrollback."""
        return Screen(self.columns, 40).feed(self.raw).text

    def resize(self, columns: int) -> None:
        """What was printed before has to fit, too."""
        self.columns = columns
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    @property
    def pid(self) -> int:
        """The program's."""
        return self._process.pid

    def modes(self) -> int:
        """The terminal's local modes: ECHO, ICANON ..."""
        found: int = termios.tcgetattr(self._master)[3]
        return found

    def hang_up(self) -> None:
        """Close the window."""
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        self._master = os.open(os.devnull, os.O_RDWR)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode("utf-8", "surrogateescape"))

    def ctrl_c(self) -> None:
        self.type("\x03")

    async def ended(self) -> int:
        """The exit code."""
        try:
            return await asyncio.to_thread(self._process.wait, 30)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still at work, having printed {self.raw!r}") from None

    async def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        with contextlib.suppress(ValueError):
            asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the last program has gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        self.raw += data.decode(errors="replace")
        self._changed.set()
