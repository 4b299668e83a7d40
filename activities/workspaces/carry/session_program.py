"""An agent's sessions in the agent's own directory: read, written and removed.

Runs at the place of an agent, on Python 3.9 alone, from one file: `look`, `receive`, `send` and `remove`. The leader
imports it for its own side. What is in a session is not looked at: it is bytes.

A session is one file, its conversation, and a folder of further files, which need not be there. Both are named
relative to HOME, the agent's own directory; no link below HOME is followed. In the name of a conversation `#` stands
for any digit: it is looked for, and is one file or none; of several the one that begins with certain bytes and has
certain others. `*` stands for a directory that the agent has named: a record and marks in such directories say which
it is, and one is made and marked where there is none. A file that is there is never replaced: it is continued where
what came begins with it, and left where it has all of that. So twice is once, and a program that is killed leaves the
beginning of what comes whole the next time.

On the way a session is a line of JSON and the bytes for each of its files, the conversation last:

    {"session": NUMBER, "path": PATH IN THE FOLDER, "" FOR THE CONVERSATION, "size": BYTES, "at": NAME}

and {"end": true} after the last of them. `at`, with a conversation alone: where it is, or is to be.

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
    from collections.abc import Iterator, Mapping
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
MAX_RECORD = 16 * 1024 * 1024
"""A record of directories' names has at most this many bytes."""
MAX_MARK = 64 * 1024
DIGIT, CHOSEN = "#", "*"
MADE, FOUND = "made", "found"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Failed(Exception):
    """The message is a sentence."""


class Differs(Failed):
    """A file that is there is neither the beginning of what came, nor does it begin with it."""


