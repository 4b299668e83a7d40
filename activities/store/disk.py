"""Access to files and directories that other processes change meanwhile.

What is gone since counts as not there, and nothing that an agent may have put in a file's place is waited for.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, no link. Raises OSError; opening a pipe or a device could wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""The disk is full, read-only or failing: trying again helps once somebody has mended that."""


EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""No descriptors or memory are left: trying again helps once there are some. EAGAIN of a fork says so of processes."""
_NO_THREAD = "can't start new thread"


NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO})
"""A directory, link, pipe or device is where a file is to be: `open_regular` refuses it."""


def is_unwritable(error: BaseException) -> bool:
    """Whether the disk keeps something from being written."""
    return isinstance(error, OSError) and error.errno in UNWRITABLE


def exhaustion(error: BaseException | None) -> OSError | None:
    """What the error comes of, where that is a lack of descriptors, memory, processes or threads; else None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            return error
        if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN and error.filename is None:
            return error  # of a fork: a lock's has its file's name
        if isinstance(error, MemoryError):
            return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
            return OSError(errno.EAGAIN, _NO_THREAD)
        error = error.__cause__
    return None


def is_no_file(error: BaseException) -> bool:
    """Whether something else is where a file is to be: trying again changes nothing."""
    return isinstance(error, OSError) and error.errno in NO_FILE


def read_text(path: Path, limit: int = 1024 * 1024) -> str:
    """The beginning of a small file. Raises OSError, UnicodeDecodeError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(limit).decode()


def write_new(path: Path, text: str) -> None:
    """Write a new file, and on the disk: an empty one after a power cut would say nothing. Raises OSError."""
    path.unlink(missing_ok=True)
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def locked(directory: Path, *, makes: bool = True) -> Iterator[None]:
    """Alone, by the directory's lock, which ends with its holder. `makes`: the directory, if it is missing.

    Raises BlockingIOError where another one has it, in this process too; OSError.
    """
    if makes:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def names(directory: Path) -> list[str]:
    """The names in a directory, sorted; none where it is not there or cannot be read.

    Raises OSError where no descriptors are left: what is there then is not known.
    """
    try:
        return sorted(each.name for each in directory.iterdir())
    except OSError as error:
        if exhaustion(error):
            raise
        return []


def length(file: Path) -> int:
    """The file's size in bytes, -1 where it is not there."""
    try:
        return file.stat().st_size
    except OSError:
        return -1


def size(directory: Path) -> int:
    """The size in bytes of all files below the directory."""
    return sum(_sizes(directory))


def _sizes(directory: Path) -> Iterator[int]:
    for inner, _, files in os.walk(directory):
        for name in files:
            try:
                yield Path(inner, name).lstat().st_size
            except OSError:
                continue


def remove_tree(directory: Path, last: Sequence[str] = ()) -> None:
    """Delete a directory, and what in it its owner has made unwritable, as package caches are. Blocks.

    `last`: files in it that go when all else has: what is left by a process that dies is known by them. What cannot be
    deleted stays, in silence.
    """
    _open(directory)
    for path, names_in, _ in os.walk(directory):
        for name in names_in:
            _open(Path(path, name))
    for name in names(directory) if last else ():
        if (entry := directory / name).is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif name not in last:
            with suppress(OSError):
                entry.unlink()
    if last and not set(names(directory)) <= set(last):
        return
    for name in last:
        with suppress(OSError):
            (directory / name).unlink()
    shutil.rmtree(directory, ignore_errors=True)


def _open(directory: Path) -> None:
    with suppress(OSError):
        if not directory.is_symlink():
            directory.chmod(0o700)
