"""The short-lived program that puts a shim into the background, and one of it in reserve.

What must not live here: what is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Self

from activities.shim import program
from activities.shim.client.errors import StartFailed

# Imported rather than run, the program comes compiled from its cache: 3 MB less for each shim's life.
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); import shim; sys.exit(shim.main(sys.argv[2:]))"
COMMAND = "import sys; sys.path.insert(0, sys.argv.pop(1)); from program.main import main; sys.exit(main(sys.argv[1:]))"
"""Any command of the program, where it lies in a directory `program` below the first argument."""
_RESERVED = "-" * 512
"""In place of the directory, whose name ps shows in this room once it is known."""
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that an interpreter may need of the worker's environment; its secrets are none of a shim's business."""
PROGRAM = Path(program.__path__[0])
"""The directory of what runs where the agent runs."""
REFILL_S = 0.5
"""How long after one was taken the next is made: not while the agent itself is starting."""


def launcher(python: str) -> list[str]:
    """The command line, up to what it is to do."""
    return [python, "-I", "-S", "-c", _RUN, str(PROGRAM)]


async def spawn(command: list[str]) -> asyncio.subprocess.Process:
    """Raises OSError."""
    pipe = asyncio.subprocess.PIPE
    env = {name: os.environ[name] for name in _LIBRARIES if name in os.environ}
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)


async def launched(process: asyncio.subprocess.Process, said: bytes) -> dict[str, Any]:
    """The launcher's answer; raises StartFailed where it gave none."""
    try:
        output, errors = await process.communicate(said)
    except asyncio.CancelledError:
        process.kill()
        raise
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise StartFailed(f"the shim's launcher said nothing (exit code {process.returncode}): {last}") from None
    return answer


class Spare:
    """A launcher that has started already and waits for its spec: a start is some 30 ms sooner with it.

    It ends by itself when this process does. Use as an async context manager in a running loop.
    """

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self._refilling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._refill(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._refilling:
            self._refilling.cancel()
            await asyncio.gather(self._refilling, return_exceptions=True)
        if self._process:
            with contextlib.suppress(OSError):
                await self._process.communicate(b"")

    def take(self) -> asyncio.subprocess.Process | None:
        """The one in reserve, if there is one; the next is made soon."""
        process, self._process = self._process, None
        if self._refilling is None or self._refilling.done():
            self._refilling = asyncio.create_task(self._refill(REFILL_S))
        return process if process and process.returncode is None else None

    async def _refill(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        with contextlib.suppress(OSError):  # without a spare, starts are only slower
            self._process = await spawn([*launcher(self._python), "wait", _RESERVED])