class _Files:
    """The files below HOME. Each method raises Failed, OSError."""

    def __init__(self, home: str) -> None:
        self._home = home

    @contextlib.contextmanager
    def entered(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        """A directory, no part of it a link."""
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

    def names(self, parts: list[str]) -> list[str]:
        """What is in a directory; nothing where there is none."""
        try:
            with self.entered(parts) as directory:
                return os.listdir(directory)
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def read(self, parts: list[str]) -> Iterator[BinaryIO | None]:
        """A file; None where there is none: a link, for one."""
        try:
            with self.entered(parts[:-1]) as directory:
                descriptor = os.open(parts[-1], os.O_RDONLY | _FILE, dir_fd=directory)
        except (FileNotFoundError, Failed):
            yield None
            return
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            yield None
            return
        with os.fdopen(descriptor, "rb") as file:
            yield file if stat.S_ISREG(os.fstat(descriptor).st_mode) else None

    def remove_tree(self, parts: list[str]) -> None:
        """Remove a directory. For this program alone: it changes the process's working directory."""
        import subprocess  # noqa: PLC0415 - it is a sixth of what this program takes to start

        with self.entered(parts[:-1]) as directory:
            os.fchdir(directory)
            # A tree may be deeper than Python can go.
            subprocess.run(["rm", "-rf", "--", f"./{parts[-1]}"], check=False, stderr=subprocess.DEVNULL)


class _Chosen:
    """The agent's directory for sessions that were held in one directory. See ports.sessions."""

    def __init__(self, files: _Files, held_in: str, roots: list[str], mark: str, record: str, name: str) -> None:
        self._files = files
        self._held_in, self._roots, self._mark, self._record, self._like = held_in, roots, mark, record, name

    def name(self) -> str | None:
        """Its name; None where the agent has none for it."""
        recorded = self._recorded().get(self._held_in)
        if isinstance(recorded, str) and _NAME.fullmatch(recorded) and not self._is_anothers(recorded):
            return recorded
        for root in self._roots:
            for name in filter(_NAME.fullmatch, self._files.names([root])):
                if self._owner(root, name) == self._held_in:
                    return name
        return None

    def made(self) -> str:
        """Its name: marked as what it is, and by a name that no other has, where there is none."""
        if (name := self.name()) is not None:
            if not self._is_marked(name):
                raise Failed(f"{self._roots[0]}/{name} is by now of another directory")
            return name
        taken = set(filter(lambda each: isinstance(each, str), self._recorded().values()))
        for number in range(MAX_NAMES):
            name = f"{self._like}-{number}" if number else self._like
            if name not in taken and not self._is_anothers(name) and self._is_marked(name):
                return name
        raise Failed(f"there are more than {MAX_NAMES:,} directories called {self._like}")

    def remove(self) -> None:
        """Remove it from each root, if it is marked in the first. For this program alone: see _Files."""
        name = self.name()
        if name is None or self._owner(self._roots[0], name) != self._held_in:
            return
        self._files.remove_tree([self._roots[0], name])
        for root in self._roots[1:]:
            with contextlib.suppress(OSError, Failed):
                if self._owner(root, name) == self._held_in and self._files.names([root, name]) == [self._mark]:
                    self._files.remove_tree([root, name])

    def _recorded(self) -> dict[str, Any]:
        with self._files.read(self._record.split("/")) as file:
            data = b"" if file is None else file.read(MAX_RECORD)
        try:
            found = json.loads(data)["projects"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _owner(self, root: str, name: str) -> str | None:
        """Whose it is; None where nothing says so."""
        with self._files.read([root, name, self._mark]) as file:
            return None if file is None else file.read(MAX_MARK).decode(errors="surrogateescape").strip()

    def _is_anothers(self, name: str) -> bool:
        return any(self._owner(root, name) not in (None, self._held_in) for root in self._roots)

    def _is_marked(self, name: str) -> bool:
        """Mark it, and say whether it is ours."""
        with self._files.entered([self._roots[0], name], make=True) as directory:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
                with os.fdopen(os.open(self._mark, flags, 0o600, dir_fd=directory), "wb") as file:
                    file.write(os.fsencode(self._held_in))
            except FileExistsError:
                return self._owner(self._roots[0], name) == self._held_in
        return True


class Session:
    """One session. `conversation` and `folder`: paths relative to `home`. `at`: the name that the conversation gets
    where none is there; needed only for one whose name has `#`. `chosen`, `begins`, `has`: see ports.sessions. Each
    method raises Failed, OSError.
    """

    def __init__(
        self,
        home: str,
        conversation: str,
        folder: str | None,
        at: str | None = None,
        *,
        chosen: dict[str, Any] | None = None,
        begins: str = "",
        has: str = "",
    ) -> None:
        self._home, self._files = home, _Files(home)
        self._pattern = conversation
        self._conversation = None if DIGIT in conversation or CHOSEN in conversation else _parts(conversation)
        self._folder = None if folder is None else _parts(folder)
        self._at = at
        self._chosen = None if chosen is None else _Chosen(self._files, **chosen)
        self._begins, self._has = begins.encode(), has.encode()
        if at is not None:
            check_name(conversation, at)

    def name(self) -> str:
        """That of the conversation, relative to the home, with `*` as it was given. Raises FileNotFoundError where it
        has to be looked for, and none is there.
        """
        asked = self._pattern.split("/")
        return "/".join(CHOSEN if part == CHOSEN else found for part, found in zip(asked, self._found()))

    def location(self, path: str) -> str:
        """Where one of its files is. Raises FileNotFoundError as `name`."""
        return os.path.join(self._home, *self._place(path))

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
            with contextlib.suppress(FileNotFoundError), self._files.entered([*self._within(), *within]) as directory:
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
        with self._files.entered(self._place(path)[:-1]) as directory:
            descriptor = os.open(self._place(path)[-1], os.O_RDONLY | _FILE, dir_fd=directory)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise Failed(f"{self.location(path)} is no file")
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
        with self._files.entered(place, make=True) as directory:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _FILE
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "r+b", 0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise Failed(f"{self.location(path)} is no file")
                self._lock(path, file.fileno())
                has = os.fstat(file.fileno()).st_size
                self._compare(path, file, source, min(has, size))
                if has >= size:
                    return
                if os.fstat(file.fileno()).st_size != has:
                    raise Differs(f"{self.location(path)} was written meanwhile")
                _copy(source, file, size - has)
                os.fsync(file.fileno())

    @contextlib.contextmanager
    def marked(self, run: str) -> Iterator[None]:
        """Mark the conversation as this run's, too; nobody else makes or removes it within the block."""
        *place, name = self._place("", make=True)
        with self._files.entered(place, make=True) as directory:
            self._lock("", directory)
            marks = _marks(directory, name)
            if run not in marks:
                brought = MADE in marks.values() or not _is_there(directory, name)
                mark = f"{name}.{run}.{MADE if brought else FOUND}"
                os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | _FILE, 0o600, dir_fd=directory))
            yield

    def was_here(self, run: str) -> bool:
        """Whether the run's mark says that the conversation was here before it was brought."""
        try:
            *place, name = self._found()
        except FileNotFoundError:
            return False
        with self._files.entered(place) as directory:
            return _marks(directory, name).get(run) == FOUND

    def unmark(self, run: str, *, begun: bool) -> None:
        """Take the run's mark away, and the conversation if no other run has it, and it was brought here. `begun`: if
        the run has no mark: it began there, with the run.
        """
        try:
            *place, name = self._found()
        except FileNotFoundError:
            self._unmark_gone(run)
            return
        with contextlib.suppress(FileNotFoundError), self._files.entered(place) as directory:
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
                with self._files.entered(place) as directory:
                    os.unlink(name, dir_fd=directory)

    def remove(self) -> None:
        """Remove it, and the directory of its conversation where nothing else is in that; where the agent has named
        one, where no other conversation is in it. For this program alone: see _Files.
        """
        for *place, name in self._own():
            with contextlib.suppress(FileNotFoundError):
                if self._folder is not None:
                    self._files.remove_tree(self._folder)
                with self._files.entered(place) as directory:
                    os.unlink(name, dir_fd=directory)
            with contextlib.suppress(OSError), self._files.entered(place[:-1]) as directory:
                os.rmdir(place[-1], dir_fd=directory)
        if self._chosen is not None and self._is_last(self._chosen.name()):
            self._chosen.remove()

    def _is_last(self, chosen: str | None) -> bool:
        """Whether the agent's directory of this name has no other conversation."""
        if chosen is None:
            return False
        *place, _ = _filled(self._pattern, chosen).split("/")
        with contextlib.suppress(Failed):  # a link in its place has none
            return not any(self._is_held([*place, name]) for name in self._files.names(place))
        return True

    def _own(self) -> list[list[str]]:
        """The conversation, and further files of its name that begin as it does."""
        if self._begins:
            return [each for each in self._candidates() if self._is_begun(each)]
        try:
            return [self._found()]
        except FileNotFoundError:
            return []

    def _place(self, path: str, *, make: bool = False) -> list[str]:
        if path:
            return [*self._within(), *_parts(path)]
        try:
            return self._found()
        except FileNotFoundError:
            if not make or self._at is None:
                raise
            its = self._chosen.made() if self._chosen else CHOSEN
            self._conversation = _parts(_filled(self._at, its))
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
        """The paths of all files that can be the conversation."""
        if not self._begins and not self._has:
            return self._candidates()
        return [each for each in self._candidates() if self._is_begun(each) and self._is_held(each)]

    def _candidates(self) -> list[list[str]]:
        """The paths that the pattern may mean. What is a link in a directory's place is passed over."""
        found: list[list[str]] = [[]]
        names = 0
        for part in self._pattern.split("/"):
            if part == CHOSEN:
                its = self._chosen.name() if self._chosen else None
                found = [] if its is None else [[*each, its] for each in found]
                continue
            if DIGIT not in part:
                found = [[*each, *_parts(part)] for each in found]
                continue
            matching, outer, found = _matching(part), found, []
            for each in outer:
                with contextlib.suppress(FileNotFoundError, Failed), self._files.entered(each) as directory:
                    within = os.listdir(directory)
                    names += len(within)
                    found += [[*each, name] for name in within if matching.fullmatch(name)]
                if names > MAX_NAMES:
                    raise Failed(f"there are more than {MAX_NAMES:,} names among the sessions below {self._home}")
        return found

    def _is_begun(self, parts: list[str]) -> bool:
        with self._files.read(parts) as file:
            return file is not None and file.read(len(self._begins)) == self._begins

    def _is_held(self, parts: list[str]) -> bool:
        """Whether there is what makes such a file a conversation."""
        before = b""
        with self._files.read(parts) as file:
            while file is not None and (chunk := file.read(CHUNK)):
                if self._has in before + chunk:
                    return True
                before = chunk[-len(self._has) :]
        return False

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
                    raise Failed(f"{self.location(path)} is being written by another process") from None
            time.sleep(0.05)

    def _compare(self, path: str, file: Source, source: Source, size: int) -> None:
        while size:
            ours, theirs = _exactly(file, min(size, CHUNK)), _exactly(source, min(size, CHUNK))
            if ours != theirs or not ours:
                raise Differs(f"{self.location(path)} is another one")
            size -= len(ours)


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


