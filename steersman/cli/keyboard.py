"""Asking the person at the terminal, one line at a time, beside everything else that goes on.

Knows nothing of runs. While a question is open the caller prints nothing, so what is typed stays readable.
"""

import asyncio
import os
import signal
import sys
import termios
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text


class Interrupted(Exception):
    """Ctrl-C while a question was open."""


def has_person() -> bool:
    """Whether somebody sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Keyboard:
    """Ctrl-C (and SIGTERM) as something to wait for, and questions. Use as a context manager in a running loop."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.ctrl_c = asyncio.Event()
        self.terminated = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.ctrl_c.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)

    def _terminate(self) -> None:
        self.terminated = True
        self.ctrl_c.set()

    async def ask(self, question: Text, *, unless: asyncio.Event | None = None) -> str | None:
        """What the person types; None at the end of input, or when `unless` is set meanwhile. Raises Interrupted."""
        fd = sys.stdin.fileno()
        # What was typed before the question was seen is no answer to it.
        termios.tcflush(fd, termios.TCIFLUSH)
        self.ctrl_c.clear()
        self._console.print(question, end=" ")
        line = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(fd, _read, fd, line)
        waits = [line, *(asyncio.ensure_future(event.wait()) for event in (self.ctrl_c, unless) if event)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asyncio.get_running_loop().remove_reader(fd)
            for wait in waits:
                wait.cancel()
        if self.ctrl_c.is_set():
            self._console.print()
            raise Interrupted
        if not line.done() or line.cancelled():
            self._console.print()
            return None
        text: str | None = line.result()
        if text is None:
            self._console.print()
        return text


def _read(fd: int, line: "asyncio.Future[str | None]") -> None:
    """The terminal hands out whole lines. An empty read is Ctrl-D, or a terminal that went away."""
    if line.done():
        return
    try:
        data = os.read(fd, 65536)
    except OSError:
        data = b""
    line.set_result(data.decode(errors="replace").partition("\n")[0].strip() if data else None)
