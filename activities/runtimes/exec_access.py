"""The shims of a machine on which programs can be run, and nothing else: by the commands of the shim's own program.

What must not live here: when an agent is started, stopped or adopted, how bytes get to the machine, and how the program
is brought there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from activities.ports.machine import Machine, Stream
from activities.runtimes.installation import COMMAND, INSTALL, LOOK, MISSING, TOO_OLD, archive, archive_of
from activities.shim import client as shim
from activities.shim.client.access import Dialed, Directory, Stored
from activities.shim.client.dialing import DIAL_TIMEOUT, say_hello
from activities.shim.client.errors import error_of
from activities.shim.program.control import GONE, UNRESPONSIVE
from steersman import timeouts

T = TypeVar("T")

_ANSWER_S: Final = 20.0
"""What a command may take that looks or stops: it may kill for 11 s."""
_START_S: Final = 60.0
"""What a start may take, where the disk is slow."""
_WAY_S: Final = 20.0
"""What the way to a shim and back may take, beside the time that the shim has for its answer."""
_CHUNK: Final = 256 * 1024
_LINE: Final = 64 * 1024
_PAUSE_S: Final = 0.05
_NO_PYTHON: Final = (2, 126, 127)
"""Exit codes of a program that does not take Python's options, and of a POSIX shell that cannot run one."""


