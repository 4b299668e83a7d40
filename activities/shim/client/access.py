"""How a worker gets at the shims of one place: on its own machine by their sockets and files.

What must not live here: other machines (`activities.runtimes`), and what is done with a connection or a journal.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from activities.shim.client.dialing import DIAL_TIMEOUT, dial
from activities.shim.client.errors import JournalCorrupt, ShimGone, error_of
from activities.shim.client.journal import begins
from activities.shim.client.launching import ForkServer, start
from activities.shim.client.reports import Spec, Status
from activities.shim.program import control

Directory = str | os.PathLike[str]

_CHUNK = 256 * 1024
_HEADER = 512


class Dialed(NamedTuple):
    """A connection to a shim that has answered `hello`. Closing the writer ends it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hello: dict[str, Any]


class Stored(NamedTuple):
    """A dead shim's journal from a byte on."""

    offset: int
    chunks: AsyncGenerator[bytes]


class ShimAccess(Protocol):
    """The shims of one place. Directories are paths there."""

    async def start(self, directory: Directory, spec: Spec) -> Status:
        """Start a shim and its agent in a directory. Raises StartRefused, MachineUnreachable.

        Of the latter, as of a cancel, nobody knows whether it has started: whoever dials finds out.
        """

    async def dial(self, directory: Directory, epoch: int | None, timeout: timedelta = DIAL_TIMEOUT) -> Dialed:
        """Connect to the shim of a directory and say hello.

        Raises ShimGone, ShimUnresponsive, Fenced, ProtocolMismatch, NotAdmitted, MachineUnreachable.
        """

    async def stored(self, directory: Directory, after: int, offset: int) -> Stored:
        """The journal of a directory in which no shim lives, from the record after `after` on where that begins at byte
        `offset`, else from its first byte. Raises ShimGone where there is none, JournalCorrupt, MachineUnreachable.
        """

    async def ask(self, command: str, *words: Directory) -> dict[str, Any]:
        """One of the program's commands that answer with JSON (`program.control`).

        Raises AlreadyRunning, StartFailed (the system refused), MachineUnreachable.
        """


class LocalAccess:
    """The shims of this machine, without a process for each look. `forks`: see `launching.ForkServer`."""

    def __init__(self, forks: ForkServer | None = None) -> None:
        self._forks = forks

    async def start(self, directory: Directory, spec: Spec) -> Status:
        return await start(directory, spec, forks=self._forks)

    async def dial(self, directory: Directory, epoch: int | None, timeout: timedelta = DIAL_TIMEOUT) -> Dialed:
        return Dialed(*await dial(directory, epoch, timeout))

    async def stored(self, directory: Directory, after: int, offset: int) -> Stored:
        try:
            file = await asyncio.to_thread(_opened, Path(directory, "journal"))
        except FileNotFoundError:
            raise ShimGone(f"neither a shim nor a journal is in {os.fspath(directory)}") from None
        try:
            begin = await asyncio.to_thread(_entered, file, after, offset)
        except BaseException:
            file.close()
            raise
        return Stored(begin, _chunks(file))

    async def ask(self, command: str, *words: Directory) -> dict[str, Any]:
        answer = await asyncio.to_thread(control.answer, command, *(os.fspath(word) for word in words))
        if not answer["ok"]:
            raise error_of(answer)
        return answer


LOCAL = LocalAccess()


async def _chunks(file: FileIO) -> AsyncGenerator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk


def _entered(file: FileIO, after: int, offset: int) -> int:
    """Go where the record after this one begins, if that is there; else to the beginning. Where it has gone."""
    if file.seek(offset) != file.seek(0, os.SEEK_END):
        file.seek(offset)
        if not begins(file.read(_HEADER), after):
            offset = 0
    return file.seek(offset)


def _opened(path: Path) -> FileIO:
    """Raises OSError, and JournalCorrupt where it is no file: a pipe could keep a reader for ever."""
    try:
        file = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalCorrupt(f"the journal cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise JournalCorrupt("the journal is no file")
    return file
