"""An agent's sessions are carried to the place of a run and back, by the program that keeps them there
(session_program). Which sessions a run has must not live here.
"""

import asyncio
import json
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from activities.ports.machine import Machine, Stream
from activities.ports.sessions import SessionFiles
from activities.untrusted_json import parse_object
from activities.workspaces.carry import session_program, shipped_program
from activities.workspaces.carry.session_program import CHUNK, MAX_BYTES, MAX_FILES, Differs, Failed, Session
from activities.workspaces.printable_text import printable
from steersman import timeouts

if TYPE_CHECKING:
    from activities.workspaces.carry.session_program import Source

_PROGRAM = Path(__file__).with_name("session_program.py")
STALLED_S = 120
"""A machine on which nothing moves for this many seconds is given up."""
MAX_FIRST_LINE = 4 * 1024 * 1024
"""A first line that says whose the conversation is has at most this many bytes."""


MAX_LINES = 128 * 1024 * 1024
"""A conversation of which every line may say that has at most this many bytes."""


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

    async def is_ours(self, ours: Path) -> bool:
        """Whether `home` is this directory of ours. Raises OSError, too."""
        probe = ours / f"steersman-probe-{secrets.token_hex(16)}"
        try:
            await asyncio.to_thread(_touch, probe)
            async with self._command("look", [], probe=probe.name) as stream:
                stream.stdin.close()
                return (await _answer(stream)).get("shared") is True
        finally:
            await asyncio.to_thread(probe.unlink, missing_ok=True)

    async def receive(self, sessions: Sequence[tuple[Session, "HeldFiles"]]) -> None:
        """Bring sessions of ours there. What is there already stays where it has all of it."""
        async with self._command("receive", [theirs for _, theirs in sessions]) as stream:
            try:
                await _feed(stream, sessions)
            except (Failed, OSError) as error:
                raise SessionsFailed(printable(str(error))) from error
            await _answer(stream)

    @asynccontextmanager
    async def sent(self, sessions: Sequence[SessionFiles], scratch: Path) -> AsyncIterator[list["SentSession"]]:
        """Those of the sessions that are there, in their order, in files of ours as long as the block lasts."""
        directory = await asyncio.to_thread(tempfile.TemporaryDirectory, dir=scratch)
        try:
            found: list[list[_File]] = [[] for _ in sessions]
            async with self._command("send", [HeldFiles(each) for each in sessions]) as stream:
                stream.stdin.close()
                names = await _take(stream, sessions, found, Path(directory.name))
            yield [SentSession(number, files, names.get(number)) for number, files in enumerate(found) if files]
        finally:
            await asyncio.to_thread(directory.cleanup)

    async def remove(self, sessions: Sequence["HeldFiles"]) -> None:
        """Remove sessions there; of those with a mark only what no other run has, and was not there before."""
        async with self._command("remove", sessions) as stream:
            await _answer(stream)

    @asynccontextmanager
    async def _command(self, command: str, sessions: Sequence["HeldFiles"], **more: str) -> AsyncIterator[Stream]:
        stream = await shipped_program.start(self.machine, self.python, _PROGRAM, command, self.home)
        try:
            asked = [each.to_json() for each in sessions]
            with suppress(BrokenPipeError, ConnectionResetError):
                stream.stdin.write(json.dumps({"sessions": asked, **more}).encode() + b"\n")
                await stream.stdin.drain()
            yield stream
        finally:
            stream.kill()


@dataclass(frozen=True)
class HeldFiles:
    """A session as a run has it at a place. `run`: its mark there, where other runs may have the same files; `begun`:
    they began with the run, unless the session `parent`, by whose sub-agent they are, was there before.
    """

    files: SessionFiles
    run: str | None = None
    begun: bool = False
    parent: SessionFiles | None = None

    def to_json(self) -> dict[str, object]:
        """As the program is asked for it."""
        names: dict[str, object] = {"conversation": self.files.conversation, "folder": self.files.folder}
        if self.files.chosen is not None:
            names["chosen"] = asdict(self.files.chosen)
        for name, value in (("begins", self.files.begins), ("has", self.files.has)):
            names |= {name: value} if value else {}
        if self.run is None:
            return names
        parent = {"parent": self.parent.conversation} if self.parent else {}
        return {**names, "run": self.run, "begun": self.begun, **parent}


