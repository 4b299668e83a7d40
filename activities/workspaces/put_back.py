"""Files of a work tree, put back one by one: each is looked at in the moment before, and left where it is otherwise.

Nothing is overwritten or removed but what has, byte for byte, the content that it was last seen with. Which files, and
what they are to hold, must not live here.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LINK, FILE, PROGRAM = b"120000", b"100644", b"100755"
"""Modes in a git tree: a symbolic link, a file, one that can be executed."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Version:
    """What a path holds: a mode of git's and the id of the blob."""

    mode: bytes
    object_id: bytes


@dataclass(frozen=True)
class Replacement:
    """What a path holds now, and what it is to hold; None: nothing."""

    now: Version | None
    wanted: Version | None


def temporary_name(of: str) -> bytes:
    """The name of a file that is on its way into a work tree; `of`: for what. Whoever tries again after a crash finds
    what was left, and removes it.
    """
    return b".steersman-" + hashlib.sha256(of.encode()).hexdigest()[:16].encode()


async def put_back(
    top: Path,
    due: Mapping[bytes, Replacement],
    staged: Mapping[bytes, Path],
    limits: Mapping[bytes, int],
    temporary: bytes,
) -> set[bytes]:
    """Carry out what can be, and return the paths that were left as they are. A cancel waits for the file that is being
    written: whoever goes on with it must not meet us.

    `staged`: files with the wanted contents. `limits`: the permissions that a file gets at most; else one that is new
    gets those of the umask, and any other one keeps its own. `temporary`: see `temporary_name`.
    Raises OSError where `top` cannot be opened.
    """
    cancelled = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_put_all_back, top, due, staged, limits, temporary, cancelled))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancelled.set()
        with contextlib.suppress(OSError):
            await work
        raise


def remove_temporary(top: Path, paths: Iterable[bytes], temporary: bytes) -> None:
    """Remove what was left beside these paths under that name. Never raises."""
    with contextlib.suppress(OSError):
        root = os.open(top, _DIRECTORY)
        try:
            for parents in {tuple(path.split(b"/")[:-1]) for path in paths}:
                with contextlib.suppress(OSError), _opened(root, [*parents], make=False) as directories:
                    os.unlink(temporary, dir_fd=directories[-1])
        finally:
            os.close(root)


def _put_all_back(
    top: Path,
    due: Mapping[bytes, Replacement],
    staged: Mapping[bytes, Path],
    limits: Mapping[bytes, int],
    temporary: bytes,
    cancelled: threading.Event,
) -> set[bytes]:
    left = set()
    root = os.open(top, _DIRECTORY)
    try:
        # What goes makes room for what comes: a file in place of a directory, or the other way round.
        going = sorted((path for path, each in due.items() if each.wanted is None), reverse=True)
        for path in (*going, *sorted(due.keys() - set(going))):
            if cancelled.is_set():
                break
            try:
                done = _put_back(root, path, due[path], staged.get(path), temporary, limits.get(path, 0o777))
            except OSError:
                done = False
            if not done:
                left.add(path)
    finally:
        os.close(root)
    return left


def make_directory(top: Path, path: bytes) -> None:
    """Make a directory, and those above it, where nothing is in the way. Never raises."""
    with contextlib.suppress(OSError):
        root = os.open(top, _DIRECTORY)
        try:
            with _opened(root, path.split(b"/"), make=True):
                pass
        finally:
            os.close(root)


def remove_directory(top: Path, path: bytes) -> None:
    """Remove a directory that has no entry. Never raises."""
    with contextlib.suppress(OSError):
        root = os.open(top, _DIRECTORY)
        try:
            *parents, name = path.split(b"/")
            with _opened(root, parents, make=False) as directories:
                os.rmdir(name, dir_fd=directories[-1])
        finally:
            os.close(root)


def limit_permissions(top: Path, path: bytes, limit: int) -> None:
    """Take from a file what permissions it has beyond these; where it is none nothing is done. Never raises."""
    with contextlib.suppress(OSError):
        root = os.open(top, _DIRECTORY)
        try:
            *parents, name = path.split(b"/")
            with _opened(root, parents, make=False) as directories:
                file = os.open(name, _READ, dir_fd=directories[-1])
                try:
                    found = os.fstat(file).st_mode
                    if stat.S_ISREG(found) and found & 0o777 & ~limit:
                        os.fchmod(file, stat.S_IMODE(found) & (~0o777 | limit))
                finally:
                    os.close(file)
        finally:
            os.close(root)


