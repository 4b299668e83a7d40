"""How bytes get to a place: a program is run there, with pipes, and that is all.

What must not live here: which programs are run, and what follows from what they say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path

from activities.ports.machine import Stream
from activities.shim.client import MachineUnusable

LIMIT = 1024 * 1024
"""Bytes of a line that a stream's reader takes."""
_CHUNK = 256 * 1024
SAID = 4096
"""How many bytes of what a program said on stderr are kept: the last."""


class ProcessStream:
    """A program behind a process of this machine: the program itself, or what carries its bytes elsewhere."""

    def __init__(self, process: Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.stdin, self.stdout = process.stdin, process.stdout
        self._process = process
        self._tail = b""
        self._discarding: asyncio.Task[None] | None = None
        self.watched = asyncio.create_task(self._drain(process.stderr))
        """Done once the program has ended."""

    async def wait(self) -> int:
        code = await self._process.wait()
        await asyncio.wait({self.watched}, timeout=1)
        return code

    def said(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # `Process.kill` may reap the process; asyncio then makes up an exit code, and logs a warning.
                os.kill(self._process.pid, signal.SIGKILL)
        if self._discarding is None:
            self._discarding = asyncio.create_task(self._discard())

    async def _discard(self) -> None:
        """Take what nobody reads any more: a pipe that was held back would never be seen to end."""
        assert self._process.stdout
        with contextlib.suppress(RuntimeError):  # somebody does read it
            while await self._process.stdout.read(_CHUNK):
                pass

    async def _drain(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(SAID):
            self._tail = (self._tail + data)[-SAID:]
        await self._process.wait()
        if self._discarding:  # asyncio lets go of a process only once its pipes have ended, too
            await asyncio.wait({self._discarding}, timeout=1)


class ChildMachine:
    """This computer, reached by child processes alone, as another one is: with a home and an environment of its own."""

    def __init__(self, home: Path, env: Mapping[str, str]) -> None:
        self._home, self._env = home, {**env, "HOME": str(home)}
        self._streams: set[ProcessStream] = set()

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LIMIT, env=self._env, cwd=self._home
            )
        except OSError as error:
            raise MachineUnusable(f"{argv[0]}: {os.strerror(error.errno or 0)}") from error
        stream = ProcessStream(process)
        self._streams.add(stream)
        stream.watched.add_done_callback(lambda _: self._streams.discard(stream))
        if stdin is not None:
            stream.stdin.write(stdin)
            stream.stdin.close()
        return stream

    async def aclose(self) -> None:
        for stream in self._streams:
            stream.kill()
        await asyncio.gather(*(stream.watched for stream in self._streams))
