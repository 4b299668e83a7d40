"""An agent's sessions are carried to the place of a run and back, by the program that keeps them there
(session_program). Which sessions a run has must not live here.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from activities.ports.machine import Machine, Stream
from activities.ports.sessions import SessionFiles
from activities.untrusted_json import parse_object
from activities.workspaces.carry import session_program, shipped_program
from activities.workspaces.carry.session_program import CHUNK, MAX_BYTES, MAX_FILES, Differs, Failed, Session
from activities.workspaces.printable_text import printable

_PROGRAM = Path(__file__).with_name("session_program.py")
STALLED_S = 120
"""A machine on which nothing moves for this many seconds is given up."""


class SessionsFailed(Exception):
    """Sessions cannot be carried. The message is a sentence."""


@dataclass(frozen=True)
class SessionPlace:
    """The sessions in an agent's own directory, `home`, of a machine. `python`: the interpreter there.

    Each method raises SessionsFailed, and MachineUnreachable where the machine cannot be asked.
    """

    machine: Machine
    home: str
    python: str

    async def receive(self, here: Session, files: SessionFiles) -> None:
        """Bring a session there. What is there already stays where it has all of it."""
        async with self._command("receive", [files]) as stream:
            try:
                await _feed(stream, here)
            except (Failed, OSError) as error:
                raise SessionsFailed(printable(str(error))) from error
            await _answer(stream)

    @asynccontextmanager
    async def sent(self, sessions: Sequence[SessionFiles], scratch: Path) -> AsyncIterator[list["SentSession"]]:
        """Those of the sessions that are there, in their order, in files of ours as long as the block lasts."""
        directory = await asyncio.to_thread(tempfile.TemporaryDirectory, dir=scratch)
        try:
            found = [SentSession(number, []) for number in range(len(sessions))]
            async with self._command("send", sessions) as stream:
                stream.stdin.close()
                await _take(stream, found, Path(directory.name))
            yield [each for each in found if each.files]
        finally:
            await asyncio.to_thread(directory.cleanup)

    async def remove(self, sessions: Sequence[SessionFiles]) -> None:
        """Remove sessions there."""
        async with self._command("remove", sessions) as stream:
            await _answer(stream)

    @asynccontextmanager
    async def _command(self, command: str, sessions: Sequence[SessionFiles]) -> AsyncIterator[Stream]:
        stream = await shipped_program.start(self.machine, self.python, _PROGRAM, command, self.home)
        try:
            asked = {"sessions": [{"conversation": each.conversation, "folder": each.folder} for each in sessions]}
            with suppress(BrokenPipeError, ConnectionResetError):
                stream.stdin.write(json.dumps(asked).encode() + b"\n")
                await stream.stdin.drain()
            yield stream
        finally:
            stream.kill()


@dataclass(frozen=True)
class SentSession:
    """A session as it came: the number that it was asked for by, and its files: path, content and size."""

    number: int
    files: list[tuple[str, Path, int]]

    def fits(self, here: Session) -> bool:
        """Whether what is here is the beginning of this session, or has all of it. Raises Failed, OSError."""
        try:
            for path, content, size in self.files:
                with content.open("rb") as file:
                    here.lacks(path, file, size)
        except Differs:
            return False
        return True

    def write(self, here: Session) -> None:
        """Have the session here be this one, where it fits: the conversation last. Raises Failed, OSError."""
        conversation = [each for each in self.files if not each[0]]
        for path, content, size in conversation:
            with content.open("rb") as file:
                if not here.lacks(path, file, size):
                    return  # somebody has gone on with it from there
        for path, content, size in (*(each for each in self.files if each[0]), *conversation):
            with content.open("rb") as file:
                here.grow(path, file, size)

    def write_whole_lines(self, here: Session) -> None:
        """Write the session where none is, without a line of the conversation that the agent was just writing.

        Raises Failed, OSError.
        """
        for path, content, size in self.files:
            with content.open("rb") as file:
                here.grow(path, file, size if path else _end_of_lines(file, size))


def stored(home: Path, files: SessionFiles) -> SentSession | None:
    """A session that was written below a directory of ours; None where none was. Blocks. Raises Failed, OSError."""
    within = home / files.folder if files.folder else home
    found = []
    for path in Session(str(home), files.conversation, files.folder).paths():
        content = within / path if path else home / files.conversation
        found.append((path, content, content.stat().st_size))
    return SentSession(0, found) if found else None


def _end_of_lines(file: BinaryIO, size: int) -> int:
    """The bytes of all whole lines; the file is at its beginning afterwards."""
    end = size
    while end:
        begin = max(end - CHUNK, 0)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    file.seek(0)
    return end


async def _take(stream: Stream, found: list[SentSession], directory: Path) -> None:
    """What the program sends, which may be hostile, in files of ours."""
    files = total = 0
    try:
        while heading := session_program.heading(await _line(stream), len(found)):
            number, path, size = heading
            files, total = files + 1, total + size
            if files > MAX_FILES or total > MAX_BYTES:
                raise Failed(f"there are more than {MAX_FILES:,} files or {MAX_BYTES >> 30} GiB of sessions")
            if any(path == each[0] for each in found[number].files):
                raise Failed("a session has a file twice")
            content = directory / str(files)
            with os.fdopen(os.open(content, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                await _write(stream, file, size)
            found[number].files.append((path, content, size))
    except Failed as error:
        raise SessionsFailed(printable(str(error))) from error
    for each in found:
        if each.files and each.files[-1][0]:
            raise SessionsFailed("a session came without its conversation")


async def _write(stream: Stream, file: BinaryIO, size: int) -> None:
    while size:
        async with _moving():
            chunk = await stream.stdout.read(min(size, CHUNK))
        if not chunk:
            raise Failed("a session was cut off on its way")
        await asyncio.to_thread(file.write, chunk)
        size -= len(chunk)


async def _feed(stream: Stream, here: Session) -> None:
    frames = session_program.send([here])
    with suppress(BrokenPipeError, ConnectionResetError):
        while chunk := await asyncio.to_thread(next, frames, None):
            stream.stdin.write(chunk)
            async with _moving():
                await stream.stdin.drain()
    stream.stdin.close()


async def _answer(stream: Stream) -> None:
    answer = await _line(stream)
    if not answer.get("ok"):
        raise SessionsFailed(printable(str(answer.get("error") or "the session was refused"))[:1000])


async def _line(stream: Stream) -> dict[str, object]:
    async with _moving():
        try:
            return parse_object(await stream.stdout.readline())
        except ValueError:
            code = await stream.wait()
    said = printable(stream.said())[-500:]
    raise SessionsFailed(said or f"the program that keeps sessions ended with exit code {code}")


@asynccontextmanager
async def _moving() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(STALLED_S):
            yield
    except TimeoutError as error:
        raise SessionsFailed(f"nothing came of the sessions for {STALLED_S} s") from error
