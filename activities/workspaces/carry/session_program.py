"""An agent's sessions in the agent's own directory: read, written and removed.

Runs at the place of an agent, on Python 3.9 alone, from one file: `look`, `receive`, `send` and `remove`. The leader
imports it for its own side. What is in a session is not looked at: it is bytes.

A session is one file, its conversation, and a folder of further files, which need not be there. Both are named
relative to HOME, the agent's own directory; no link below HOME is followed. In the name of a conversation `#` stands
for any digit: it is looked for, and is one file or none. A file that is there is never replaced: it
is continued where what came begins with it, and left where it has all of that. So twice is once, and a program that is
killed leaves the beginning of what comes whole the next time.

On the way a session is a line of JSON and the bytes for each of its files, the conversation last:

    {"session": NUMBER, "path": PATH IN THE FOLDER, "" FOR THE CONVERSATION, "size": BYTES, "at": NAME}

and {"end": true} after the last of them. `at`, with a conversation alone: where it is.

Of an agent that keeps sessions by their ids alone several runs may have one here at a time, also one that was here
before. So each run has a mark beside the conversation, made before that is, which says whether that was brought:

    CONVERSATION.RUN.made | CONVERSATION.RUN.found

Who takes the last mark away removes the conversation, unless it was found here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any, BinaryIO, Protocol

    class Source(Protocol):
        """Bytes, read once."""

        def read(self, size: int, /) -> bytes:
            """At most so many; none at the end."""


MAX_FILES = 10_000
"""Sessions that go together may have this many files."""
MAX_BYTES = 2 * 1024**3
"""And this many bytes."""
MAX_SESSIONS = 100
MAX_DEPTH = 8
MAX_LINE = 64 * 1024
MAX_NAMES = 1_000_000
"""A conversation is looked for among this many names."""
CHUNK = 1024 * 1024
LOCK_S = 5.0
"""Another worker may take this many seconds over a file."""
DIGIT = "#"
MADE, FOUND = "made", "found"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Failed(Exception):
    """The message is a sentence."""


class Differs(Failed):
    """A file that is there is neither the beginning of what came, nor does it begin with it."""


class Session:
    """One session. `conversation` and `folder`: paths relative to `home`. `at`: the name that the conversation gets
    where none is there; needed only for one whose name has `#`. Each method raises Failed, OSError.
    """

    def __init__(self, home: str, conversation: str, folder: str | None, at: str | None = None) -> None:
        self._home = home
        self._pattern = conversation
        self._conversation = None if DIGIT in conversation else _parts(conversation)
        self._folder = None if folder is None else _parts(folder)
        self._at = at
        if at is not None:
            check_name(conversation, at)

    def name(self) -> str:
        """That of the conversation, relative to the home. Raises FileNotFoundError where it has to be looked for, and
        none is there.
        """
        return "/".join(self._found())

    def exists(self) -> bool:
        """Whether there is a conversation."""
        try:
            self.read("")[0].close()
        except FileNotFoundError:
            return False
        return True

    def paths(self) -> list[str]:
        """Its files: those of the folder, then "" for the conversation; none where there is no conversation.

        Left out is what no agent names so, and what is no file: links above all.
        """
        if not self.exists():
            return []
        found: list[str] = []
        waiting: list[list[str]] = [] if self._folder is None else [[]]
        while waiting:
            within = waiting.pop()
            with contextlib.suppress(FileNotFoundError), self._directory([*self._within(), *within]) as directory:
                for name in filter(_NAME.fullmatch, os.listdir(directory)):
                    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                    if stat.S_ISREG(mode):
                        found.append("/".join([*within, name]))
                    elif stat.S_ISDIR(mode) and len(within) + 1 < MAX_DEPTH:
                        waiting.append([*within, name])
            if len(found) + len(waiting) >= MAX_FILES:
                raise Failed(f"a session has more than {MAX_FILES:,} files")
        return [*sorted(found), ""]

    def read(self, path: str) -> tuple[BinaryIO, int]:
        """One of its files, and the bytes that it has at this moment. Raises FileNotFoundError."""
        with self._directory(self._place(path)[:-1]) as directory:
            descriptor = os.open(self._place(path)[-1], os.O_RDONLY | _FILE, dir_fd=directory)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise Failed(f"{self._shown(path)} is no file")
        return os.fdopen(descriptor, "rb"), found.st_size

    def lacks(self, path: str, source: Source, size: int) -> bool:
        """Whether the file lacks something of `source`, which has this many bytes. Raises Differs."""
        try:
            file, has = self.read(path)
        except FileNotFoundError:
            return True
        with file:
            self._compare(path, file, source, min(has, size))
        return has < size

    def grow(self, path: str, source: Source, size: int) -> None:
        """Have the file hold `source`, which is read once: made, continued, or left. Raises Differs."""
        *place, name = self._place(path, make=True)
        with self._directory(place, make=True) as directory:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _FILE
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "r+b", 0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise Failed(f"{self._shown(path)} is no file")
                self._lock(path, file.fileno())
                has = os.fstat(file.fileno()).st_size
                self._compare(path, file, source, min(has, size))
                if has >= size:
                    return
                if os.fstat(file.fileno()).st_size != has:
                    raise Differs(f"{self._shown(path)} was written meanwhile")
                _copy(source, file, size - has)
                os.fsync(file.fileno())

    @contextlib.contextmanager
    def marked(self, run: str) -> Iterator[None]:
        """Mark the conversation as this run's, too; nobody else makes or removes it within the block."""
        *place, name = self._place("", make=True)
        with self._directory(place, make=True) as directory:
            self._lock("", directory)
            marks = _marks(directory, name)
            if run not in marks:
                brought = MADE in marks.values() or not _is_there(directory, name)
                mark = f"{name}.{run}.{MADE if brought else FOUND}"
                os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | _FILE, 0o600, dir_fd=directory))
            yield

    def unmark(self, run: str, *, begun: bool) -> None:
        """Take the run's mark away, and the conversation if no other run has it, and it was brought here. `begun`: if
        the run has no mark: it began there, with the run.
        """
        try:
            *place, name = self._found()
        except FileNotFoundError:
            self._unmark_gone(run)
            return
        with contextlib.suppress(FileNotFoundError), self._directory(place) as directory:
            self._lock("", directory)
            marks = _marks(directory, name)
            mine = marks.pop(run, MADE if begun else FOUND)
            if mine == MADE and not marks:
                os.unlink(name, dir_fd=directory)
            for kind in (MADE, FOUND):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{name}.{run}.{kind}", dir_fd=directory)

    def _unmark_gone(self, run: str) -> None:
        """The same for one that was removed by a program that was killed then."""
        for kind in (MADE, FOUND):
            with contextlib.suppress(FileNotFoundError):
                *place, name = Session(self._home, f"{self._pattern}.{run}.{kind}", None).name().split("/")
                with self._directory(place) as directory:
                    os.unlink(name, dir_fd=directory)

    def remove(self) -> None:
        """Remove it, and the directory of its conversation where nothing else is in that. For this program alone: it
        changes the process's working directory.
        """
        try:
            *place, name = self._found()
        except FileNotFoundError:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._folder is not None:
                import subprocess  # noqa: PLC0415 - it is a sixth of what this program takes to start

                with self._directory(self._folder[:-1]) as directory:
                    os.fchdir(directory)
                    # A tree may be deeper than Python can go.
                    subprocess.run(["rm", "-rf", "--", f"./{self._folder[-1]}"], check=False, stderr=subprocess.DEVNULL)
            with self._directory(place) as directory:
                os.unlink(name, dir_fd=directory)
        with contextlib.suppress(OSError), self._directory(place[:-1]) as directory:
            os.rmdir(place[-1], dir_fd=directory)

    def _place(self, path: str, *, make: bool = False) -> list[str]:
        if path:
            return [*self._within(), *_parts(path)]
        try:
            return self._found()
        except FileNotFoundError:
            if not make or self._at is None:
                raise
            self._conversation = _parts(self._at)
            return self._conversation

    def _found(self) -> list[str]:
        """Where the conversation is. Raises FileNotFoundError."""
        if self._conversation is None:
            found = self._matches()
            if not found:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._pattern)
            if len(found) > 1:
                shown = " and ".join("/".join(each) for each in found[:2])
                raise Failed(f"one session has several files below {self._home}: {shown}")
            self._conversation = found[0]
        return self._conversation

    def _matches(self) -> list[list[str]]:
        """The paths that the pattern may mean. What is a link in a directory's place is passed over."""
        found: list[list[str]] = [[]]
        names = 0
        for part in self._pattern.split("/"):
            if DIGIT not in part:
                found = [[*each, *_parts(part)] for each in found]
                continue
            matching, outer, found = _matching(part), found, []
            for each in outer:
                with contextlib.suppress(FileNotFoundError, Failed), self._directory(each) as directory:
                    within = os.listdir(directory)
                    names += len(within)
                    found += [[*each, name] for name in within if matching.fullmatch(name)]
                if names > MAX_NAMES:
                    raise Failed(f"there are more than {MAX_NAMES:,} names among the sessions below {self._home}")
        return found

    def _within(self) -> list[str]:
        if self._folder is None:
            raise Failed("a session of this agent is one file")
        return self._folder

    def _lock(self, path: str, descriptor: int) -> None:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    return None  # a file system without locks
                if time.monotonic() > deadline:
                    raise Failed(f"{self._shown(path)} is being written by another process") from None
            time.sleep(0.05)

    def _compare(self, path: str, file: Source, source: Source, size: int) -> None:
        while size:
            ours, theirs = _exactly(file, min(size, CHUNK)), _exactly(source, min(size, CHUNK))
            if ours != theirs or not ours:
                raise Differs(f"{self._shown(path)} is another one")
            size -= len(ours)

    @contextlib.contextmanager
    def _directory(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        """A directory below HOME, no part of it a link."""
        if make:
            os.makedirs(self._home, mode=0o700, exist_ok=True)
        descriptor = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                inner = self._entered(descriptor, part, make=make)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _entered(self, directory: int, name: str, *, make: bool) -> int:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=directory)
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Failed(f"{name} below {self._home} is a link, or no directory") from None
            raise

    def _shown(self, path: str) -> str:
        return os.path.join(self._home, *self._place(path))


