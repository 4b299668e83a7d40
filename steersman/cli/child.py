"""A child process of `steer dev`: its log, its end.

It has a session of its own, so that Ctrl-C at the terminal reaches dev alone and dev decides who ends when. On Linux it
ends as well where dev is killed: nobody would, and the next dev would find its port taken.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LAST_BYTES = 64 * 1024
_BOUND = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
os.getppid() == int(sys.argv[1]) or sys.exit(143)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A program that becomes another one, to which Linux sends SIGTERM as soon as its parent is dead."""


class Child:
    """One process at a time, whose output goes to a log file that is truncated first."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], *, private: bool = False
    ) -> None:
        """`private`: what it writes is for this user alone."""
        self.name = name
        self.log = log
        bound = (sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid())) if sys.platform == "linux" else ()
        self._command = (*bound, *command)
        self._environment = environment
        self._umask = 0o077 if private else -1
        self._process: asyncio.subprocess.Process | None = None
        self._begins = 0
        """Where in the log this process begins."""

    async def start(self) -> None:
        """Start the process, or another one in its place, whose log follows."""
        kept = 0 if self._process else os.O_TRUNC
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | kept | os.O_APPEND, 0o600)
        self._begins = os.fstat(descriptor).st_size
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=self._environment,
                start_new_session=True,
                umask=self._umask,
            )
        finally:
            os.close(descriptor)

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def ended(self) -> None:
        """Wait for the end of the process."""
        if self._process is not None:
            await self._process.wait()

    def ending(self) -> str:
        """How the process ended, for a message."""
        code = self._process.returncode if self._process else None
        if code is None:
            return "not ready in time"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def last_lines(self, count: int = 12) -> list[str]:
        """The last `count` lines of its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self._begins, self.log.stat().st_size - LAST_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
        return []

    async def logged(self, words: str) -> None:
        """Wait until a line of its log has these words."""
        while not any(words in line for line in self.last_lines(10_000)):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.05)

    async def end(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Send SIGTERM, then SIGKILL after `grace_s` seconds or as soon as `hurry` is set."""
        if self._process is None or not self.alive:
            return
        self._process.terminate()
        waits = [asyncio.ensure_future(self._process.wait()), asyncio.ensure_future(hurry.wait())]
        await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if self.alive:
            self._process.kill()
            await self._process.wait()
