"""Whether a shim lives in a directory: whoever holds its lock file is alive, whatever its process id says.

What must not live here: talking to the shim.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_PAUSE_S = 0.002
_PATIENCE_S = 0.1  # another probe holds the lock for microseconds


@contextmanager
def lock(directory: str | os.PathLike[str]) -> Iterator[bool]:
    """Hold the directory's lock, so that no shim can start there; False where one lives or is starting.

    Raises OSError where the lock cannot be opened.
    """
    path = os.path.join(directory, "lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        fd = os.open(path, os.O_RDONLY | _PLAIN)
    try:
        yield take(fd, _PATIENCE_S)
    finally:
        os.close(fd)


def take(fd: int, patience_s: float) -> bool:
    """Whether an open file's lock (flock) could be had within this time. Blocks; with none it is tried once."""
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def is_alive(directory: str | os.PathLike[str]) -> bool:
    """Whether a shim lives in this directory, or is starting there. Where its lock is none, one may live there."""
    try:
        fd = os.open(os.path.join(directory, "lock"), os.O_RDONLY | _PLAIN)  # a shared lock asks for no more
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return True
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def entomb(directory: str | os.PathLike[str]) -> bool:
    """Make sure that no shim will ever start in this directory; it is made where there is none.

    Returns:
        False where a shim lives or is starting there: that one has to be stopped instead.

    Raises:
        OSError: the directory or its lock cannot be used.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with lock(directory) as held:
        if held:
            with contextlib.suppress(FileExistsError):  # whatever it is, a shim takes it for the tombstone
                os.close(
                    os.open(os.path.join(directory, "stopped"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o600)
                )
        return held
