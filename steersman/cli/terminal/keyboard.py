"""The keyboard: questions that the person answers with a line, single keys between them, Ctrl-C.

It knows nothing of runs. While a question is open the caller prints nothing but by `remark`, so what is typed stays
readable. However the program ends, except by SIGKILL, the terminal's settings are restored.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from rich.console import Console
from rich.text import Text

from steersman.cli.terminal.signals import handle

try:
    import termios
except ImportError:  # Windows
    CAN_ASK = False
else:
    CAN_ASK = True

T = TypeVar("T")
MAX_TEXT_LINES = 1000
MAX_READS = 256
"""Reads of what was typed before a question, or with its answer: beyond that somebody types for ever."""
PASTED_S = 0.05
"""What follows on a line within this many seconds was pasted with it."""
_SEQUENCES = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O.)?")
"""Arrow keys and the like, which mean nothing here."""


class Interrupted(Exception):
    """Ctrl-C while a question was open."""


class Overlay(Protocol):
    """Something drawn on the terminal beside the text, which is hidden while a person answers with a line."""

    def hidden(self) -> AbstractAsyncContextManager[None]:
        """Meanwhile it is not on the screen. At the end the cursor is at the beginning of a line."""


class NoOverlay:
    """For a terminal without an overlay."""

    @asynccontextmanager
    async def hidden(self) -> AsyncIterator[None]:
        """Do nothing."""
        yield


def is_interactive() -> bool:
    """Whether somebody sits at both ends, of a terminal that can be asked at."""
    return CAN_ASK and sys.stdin.isatty() and sys.stdout.isatty()


LINE_BYTES = 4096
"""Where a terminal hands out lines, it drops what a line has beyond this (N_TTY_BUF_SIZE of Linux)."""
_CUT = Text(
    f"a line has at most {LINE_BYTES - 2:,} bytes here: this one was cut, and nothing of it was taken. "
    "`steer steer RUN @FILE` says a longer one",
    style="yellow",
)


class _LineCutError(Exception):
    """The terminal has cut the line."""


class Keyboard:
    """Ctrl-C (and SIGTERM, SIGHUP) as an event, questions and keys. A context manager in a running event loop."""

    def __init__(self, console: Console, overlay: Overlay | None = None) -> None:
        self._console = console
        self._overlay = overlay or NoOverlay()
        self.ctrl_c = asyncio.Event()
        self.wake = asyncio.Event()
        """The wake event: set at Ctrl-C and at a key. Who waits for further things, too, may have them set it."""
        self.terminated = False
        self.keys: asyncio.Queue[str] = asyncio.Queue()
        """What was read while `reading_keys`: mostly one key each."""
        self._saved_mode: list[Any] | None = None
        self._cooked = False
        """Whether what is read comes by lines."""
        self._undo_handlers: list[Callable[[], None]] = []
        self._suspending: asyncio.Future[None] | None = None
        self._question: Text | None = None
        """The question that is open."""

    def __enter__(self) -> Self:
        self._undo_handlers = [handle("SIGINT", self.interrupt), handle("SIGTERM", self._terminate)]
        hang_up = getattr(signal, "SIGHUP", None)
        if hang_up and signal.getsignal(hang_up) is not signal.SIG_IGN:  # nohup has it ignored
            self._undo_handlers.append(handle("SIGHUP", self._terminate))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for undo in self._undo_handlers:
            undo()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self.ctrl_c.set()
        self.wake.set()

    def _terminate(self) -> None:
        self.terminated = True
        self.interrupt()

    def clear_interrupt(self) -> None:
        """Clear a Ctrl-C that the caller answers: only another one interrupts the answer. SIGTERM is never cleared."""
        if not self.terminated:
            self.ctrl_c.clear()

    # Questions.

    def remark(self, text: str, style: str) -> bool:
        """Say something to whoever stands at a question, which is shown again below; False where none is open."""
        if self._question is None:
            return False
        self._console.print()
        self._console.print(Text(text, style=style))
        self._console.print(self._question, end=" ")
        return True

    async def ask(self, question: Text, *, unless: asyncio.Event | None = None) -> str | None:
        """What the person types; None at the end of input, or when `unless` is set meanwhile. Raises Interrupted."""
        async with self._lines():
            line = await self._line(question, unless)
        return None if line is None else line.strip()

    async def ask_message(self, question: Text, *, unless: asyncio.Event | None = None) -> str | None:
        """As `ask`; several lines that are pasted stay together."""
        async with self._lines():
            line = await self._line(question, unless)
            if not line:
                return line
            await asyncio.sleep(PASTED_S)
            pasted = _typed(sys.stdin.fileno()).decode(errors="replace")
        return "".join(each for each in f"{line}\n{pasted}" if each.isprintable() or each in "\n\t").strip()

    async def ask_text(self, question: Text) -> str | None:
        """Several lines, up to an empty one; None at the end of input. Raises Interrupted."""
        async with self._lines():
            self._console.print(question)
            lines: list[str] = []
            while len(lines) < MAX_TEXT_LINES:
                line = await self._line(Text(">", style="dim"), None)
                if line is None and not lines:
                    return None
                if not line:
                    break
                lines.append(line)
        return "\n".join(lines).strip()

    @asynccontextmanager
    async def _lines(self) -> AsyncIterator[None]:
        """Meanwhile the terminal edits lines and echoes what is typed, and the overlay is hidden."""
        reading_keys = self._saved_mode is not None
        self._stop_reading()
        try:
            async with self._overlay.hidden():
                # What was typed before the question was shown is no answer to it.
                _typed(sys.stdin.fileno())
                yield
        finally:
            if reading_keys:
                self._start_reading()

    async def _line(self, question: Text, unless: asyncio.Event | None) -> str | None:
        while True:
            try:
                return await self._one_line(question, unless)
            except _LineCutError:
                self._console.print(_CUT)

    async def _one_line(self, question: Text, unless: asyncio.Event | None) -> str | None:
        if self.terminated:
            raise Interrupted
        fd = sys.stdin.fileno()
        self._console.print(question, end=" ")
        self._question = question
        line = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(fd, _read, fd, line)
        waits = [line, *(asyncio.ensure_future(event.wait()) for event in (self.ctrl_c, unless) if event)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._question = None
            asyncio.get_running_loop().remove_reader(fd)
            for wait in waits:
                wait.cancel()
        text: str | None = line.result() if line.done() and not line.cancelled() else None
        if self.ctrl_c.is_set() or text is None:
            self._console.print()
        if self.ctrl_c.is_set():
            self.clear_interrupt()
            raise Interrupted
        return text

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Ctrl-C cancels it, and raises Interrupted."""
        doing, pressed = asyncio.ensure_future(work), asyncio.ensure_future(self.ctrl_c.wait())
        try:
            await asyncio.wait({doing, pressed}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                self.clear_interrupt()
                raise Interrupted
            return doing.result()
        finally:
            doing.cancel()
            pressed.cancel()

    # Single keys.

    @contextmanager
    def reading_keys(self) -> Iterator[None]:
        """Meanwhile what is typed goes to `keys`, at once and without echo, except while a question is open."""
        self._start_reading()
        try:
            yield
        finally:
            self._stop_reading()

    @contextmanager
    def reading_lines(self) -> Iterator[None]:
        """The same, but the terminal edits and echoes what is typed, and hands it out by lines."""
        self._cooked = True
        with self.reading_keys():
            yield

    def _start_reading(self) -> None:
        fd = sys.stdin.fileno()
        with suppress(termios.error):  # the terminal was closed
            self._saved_mode = termios.tcgetattr(fd)
            raw = termios.tcgetattr(fd)
            if not self._cooked:
                raw[3] &= ~(termios.ICANON | termios.ECHO)
                raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
            termios.tcsetattr(fd, termios.TCSADRAIN, raw)
            asyncio.get_running_loop().add_reader(fd, self._take_keys, fd)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspend)

    def _stop_reading(self) -> None:
        if self._saved_mode is None:
            return
        fd = sys.stdin.fileno()
        asyncio.get_running_loop().remove_reader(fd)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        with suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, self._saved_mode)
        self._saved_mode = None
        while not self.keys.empty():
            self.keys.get_nowait()

    def _take_keys(self, fd: int) -> None:
        try:
            data = os.read(fd, 4096)
        except OSError:
            data = b""
        if data:
            if self._cooked and len(data) >= LINE_BYTES:
                self._console.print(_CUT)
            elif keys := _SEQUENCES.sub("", data.decode(errors="replace")):
                self.keys.put_nowait(keys)
                self.wake.set()
        else:
            # The terminal was closed.
            asyncio.get_running_loop().remove_reader(fd)
            self._terminate()

    def _suspend(self) -> None:
        """Ctrl-Z: restore the terminal's settings for the shell; set them again when the shell continues it."""
        self._stop_reading()
        self._suspending = asyncio.ensure_future(self._suspended())

    async def _suspended(self) -> None:
        async with self._overlay.hidden():
            os.kill(os.getpid(), signal.SIGTSTP)
            # The process was stopped here.
        self._start_reading()


def _typed(fd: int) -> bytes:
    """What was typed and not read. Read, not flushed: a flush also takes a Ctrl-C that is no signal yet."""
    found = b""
    with suppress(termios.error, OSError):  # the terminal was closed
        lines, keys = termios.tcgetattr(fd), termios.tcgetattr(fd)
        keys[3] &= ~termios.ICANON  # else half a line stays
        keys[6][termios.VMIN] = keys[6][termios.VTIME] = 0
        termios.tcsetattr(fd, termios.TCSANOW, keys)
        try:
            for _ in range(MAX_READS):
                if not (data := os.read(fd, 4096)):
                    break
                found += data
        finally:
            termios.tcsetattr(fd, termios.TCSANOW, lines)
    return found


def _read(fd: int, line: "asyncio.Future[str | None]") -> None:
    """Read one line, as the terminal hands out lines. An empty read is Ctrl-D, or a terminal that was closed."""
    if line.done():
        return
    try:
        data = os.read(fd, 65536)
    except OSError:
        data = b""
    if len(data) >= LINE_BYTES:
        line.set_exception(_LineCutError())
        return
    line.set_result(data.decode(errors="replace").partition("\n")[0].rstrip("\r") if data else None)