def _put_back(
    root: int, path: bytes, replacement: Replacement, staged: Path | None, temporary: bytes, limit: int
) -> bool:
    now, wanted = replacement.now, replacement.wanted
    *parents, name = path.split(b"/")
    with _opened(root, parents, make=wanted is not None) as directories:
        parent = directories[-1]
        if wanted is None:
            if now is None or not _holds_still(parent, name, now):
                return False
            os.unlink(name, dir_fd=parent)
            _remove_empty(directories, parents)
            return True
        if staged is None or not _holds(
            None, os.fsencode(staged), wanted
        ):  # the agent could have written over what was kept
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        try:
            _write(parent, temporary, staged, wanted, _permissions(parent, name) if now else None, limit)
            if now is None:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=parent)  # one without entries
                # Unlike a rename this fails where anything is.
                os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
                return True
            if _holds_still(parent, name, now):
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
                return True
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)


@contextlib.contextmanager
def _opened(root: int, parents: list[bytes], *, make: bool) -> Iterator[list[int]]:
    """The directories on the way, opened without following a link. Raises OSError."""
    directories = [os.dup(root)]
    try:
        for name in parents:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=directories[-1])
            directories.append(os.open(name, _DIRECTORY, dir_fd=directories[-1]))
        yield directories
    finally:
        for each in directories:
            os.close(each)


def _remove_empty(directories: list[int], parents: list[bytes]) -> None:
    for above, name in zip(reversed(directories[:-1]), reversed(parents), strict=True):
        try:
            os.rmdir(name, dir_fd=above)
        except OSError:
            return


def _holds(parent: int | None, name: bytes, version: Version) -> bool:
    """Whether the path holds this version now. `parent`: the directory that it is relative to. Raises OSError."""
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=parent)
        return version.mode == LINK and _blob_id(version, len(target), iter([target])) == version.object_id
    if not stat.S_ISREG(found.st_mode) or version.mode != (PROGRAM if found.st_mode & 0o100 else FILE):
        return False
    with os.fdopen(os.open(name, _READ, dir_fd=parent), "rb") as file:
        return _blob_id(version, found.st_size, iter(lambda: file.read(_CHUNK), b"")) == version.object_id


def _holds_still(parent: int, name: bytes, version: Version) -> bool:
    """The same, and it was not touched while it was read. Raises OSError."""
    before = os.stat(name, dir_fd=parent, follow_symlinks=False)
    held = _holds(parent, name, version)
    after = os.stat(name, dir_fd=parent, follow_symlinks=False)
    stamps = [(each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in (before, after)]
    return held and stamps[0] == stamps[1]


def _blob_id(version: Version, size: int, chunks: Iterator[bytes]) -> bytes:
    """The id that git gives this content, by the repository's own hash."""
    digest = hashlib.sha1(usedforsecurity=False) if len(version.object_id) == 40 else hashlib.sha256()
    digest.update(b"blob %d\0" % size)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest().encode()


def _permissions(parent: int, name: bytes) -> int | None:
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    return stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else None


def _write(parent: int, name: bytes, staged: Path, wanted: Version, permissions: int | None, limit: int) -> None:
    """A new file or link; `permissions` of the file that it takes the place of are kept within `limit`, but for who may
    execute.
    """
    if wanted.mode == LINK:
        os.symlink(os.fsencode(os.readlink(staged)), name, dir_fd=parent)
        return
    mode = (0o777 if wanted.mode == PROGRAM else 0o666) & limit
    if permissions is not None:
        # Nobody who may not read it in the end may open it meanwhile.
        mode, permissions = mode & 0o700, permissions & limit
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, mode, dir_fd=parent), "wb") as file:
        with os.fdopen(os.open(staged, _READ), "rb") as source:
            shutil.copyfileobj(source, file, _CHUNK)
        if permissions is not None:
            # Whoever may read a program may execute it.
            executes = (permissions & 0o444) >> 2 if wanted.mode == PROGRAM else 0
            os.fchmod(file.fileno(), (permissions & ~0o111) | executes)