def _marks(directory: int, name: str) -> dict[str, str]:
    """Which runs have the conversation of this name, and whether it was brought."""
    mark = re.compile(re.escape(name) + rf"\.([0-9a-f]+)\.({MADE}|{FOUND})")
    return {found[1]: found[2] for found in map(mark.fullmatch, os.listdir(directory)) if found}


def _is_there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def send(sessions: list[Session]) -> Iterator[bytes]:
    """The sessions as they go on their way. Raises Failed, OSError."""
    files = total = 0
    for number, session in enumerate(sessions):
        for path in session.paths():
            try:
                file, size = session.read(path)
            except FileNotFoundError:
                continue
            files, total = files + 1, total + size
            with file:
                if files > MAX_FILES or total > MAX_BYTES:
                    raise Failed(f"the sessions have more than {MAX_FILES:,} files or {MAX_BYTES >> 30} GiB")
                yield _line({"session": number, "path": path, "size": size, **({} if path else {"at": session.name()})})
                while size:
                    chunk = file.read(min(size, CHUNK))
                    if not chunk:
                        raise OSError(errno.EIO, "it became shorter while it was read", path)
                    size -= len(chunk)
                    yield chunk
    yield _line({"end": True})


def heading(frame: Any, conversations: list[str]) -> tuple[int, str, int, str | None] | None:
    """The number of the session, the path and the size in the line before a file, and the name of a conversation that
    was looked for; None for the end. `conversations`: what was asked for, as names with `#`.

    Raises Failed for anything else: the line may be hostile.
    """
    if not isinstance(frame, dict) or frame.get("error"):
        raise Failed(str(frame.get("error"))[:1000] if isinstance(frame, dict) else "that is no file of a session")
    if frame.get("end") is True:
        return None
    number, path, size = frame.get("session"), frame.get("path"), frame.get("size")
    if not (type(number) is int and type(size) is int and isinstance(path, str)):
        raise Failed("that is no file of a session")
    if not (0 <= number < len(conversations) and 0 <= size <= MAX_BYTES):
        raise Failed("that is no file of a session that was asked for")
    if path and len(_parts(path)) > MAX_DEPTH:
        raise Failed("a session's folder is too deep")
    if path or DIGIT not in conversations[number]:
        return number, path, size, None
    return number, path, size, check_name(conversations[number], frame.get("at"))