_File = tuple[str, Path, int]
"""A file of a session: its path, "" for the conversation, its content, its size."""


@dataclass(frozen=True)
class _Head:
    """The first line of a conversation: as it is to be, and how many bytes of the file it takes the place of."""

    line: bytes
    replaced: int


@dataclass(frozen=True)
class SentSession:
    """A session as it came: the number that it was asked for by, its files, and the name of its conversation where
    that was looked for.
    """

    number: int
    files: list[_File]
    at: str | None = None
    _head: _Head | None = None
    _renamed: Callable[[bytes, bool], bytes] | None = None

    def first_line(self) -> bytes | None:
        """That of the conversation; None where the agent had not yet written all of it. Raises Failed, OSError."""
        with self.conversation().open("rb") as file:
            line = file.readline(MAX_FIRST_LINE)
        if len(line) == MAX_FIRST_LINE:
            raise Failed("the first line of a session is too long")
        return line if line.endswith(b"\n") else None

    def conversation(self) -> Path:
        """The file that has it."""
        return next(content for path, content, _ in self.files if not path)

    def headed(self, line: bytes, replaced: bytes, at: str | None) -> "SentSession":
        """The same session with this first line, in place of the one that it came with, and this name."""
        more = len(line) - len(replaced)
        files = [(path, content, size if path else size + more) for path, content, size in self.files]
        return replace(self, files=files, at=at, _head=_Head(line, len(replaced)))

    def renamed(self, line: Callable[[bytes, bool], bytes], at: str | None) -> "SentSession":
        """The same session with each line of its conversation as it is after this, which is told which is the first,
        and this name. A line that does not end is left out: the agent was writing it, or did not come to its end.

        Raises Failed, OSError, and what `line` does.
        """
        (conversation,) = (each for each in self.files if not each[0])
        if conversation[2] > MAX_LINES:
            raise Failed(f"a session of which each line is looked at has more than {MAX_LINES >> 20} MiB")
        with conversation[1].open("rb") as file:
            size = sum(len(each) for each in _lines(file, line))
        files = [(path, content, had if path else size) for path, content, had in self.files]
        return replace(self, files=files, at=at, _renamed=line)

    def fits(self, here: Session) -> bool:
        """Whether what is here is the beginning of this session, or has all of it. Raises Failed, OSError."""
        try:
            for each in self.files:
                with self._opened(each) as source:
                    here.lacks(each[0], source, each[2])
        except Differs:
            return False
        return True

    def write(self, here: Session) -> None:
        """Have the session here be this one, where it fits: the conversation last. Raises Failed, OSError."""
        conversation = [each for each in self.files if not each[0]]
        for each in conversation:
            with self._opened(each) as source:
                if not here.lacks(each[0], source, each[2]):
                    return  # somebody has gone on with it from there
        for each in (*(each for each in self.files if each[0]), *conversation):
            with self._opened(each) as source:
                here.grow(each[0], source, each[2])

    def write_whole_lines(self, here: Session) -> None:
        """Write the session where none is, without a line of the conversation that the agent was just writing.

        Raises Failed, OSError.
        """
        for path, content, size in self.files:
            with content.open("rb") as file:
                here.grow(path, file, size if path else _end_of_lines(file, size))

    @contextmanager
    def _opened(self, file: _File) -> Iterator["Source"]:
        path, content, _ = file
        with content.open("rb") as opened:
            if not path and self._renamed is not None:
                yield _Renamed(_lines(opened, self._renamed))
                return
            if path or self._head is None:
                yield opened
                return
            opened.seek(self._head.replaced)
            yield _Headed(self._head.line, opened)


