"""An agent's sessions in the agent's own directory: read, written and removed.

Runs at the place of an agent, on Python 3.9 alone, from one file: `receive`, `send` and `remove`. The leader imports it
for its own side. What is in a session is not looked at: it is bytes.

A session is one file, its conversation, and a folder of further files, which need not be there. Both are named
relative to HOME, the agent's own directory; no link below HOME is followed. A file that is there is never replaced: it
is continued where what came begins with it, and left where it has all of that. So twice is once, and a program that is
killed leaves the beginning of what comes whole the next time.

On the way a session is a line of JSON and the bytes for each of its files, the conversation last:

    {"session": NUMBER, "path": PATH IN THE FOLDER, "" FOR THE CONVERSATION, "size": BYTES}

and {"end": true} after the last of them.
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
CHUNK = 1024 * 1024
LOCK_S = 5.0
"""Another worker may take this many seconds over a file."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Failed(Exception):
    """The message is a sentence."""


class Differs(Failed):
    """A file that is there is neither the beginning of what came, nor does it begin with it."""


class Session:
    """One session. `conversation` and `folder`: paths relative to `home`. Each method raises Failed, OSError."""

    def __init__(self, home: str, conversation: str, folder: str | None) -> None:
        self._home = home
        self._conversation = _parts(conversation)
        self._folder = None if folder is None else _parts(folder)

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
        *place, name = self._place(path)
        with self._directory(place, make=True) as directory:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _FILE
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "r+b", 0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise Failed(f"{self._shown(path)} is no file")
                self._lock(path, file)
                has = os.fstat(file.fileno()).st_size
                self._compare(path, file, source, min(has, size))
                if has >= size:
                    return
                if os.fstat(file.fileno()).st_size != has:
                    raise Differs(f"{self._shown(path)} was written meanwhile")
                _copy(source, file, size - has)
                os.fsync(file.fileno())

    def remove(self) -> None:
        """Remove it, and the directory of its conversation where nothing else is in that. For this program alone: it
        changes the process's working directory.
        """
        *place, name = self._conversation
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

    def _place(self, path: str) -> list[str]:
        return [*self._within(), *_parts(path)] if path else self._conversation

    def _within(self) -> list[str]:
        if self._folder is None:
            raise Failed("a session of this agent is one file")
        return self._folder

    def _lock(self, path: str, file: IO[bytes]) -> None:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                return fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                yield _line({"session": number, "path": path, "size": size})
                while size:
                    chunk = file.read(min(size, CHUNK))
                    if not chunk:
                        raise OSError(errno.EIO, "it became shorter while it was read", path)
                    size -= len(chunk)
                    yield chunk
    yield _line({"end": True})


def heading(frame: Any, sessions: int) -> tuple[int, str, int] | None:
    """The number of the session, the path and the size in the line before a file; None for the end.

    Raises Failed for anything else: the line may be hostile.
    """
    if not isinstance(frame, dict) or frame.get("error"):
        raise Failed(str(frame.get("error"))[:1000] if isinstance(frame, dict) else "that is no file of a session")
    if frame.get("end") is True:
        return None
    number, path, size = frame.get("session"), frame.get("path"), frame.get("size")
    if not (type(number) is int and type(size) is int and isinstance(path, str)):
        raise Failed("that is no file of a session")
    if not (0 <= number < sessions and 0 <= size <= MAX_BYTES):
        raise Failed("that is no file of a session that was asked for")
    if path and len(_parts(path)) > MAX_DEPTH:
        raise Failed("a session's folder is too deep")
    return number, path, size


def _receive(sessions: list[Session], stream: IO[bytes]) -> None:
    while (found := heading(_parsed(stream.readline(MAX_LINE)), len(sessions))) is not None:
        number, path, size = found
        source = _Bounded(stream, size)
        sessions[number].grow(path, source, size)
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


def _do(command: str, sessions: list[Session], stdin: IO[bytes], out: IO[bytes]) -> None:
    if command == "send":
        for chunk in send(sessions):
            out.write(chunk)
        return
    if command == "receive":
        _receive(sessions, stdin)
    else:
        for session in sessions:
            session.remove()
    out.write(_line({"ok": True}))


def main(command: str, home: str) -> None:
    """Do what is asked of the sessions that the first line of stdin names; answers on stdout."""
    os.umask(0o077)
    stdin, out = sys.stdin.buffer, sys.stdout.buffer
    try:
        asked = json.loads(stdin.readline(MAX_LINE))
        sessions = [Session(home, each["conversation"], each["folder"]) for each in asked["sessions"]]
        _do(command, sessions, stdin, out)
    except Failed as error:
        out.write(_line({"error": str(error)}))
    except OSError as error:
        out.write(_line({"error": f"{error.filename or home}: {error.strerror}"}))
    finally:
        with contextlib.suppress(OSError):
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])
