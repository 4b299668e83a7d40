"""Starting a shim on this machine: by a short-lived program that puts it into the background, forked or executed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Self

from activities.shim import program
from activities.shim.client.errors import StartFailed, error_of
from activities.shim.client.reports import Spec, Status
from activities.shim.program.shim import FORK_MESSAGE
from steersman import timeouts

# Imported rather than run, the program comes compiled from its cache: 3 MB less for each shim's life.
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); import shim; sys.exit(shim.main(sys.argv[2:]))"
_LIMIT = (
    "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (min({0}, *r.getrlimit(r.RLIMIT_NOFILE)), "
    "r.getrlimit(r.RLIMIT_NOFILE)[1])); "
)
_RESERVED = "-" * 512
"""In place of the directory, whose name ps shows in this room once it is known."""
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that an interpreter may need of the worker's environment; its secrets are none of a shim's business."""
PROGRAM = Path(program.__path__[0])
"""The directory of what runs where the agent runs."""
_CARRY_THROUGH_S = 10.0
_KILLED_S = 1.0
FORKED_S = 5.0
"""A fork server that has forked nothing for this many seconds is killed: somebody may have stopped it."""


def launcher(python: str, descriptors: int | None = None) -> list[str]:
    """The command line, up to what it is to do. `descriptors`: how many may be open in whatever it starts."""
    first = "" if descriptors is None else _LIMIT.format(descriptors)
    return [python, "-I", "-S", "-c", first + _RUN, str(PROGRAM)]


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _LIBRARIES if name in os.environ}


async def spawn(command: list[str]) -> asyncio.subprocess.Process:
    """Raises OSError."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment())


async def launched(process: asyncio.subprocess.Process, said: bytes) -> dict[str, Any]:
    """The launcher's answer; raises StartFailed where it gave none."""
    try:
        output, errors = await process.communicate(said)
    except asyncio.CancelledError:
        process.kill()
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout(_KILLED_S):  # asyncio lets go of it once its pipes have ended, too
                await process.communicate()
        raise
    return _answer(output, errors, f" (exit code {process.returncode})")


def _answer(output: bytes, errors: bytes, how: str = "") -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise StartFailed(f"the shim's launcher said nothing{how}: {last}") from None
    return answer


class ForkServer:
    """A process that forks a launcher for each start: 40 ms sooner than an interpreter, and with a tenth of its work.

    It ends with this process. One that does not answer, or is gone, is replaced: agents run as the same user, and may
    do that to it. Use as an async context manager in a running loop.

    `descriptors`: how many may be open in what is launched, where that is not what this process has: programs that use
    select() break with many.
    """

    def __init__(self, python: str = sys.executable, descriptors: int | None = None) -> None:
        self._python = python
        self.descriptors = descriptors
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._is_cut = False
        """It has closed its end: it is gone, though that may not be known of the process yet."""
        self._forked = 0
        """How many launchers have said that they are there."""

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beginning:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        if self._control:
            self._control.close()
        if self._process:
            with contextlib.suppress(TimeoutError):
                async with timeouts.timeout(_KILLED_S):
                    await self._process.wait()
            self._kill_server()
            await self._process.wait()

    async def launch(self, place: str, wire: bytes) -> dict[str, Any] | None:
        """The answer of a launcher for that directory and spec; None where it could not be forked, and knows nothing.

        Raises StartFailed where it gave no answer.
        """
        number, server = next(self._numbers), self._process
        ours, theirs = socket.socketpair()
        with theirs:
            is_sent = self._send(b"s", number, theirs)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        try:
            if not is_sent or not await self._is_forked(reader):
                self._replace(server, kill=is_sent or self._is_cut)
                return None
            try:
                writer.write(os.fsencode(place) + b"\n" + wire)
                writer.write_eof()
                output = await reader.read()
            except OSError as error:
                raise StartFailed(f"the shim's launcher said nothing: {error}") from error
        except asyncio.CancelledError:
            self._send(b"k", number)
            raise
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return _answer(output, output)

    async def _is_forked(self, reader: asyncio.StreamReader) -> bool:
        while True:
            forked = self._forked
            try:
                async with timeouts.timeout(FORKED_S):
                    is_there = await reader.readline() == b"\n"
            except TimeoutError:
                if self._forked == forked:
                    return False
                continue  # it is at others, as fast as it can
            except OSError:
                return False
            self._forked += is_there
            return is_there

    def _send(self, kind: bytes, number: int, *sockets: socket.socket) -> bool:
        if self._control is None:
            return False
        message = FORK_MESSAGE.pack(kind, number)
        try:
            return socket.send_fds(self._control, [message], [each.fileno() for each in sockets]) == len(message)
        except OSError as error:
            self._is_cut = self._is_cut or not isinstance(error, BlockingIOError)  # else it only has much to do
            return False

    def _replace(self, server: asyncio.subprocess.Process | None, *, kill: bool) -> None:
        """Have another one in this one's place soon, if it has ended, or is to be killed."""
        if server is not self._process:
            return
        if kill:
            self._kill_server()
        is_gone = kill or server is None or server.returncode is not None
        if is_gone and (self._beginning is None or self._beginning.done()):
            self._beginning = asyncio.create_task(self._begin())

    def _kill_server(self) -> None:
        if self._process and self._process.returncode is None:
            self._process.kill()

    async def _begin(self) -> None:
        if self._control:
            self._control.close()
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        self._is_cut = False
        null = asyncio.subprocess.DEVNULL
        command = [*launcher(self._python, self.descriptors), "serve", _RESERVED]
        with theirs, contextlib.suppress(OSError):  # without one, starts are only slower
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=theirs.fileno(), stdout=null, stderr=null, env=_environment()
            )


async def start(
    directory: str | os.PathLike[str],
    spec: Spec,
    *,
    python: str = sys.executable,
    processes: str | None = None,
    forks: ForkServer | None = None,
) -> Status:
    """Start a shim and its agent in this directory (made with mode 0700). Neither is a child of this process.

    A start that is cancelled is carried through before the CancelledError goes on: the shim is there, or it is not.

    Args:
        directory: used once: a second shim in it is refused.
        spec: what to start.
        python: the interpreter to run the shim with, 3.9 or newer.
        processes: how the shim finds the agent's processes, "proc" or "ps"; by itself it takes the better one.
        forks: what makes the launcher, so that no interpreter has to be started for it.

    Raises:
        StartRefused: nothing was started; its subclasses say why.
        OSError: nothing was started, as this process has no descriptors left.
    """
    place = str(Path(directory).absolute())  # noqa: ASYNC240 - asks the system for nothing but the current directory
    wire = json.dumps(spec.to_wire()).encode()
    options = ["--processes", processes] if processes is not None else []
    command = [*launcher(python, forks.descriptors if forks else None), "run", place, *options]
    launch = asyncio.ensure_future(_launch(command, place, wire, None if options else forks))
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


async def _launch(command: list[str], place: str, wire: bytes, forks: ForkServer | None) -> dict[str, Any]:
    answer = await forks.launch(place, wire) if forks else None
    if answer is not None:
        return answer
    try:
        process = await spawn(command)
    except OSError as error:
        raise StartFailed(f"{command[0]}: {error.strerror}") from error
    return await launched(process, wire)
