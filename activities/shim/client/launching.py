"""Starting a shim on this machine: by a short-lived program that puts it into the background, one of it in reserve."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Self

from activities.shim import program
from activities.shim.client.errors import StartFailed, error_of
from activities.shim.client.reports import Spec, Status

# Imported rather than run, the program comes compiled from its cache: 3 MB less for each shim's life.
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); import shim; sys.exit(shim.main(sys.argv[2:]))"
_RESERVED = "-" * 512
"""In place of the directory, whose name ps shows in this room once it is known."""
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that an interpreter may need of the worker's environment; its secrets are none of a shim's business."""
PROGRAM = Path(program.__path__[0])
"""The directory of what runs where the agent runs."""
_CARRY_THROUGH_S = 10.0
_KILLED_S = 1.0
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_S):  # asyncio lets go of it once its pipes have ended, too
                await process.communicate()
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


async def start(
    directory: str | os.PathLike[str],
    spec: Spec,
    *,
    python: str = sys.executable,
    processes: str | None = None,
    spare: Spare | None = None,
) -> Status:
    """Start a shim and its agent in this directory (made with mode 0700). Neither is a child of this process.

    A start that is cancelled is carried through before the CancelledError goes on: the shim is there, or it is not.

    Args:
        directory: used once: a second shim in it is refused.
        spec: what to start.
        python: the interpreter to run the shim with, 3.9 or newer.
        processes: how the shim finds the agent's processes, "proc" or "ps"; by itself it takes the better one.
        spare: a launcher in reserve, which saves the time that its interpreter takes to start.

    Raises:
        StartRefused: nothing was started; its subclasses say why.
    """
    place = str(Path(directory).absolute())  # noqa: ASYNC240 - asks the system for nothing but the current directory
    wire = json.dumps(spec.to_wire()).encode()
    waiting = spare.take() if spare else None
    if waiting is not None:
        launch = asyncio.ensure_future(launched(waiting, os.fsencode(place) + b"\n" + wire))
    else:
        options = ["--processes", processes] if processes is not None else []
        launch = asyncio.ensure_future(_launch([*launcher(python), "run", place, *options], wire))
    try:
        answer = await asyncio.shield(launch)
    except asyncio.CancelledError:
        await asyncio.wait({launch}, timeout=_CARRY_THROUGH_S)
        launch.cancel()
        await asyncio.gather(launch, return_exceptions=True)
        raise
    if not answer.get("ok"):
        raise error_of(answer)
    return Status.from_wire(answer["status"])


async def _launch(command: list[str], wire: bytes) -> dict[str, Any]:
    try:
        process = await spawn(command)
    except OSError as error:
        raise StartFailed(f"{command[0]}: {error.strerror}") from error
    return await launched(process, wire)