def check_name(conversation: str, name: Any) -> str:
    """The name of a conversation, which is such a one. Raises Failed."""
    if not isinstance(name, str) or not _matching(conversation).fullmatch(name):
        raise Failed("that is no name of the session's conversation")
    return name


def filled(conversation: str, like: str, of: str) -> str:
    """The name of this conversation with the digits that `like` has, which is a name of the conversation `of`."""
    digits = iter([digit for digit, place in zip(like, of) if place == DIGIT])
    return "".join(next(digits) if each == DIGIT else each for each in conversation)


def _matching(pattern: str) -> re.Pattern[str]:
    return re.compile("[0-9]".join(re.escape(each) for each in pattern.split(DIGIT)))


def _receive(home: str, asked: list[dict[str, Any]], stream: IO[bytes]) -> None:
    conversations = [each["conversation"] for each in asked]
    while (found := heading(_parsed(stream.readline(MAX_LINE)), conversations)) is not None:
        number, path, size, name = found
        source = _Bounded(stream, size)
        session, run = Session(home, conversations[number], asked[number]["folder"], name), asked[number].get("run")
        with contextlib.nullcontext() if run is None or path else session.marked(run):
            session.grow(path, source, size)
        source.skip()


class _Bounded:
    """The next `size` bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int, /) -> bytes:
        chunk = self._stream.read(min(size, self._left))
        self._left -= len(chunk)
        return chunk

    def skip(self) -> None:
        while self._left and self.read(CHUNK):
            pass


def _parts(path: str) -> list[str]:
    """Raises Failed for a path that could lead elsewhere."""
    parts = path.split("/")
    if not all(_NAME.fullmatch(part) for part in parts):
        raise Failed("that is no path of a session's file")
    return parts


def _exactly(file: Source, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := file.read(size - len(data))):
        data += chunk
    return data


def _copy(source: Source, file: IO[bytes], size: int) -> None:
    while size:
        chunk = source.read(min(size, CHUNK))
        if not chunk:
            raise Failed("a session was cut off on its way")
        view = memoryview(chunk)
        while view:
            view = view[file.write(view) :]
        size -= len(chunk)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise Failed("a session was cut off on its way") from None


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _do(command: str, home: str, asked: dict[str, Any], stdin: IO[bytes], out: IO[bytes]) -> None:
    sessions = [Session(home, each["conversation"], each["folder"]) for each in asked["sessions"]]
    if command == "send":
        for chunk in send(sessions):
            out.write(chunk)
        return
    answer: dict[str, Any] = {"ok": True}
    if command == "receive":
        _receive(home, asked["sessions"], stdin)
    elif command == "look":
        answer["shared"] = os.path.lexists(os.path.join(home, *_parts(asked["probe"])))
    else:
        for each, session in zip(asked["sessions"], sessions):
            if each.get("run") is None:
                session.remove()
            else:
                session.unmark(each["run"], begun=each["begun"])
    out.write(_line(answer))


def main(command: str, home: str) -> None:
    """Do what is asked of the sessions that the first line of stdin names; answers on stdout."""
    os.umask(0o077)
    stdin, out = sys.stdin.buffer, sys.stdout.buffer
    try:
        _do(command, home, json.loads(stdin.readline(MAX_LINE)), stdin, out)
    except Failed as error:
        out.write(_line({"error": str(error)}))
    except OSError as error:
        out.write(_line({"error": f"{error.filename or home}: {error.strerror}"}))
    finally:
        with contextlib.suppress(OSError):
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])
