"""Directories for files of a moment: what processes that were killed have left goes before the next one is made.

What is in them must not live here.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from activities.store import disk


class Scratch:
    """A directory in `parent`, locked as long as this process has it. `prefix`: of the names of such ones alone.

    Raises OSError.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            with suppress(FileNotFoundError, BlockingIOError):  # it was taken for one that is left
                self._lock = _lock(self.path)
                return

    def remove(self) -> None:
        """Raises nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


@asynccontextmanager
async def scratch_directory(parent: Path, prefix: str) -> AsyncIterator[Path]:
    """One for the length of a block; what is left there goes first. Raises OSError."""
    await asyncio.to_thread(remove_left, parent, prefix)
    made = Scratch(parent, prefix)
    try:
        yield made.path
    finally:
        await asyncio.to_thread(made.remove)


def remove_left(parent: Path, prefix: str) -> None:
    """Remove what is left there of processes that are gone. Blocks. Raises OSError where no descriptors are left."""
    for name in disk.names(parent):
        path = parent / name
        with suppress(OSError):
            if name.startswith(prefix) and path.lstat().st_uid == os.geteuid():
                _remove_unlocked(path)


def _lock(directory: Path) -> int:
    """A descriptor that has the directory's lock. Raises FileNotFoundError, BlockingIOError, OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass  # where nothing can be locked, nobody removes it either
    if not os.path.lexists(directory):
        os.close(descriptor)
        raise FileNotFoundError(directory)
    return descriptor


def _remove_unlocked(directory: Path) -> None:
    """Raises OSError where it is locked, or cannot be."""
    with disk.locked(directory, makes=False):
        try:
            with disk.locked(directory, makes=False):
                return  # locks say nothing here
        except BlockingIOError:
            shutil.rmtree(directory, ignore_errors=True)