class ExecAccess:
    """ShimAccess to another machine. `python`: the interpreter there, 3.9 or newer. `name`: the machine, as people know
    it.
    """

    def __init__(self, machine: Machine, python: str = "python3", name: str = "there") -> None:
        self._machine, self._python, self._name = machine, python, name
        self._controller = secrets.token_hex(16)
        self._installing = asyncio.Lock()

    async def start(self, directory: Directory, spec: shim.Spec) -> shim.Status:
        """See ShimAccess."""
        said = json.dumps(spec.to_wire()).encode()
        answer = await self._answer(_START_S, said, "run", directory)
        try:
            return shim.Status.from_wire(answer["status"])
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            raise shim.MachineUnreachable("run: no answer that the shim's program gives") from None

    async def dial(self, directory: Directory, epoch: int | None, timeout: timedelta = DIAL_TIMEOUT) -> Dialed:
        """See ShimAccess. `timeout` is the shim's, from when it was asked: a slow way says nothing of it."""
        place, patience_s = os.fspath(directory), timeout.total_seconds()
        until = time.monotonic() + patience_s
        while (dialed := await self._installed(lambda: self._dial(place, epoch, patience_s))) is None:
            if time.monotonic() > until:
                raise shim.ShimUnresponsive(f"the shim in {place} goes away each time before it answers")
            await asyncio.sleep(_PAUSE_S)
        return dialed

    async def _dial(self, place: str, epoch: int | None, patience_s: float) -> Dialed | None:
        """None where the shim went away before it had answered: the next look tells."""
        stream = await self._run("dial", place, str(patience_s))
        with _let_go_on_error(stream):
            try:
                async with timeouts.timeout(patience_s + _WAY_S):
                    hello = await say_hello(stream.stdout, stream.stdin, epoch, self._controller)
                return Dialed(stream.stdout, stream.stdin, hello)
            except TimeoutError:
                raise shim.MachineUnreachable(f"no answer came on the way to {place}") from None
            except OSError:
                pass  # it ended before an answer
            code = await self._ended(stream)
            if code == GONE:
                raise shim.ShimGone(f"no shim lives in {place}")
            if code == UNRESPONSIVE:
                raise shim.ShimUnresponsive(f"what listens in {place} is no shim, or does not answer")
            if code:
                raise self._failure(code, stream)
        return None

    async def stored(self, directory: Directory, after: int, offset: int) -> Stored:
        """See ShimAccess."""

        async def begin() -> Stored:
            stream = await self._run("journal", os.fspath(directory), str(after), str(offset))
            with _let_go_on_error(stream):
                head = await self._head(stream, _ANSWER_S)
                return Stored(int(head["offset"]), self._chunks(stream))

        return await self._installed(begin)

    async def ask(self, command: str, *words: Directory) -> dict[str, Any]:
        """See ShimAccess."""
        try:
            return await self._answer(_ANSWER_S, b"", command, *words)
        except (shim.MachineUnreachable, shim.AlreadyRunning, shim.StartFailed):
            raise
        except shim.ShimError as error:
            raise shim.MachineUnreachable(f"{command}: no answer that the shim's program gives: {error}") from error

    async def _chunks(self, stream: Stream) -> AsyncGenerator[bytes]:
        try:
            while True:
                async with timeouts.timeout(_ANSWER_S):
                    chunk = await stream.stdout.read(_CHUNK)
                if not chunk:
                    break
                yield chunk
            if await self._ended(stream):
                raise shim.MachineUnreachable(_last_line(stream) or "a journal was cut off on its way")
        except TimeoutError:
            raise shim.MachineUnreachable("a journal came to a standstill on its way") from None
        finally:
            stream.kill()

    async def _answer(self, patience_s: float, said: bytes, *words: Directory) -> dict[str, Any]:
        async def answered() -> dict[str, Any]:
            stream = await self._run(*(os.fspath(word) for word in words), said=said)
            try:
                return await self._head(stream, patience_s)
            finally:
                stream.kill()

        return await self._installed(answered)

    async def _head(self, stream: Stream, patience_s: float) -> dict[str, Any]:
        try:
            async with timeouts.timeout(patience_s):
                line = await stream.stdout.readline()
            answer = json.loads(line) if line.endswith(b"\n") and len(line) <= _LINE else None
        except TimeoutError:
            raise shim.MachineUnreachable(f"no answer came within {patience_s:.0f} s") from None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._failure(await self._ended(stream), stream)
        if not answer.get("ok"):
            raise error_of(answer)
        return answer

    async def _run(self, *words: str, said: bytes | None = None) -> Stream:
        return await self._machine.exec(self._python, "-I", "-S", "-c", COMMAND, archive()[0], *words, stdin=said)

    async def _installed(self, use: Callable[[], Awaitable[T]]) -> T:
        """What `use` comes to; once more after the program was brought there, where it is missing."""
        try:
            return await use()
        except _Missing:
            async with self._installing:
                await self._install(*archive())
        return await use()

    async def bring(self, program: Path) -> str:
        """Where a program of ours of one file is there; it is brought there where it is missing. Raises
        MachineUnreachable.
        """
        name, data = archive_of(program)
        stream = await self._machine.exec(self._python, "-I", "-S", "-c", LOOK, name, program.name, stdin=b"")
        try:
            answer = await self._head(stream, _ANSWER_S)
        finally:
            stream.kill()
        if answer.get("there") is not True:
            async with self._installing:
                await self._install(name, data)
        return str(answer.get("path"))

    async def _install(self, name: str, data: bytes) -> None:
        stream = await self._machine.exec(self._python, "-I", "-S", "-c", INSTALL, name, stdin=data)
        try:
            await self._head(stream, _START_S)
        except shim.StartFailed as error:
            text = f"{self._name}: our program cannot be put into ~/.cache/steersman: {error}"
            raise shim.MachineUnusable(text) from error
        finally:
            stream.kill()

    async def _ended(self, stream: Stream) -> int:
        try:
            async with timeouts.timeout(_ANSWER_S):
                return await stream.wait()
        except TimeoutError:
            stream.kill()
            raise shim.MachineUnreachable("a program there does not end") from None

    def _failure(self, code: int, stream: Stream) -> shim.MachineUnreachable:
        """The error for a program that has ended without an answer."""
        said = _last_line(stream)
        if code == TOO_OLD:
            return shim.MachineUnusable(f"{self._python} there is {said}: a shim takes Python 3.9 or newer")
        if code == MISSING:
            return _Missing(f"the shim's program cannot be loaded there: {said}")
        if code in _NO_PYTHON:
            return shim.MachineUnusable(f"{self._python} there is no Python, and a shim takes 3.9 or newer: {said}")
        return shim.MachineUnreachable(said or f"no answer that the shim's program gives (exit code {code})")


class _Missing(shim.MachineUnreachable):
    """The shim's program is not there."""


@contextlib.contextmanager
def _let_go_on_error(stream: Stream) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stream.kill()
        raise


def _last_line(stream: Stream) -> str:
    return stream.said().rpartition("\n")[2]
