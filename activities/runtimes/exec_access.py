"""The shims of a machine on which programs can be run, and nothing else: by the commands of the shim's own program.

The program is copied there once, into a directory that is named by what it holds. What must not live here: when an
agent is started, stopped or adopted, and how bytes get to the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import secrets
import tarfile
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from activities.runtimes.machine import Machine, Stream
from activities.shim import client as shim
from activities.shim.client.access import Dialed, Directory, Stored
from activities.shim.client.dialing import DIAL_TIMEOUT, say_hello
from activities.shim.client.errors import error_of
from activities.shim.client.launching import COMMAND, PROGRAM
from activities.shim.program.control import GONE, UNRESPONSIVE

_ANSWER_S: Final = 60.0
"""What a command may take: it may kill for 5 s, and the machine may be far away."""
_CHUNK: Final = 256 * 1024
_LINE: Final = 64 * 1024

INSTALL: Final = """
import io, os, sys, tarfile, tempfile
os.umask(0o077)
root = os.path.join(os.path.expanduser("~"), ".cache", "steersman")
place = os.path.join(root, sys.argv[1])
if not os.path.isdir(place):
    data = sys.stdin.buffer.read()
    if not data:
        sys.exit(5)
    os.makedirs(root, 0o700, exist_ok=True)
    new = tempfile.mkdtemp(dir=root)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = os.path.join(new, member.name)
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(path, "wb") as file:
                file.write(archive.extractfile(member).read())
                file.flush()
                os.fsync(file.fileno())
    try:
        os.rename(new, place)
    except OSError:
        if not os.path.isdir(place):
            raise
print(place)
"""
"""Runs there, on Python 3.9: unpacks the program from stdin, unless it is there. With nothing on stdin exit code 5."""
_MISSING: Final = 5


class ExecAccess:
    """ShimAccess to another machine. `python`: the interpreter there, 3.9 or newer."""

    def __init__(self, machine: Machine, python: str = "python3") -> None:
        self._machine, self._python = machine, python
        self._controller = secrets.token_hex(16)
        self._root: str | None = None
        self._installing = asyncio.Lock()

    async def start(self, directory: Directory, spec: shim.Spec) -> shim.Status:
        """See ShimAccess."""
        answer = await self._answer("run", os.fspath(directory), said=json.dumps(spec.to_wire()).encode())
        return shim.Status.from_wire(answer["status"])

    async def dial(self, directory: Directory, epoch: int | None, timeout: timedelta = DIAL_TIMEOUT) -> Dialed:
        """See ShimAccess."""
        place = os.fspath(directory)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while True:
                    if dialed := await self._dial(place, epoch):
                        return dialed
        except TimeoutError:
            raise shim.ShimUnresponsive(f"the shim in {place} does not answer") from None

    async def _dial(self, place: str, epoch: int | None) -> Dialed | None:
        """None where the shim went away before it had answered: the next look tells."""
        stream = await self._run("dial", place)
        try:
            hello = await say_hello(stream.stdout, stream.stdin, epoch, self._controller)
            return Dialed(stream.stdout, stream.stdin, hello)
        except OSError:
            code = await self._ended(stream)
        except BaseException:
            stream.kill()
            raise
        if code == GONE:
            raise shim.ShimGone(f"no shim lives in {place}")
        if code == UNRESPONSIVE:
            raise shim.ShimUnresponsive(f"what listens in {place} is no shim, or does not answer")
        if code:
            raise shim.MachineUnreachable(stream.said() or f"the way to {place} ended with exit code {code}")
        return None

    async def stored(self, directory: Directory, after: int, offset: int) -> Stored:
        """See ShimAccess."""
        stream = await self._run("journal", os.fspath(directory), str(after), str(offset))
        try:
            head = await self._head(stream)
        except BaseException:
            stream.kill()
            raise
        return Stored(int(head["offset"]), self._chunks(stream))

    async def ask(self, command: str, *words: Directory) -> dict[str, Any]:
        """See ShimAccess."""
        return await self._answer(command, *(os.fspath(word) for word in words))

    async def _chunks(self, stream: Stream) -> AsyncGenerator[bytes]:
        try:
            while chunk := await stream.stdout.read(_CHUNK):
                yield chunk
            if await self._ended(stream):
                raise shim.MachineUnreachable(stream.said() or "a journal was cut off on its way")
        finally:
            stream.kill()

    async def _answer(self, command: str, *words: str, said: bytes = b"") -> dict[str, Any]:
        stream = await self._run(command, *words, said=said)
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._head(stream)
        except TimeoutError:
            raise shim.MachineUnreachable(f"{command} had no answer within {_ANSWER_S:.0f} s") from None
        finally:
            stream.kill()

    async def _head(self, stream: Stream) -> dict[str, Any]:
        try:
            line = await stream.stdout.readline()
            answer = json.loads(line) if line.endswith(b"\n") and len(line) <= _LINE else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            code = await self._ended(stream)
            raise shim.MachineUnreachable(
                stream.said() or f"no answer that the shim's program gives (exit code {code})"
            )
        if not answer.get("ok"):
            raise error_of(answer)
        return answer

    async def _run(self, *words: str, said: bytes | None = None) -> Stream:
        root = self._root or await self._install()
        return await self._machine.exec(self._python, "-I", "-S", "-c", COMMAND, root, *words, stdin=said)

    async def _install(self) -> str:
        async with self._installing:
            if self._root is None:
                name, data = archive()
                stream = await self._machine.exec(self._python, "-I", "-S", "-c", INSTALL, name, stdin=b"")
                code = await self._ended(stream)
                if code == _MISSING:
                    stream = await self._machine.exec(self._python, "-I", "-S", "-c", INSTALL, name, stdin=data)
                    code = await self._ended(stream)
                if code:
                    raise shim.MachineUnreachable(stream.said() or f"{self._python} ended with {code}")
                self._root = (await stream.stdout.readline()).decode("utf-8", "surrogateescape").rstrip("\n")
            return self._root

    async def _ended(self, stream: Stream) -> int:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await stream.wait()
        except TimeoutError:
            stream.kill()
            raise shim.MachineUnreachable("a program there does not end") from None


def archive() -> tuple[str, bytes]:
    """The shim's program as a tar, the same bytes each time, and a name that says what it holds."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(Path(PROGRAM).glob("*.py")):
            info = tarfile.TarInfo(f"program/{path.name}")
            data = path.read_bytes()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = out.getvalue()
    return f"shim-{hashlib.sha256(data).hexdigest()[:20]}", data