def send(sessions: list[Session], names: Mapping[int, str] | None = None) -> Iterator[bytes]:
    """The sessions as they go on their way. `names`: by number, those of conversations that are to have others there.

    Raises Failed, OSError.
    """
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
                at = {} if path else {"at": (names or {}).get(number) or session.name()}
                yield _line({"session": number, "path": path, "size": size, **at})
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
    if path or not (DIGIT in conversations[number] or CHOSEN in conversations[number]):
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


def _filled(name: str, chosen: str) -> str:
    return "/".join(chosen if part == CHOSEN else part for part in name.split("/"))


def _matching(pattern: str) -> re.Pattern[str]:
    return re.compile("[0-9]".join(re.escape(each) for each in pattern.split(DIGIT)))


def _receive(home: str, asked: list[dict[str, Any]], stream: IO[bytes]) -> None:
    conversations = [each["conversation"] for each in asked]
    while (found := heading(_parsed(stream.readline(MAX_LINE)), conversations)) is not None:
        number, path, size, name = found
        source = _Bounded(stream, size)
        session, run = _session(home, asked[number], name), asked[number].get("run")
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


def _session(home: str, asked: dict[str, Any], at: str | None = None) -> Session:
    more = {name: asked[name] for name in ("chosen", "begins", "has") if name in asked}
    return Session(home, asked["conversation"], asked["folder"], at, **more)


def _do(command: str, home: str, asked: dict[str, Any], stdin: IO[bytes], out: IO[bytes]) -> None:
    sessions = [_session(home, each) for each in asked["sessions"]]
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
                parent = each.get("parent")
                was_here = parent is not None and Session(home, parent, None).was_here(each["run"])
                session.unmark(each["run"], begun=each["begun"] and not was_here)
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