class _Headed:
    """A line, and then what is left of a file."""

    def __init__(self, line: bytes, file: BinaryIO) -> None:
        self._line, self._file = line, file

    def read(self, size: int, /) -> bytes:
        if not self._line:
            return self._file.read(size)
        chunk, self._line = self._line[:size], self._line[size:]
        return chunk


class _Renamed:
    """Lines, as they come."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines, self._line = lines, memoryview(b"")

    def read(self, size: int, /) -> bytes:
        if not self._line:
            self._line = memoryview(next(self._lines, b""))
        chunk, self._line = self._line[:size], self._line[size:]
        return bytes(chunk)


def _lines(file: BinaryIO, renamed: Callable[[bytes, bool], bytes]) -> Iterator[bytes]:
    """The whole lines of a conversation, renamed."""
    is_first = True
    while (line := file.readline()).endswith(b"\n"):
        yield renamed(line, is_first)
        is_first = False


def session_at(home: str, files: SessionFiles, at: str | None = None) -> Session:
    """A session below this home of an agent; `at`: see Session."""
    chosen = None if files.chosen is None else asdict(files.chosen)
    return Session(home, files.conversation, files.folder, at, chosen=chosen, begins=files.begins, has=files.has)


def stored(home: Path, files: SessionFiles) -> SentSession | None:
    """A session that was written below a directory of ours; None where none was. Blocks. Raises Failed, OSError."""
    session = session_at(str(home), files)
    found = []
    for path in session.paths():
        content = Path(session.location(path))
        found.append((path, content, content.stat().st_size))
    return SentSession(0, found, session.name()) if found else None


def _touch(path: Path) -> None:
    with suppress(FileNotFoundError):  # without the directory there is nothing to share
        path.touch(mode=0o600, exist_ok=False)


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


async def _take(
    stream: Stream, sessions: Sequence[SessionFiles], found: list[list[_File]], directory: Path
) -> dict[int, str]:
    """What the program sends, which may be hostile, in files of ours; the names that were looked for."""
    files = total = 0
    names: dict[int, str] = {}
    conversations = [each.conversation for each in sessions]
    try:
        while heading := session_program.heading(await _line(stream), conversations):
            number, path, size, name = heading
            files, total = files + 1, total + size
            if files > MAX_FILES or total > MAX_BYTES:
                raise Failed(f"there are more than {MAX_FILES:,} files or {MAX_BYTES >> 30} GiB of sessions")
            if any(path == each[0] for each in found[number]):
                raise Failed("a session has a file twice")
            content = directory / str(files)
            with os.fdopen(os.open(content, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                await _write(stream, file, size)
            found[number].append((path, content, size))
            if name is not None:
                names[number] = name
    except Failed as error:
        raise SessionsFailed(printable(str(error))) from error
    if any(each and each[-1][0] for each in found):
        raise SessionsFailed("a session came without its conversation")
    return names


async def _write(stream: Stream, file: BinaryIO, size: int) -> None:
    while size:
        async with _moving():
            chunk = await stream.stdout.read(min(size, CHUNK))
        if not chunk:
            raise Failed("a session was cut off on its way")
        await asyncio.to_thread(file.write, chunk)
        size -= len(chunk)


async def _feed(stream: Stream, sessions: Sequence[tuple[Session, HeldFiles]]) -> None:
    names = {number: theirs.files.brought for number, (_, theirs) in enumerate(sessions) if theirs.files.brought}
    frames = session_program.send([ours for ours, _ in sessions], names)
    with suppress(BrokenPipeError, ConnectionResetError):
        while chunk := await asyncio.to_thread(next, frames, None):
            stream.stdin.write(chunk)
            async with _moving():
                await stream.stdin.drain()
    stream.stdin.close()


async def _answer(stream: Stream) -> dict[str, object]:
    answer = await _line(stream)
    if not answer.get("ok"):
        raise SessionsFailed(printable(str(answer.get("error") or "the session was refused"))[:1000])
    return answer


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
        async with timeouts.timeout(STALLED_S):
            yield
    except TimeoutError as error:
        raise SessionsFailed(f"nothing came of the sessions for {STALLED_S} s") from error
