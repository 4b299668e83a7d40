"""Who may write a run's event log: one worker at a time, whichever has the highest epoch.

Every write is done under the lock of the epoch file, after a look at both files. So a worker that has written a higher
epoch there has fenced off all workers before it, without a copy of the log, however long that is. A worker that was
frozen while it held the lock is not waited for: both files are replaced, and it writes on where nobody reads.

What is written must not live here.
"""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from activities.ports.runtime import Fenced
from activities.shim.program.lock import take
from activities.store import disk

PATIENCE_S = 1.0
"""A takeover waits this many seconds for the lock. A writer holds it for milliseconds, unless it or its disk hangs."""
TRIES = 5
QUICK_S = 0.05
"""A writer waits this many seconds for the lock, in the event loop. Only another worker can hold it then."""
_TEXT = 64
_COPIED = 1024 * 1024


class Fence:
    """One writer's claim to a log, from its opening on."""

    def __init__(self, log: Path, epoch: int | None) -> None:
        """Take the log over with this epoch, made where it is not there; None: with the epoch that it has, to end it.

        Leaves the lock held: `release` lets go. Raises Fenced where a worker with a higher epoch has the log, OSError.
        """
        self._log, self._path = log, log.with_suffix(".epoch")
        self._lock = self.descriptor = -1
        try:
            for _ in range(TRIES):
                if (self._take if self._locked() else self._replace)(epoch):
                    return
                self.close()
            raise Fenced("other sessions take the event log over again and again")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of both files."""
        for descriptor in (self._lock, self.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self.descriptor = -1

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Hold the lock meanwhile, if the log is still this writer's and has the size it left. Raises Fenced."""
        if not take(self._lock, QUICK_S):
            raise Fenced("another process holds the lock of the event log")
        try:
            if not self._is_ours():
                raise Fenced("another session has taken the event log over")
            if os.fstat(self.descriptor).st_size != size:
                raise Fenced("something else has written into the event log")
            yield
        finally:
            self.release()

    def _is_ours(self) -> bool:
        # The names are looked at too: a writer that was frozen beyond PATIENCE_S holds files that have been replaced.
        return (
            os.pread(self._lock, _TEXT, 0) == self._text
            and _is_at(self._path, self._lock)
            and _is_at(self._log, self.descriptor)
        )

    def _locked(self) -> bool:
        """Whether the epoch file's lock could be had in time, and the file is still the one of that name."""
        until = time.monotonic() + PATIENCE_S
        while True:
            self._lock = disk.open_regular(self._path, os.O_RDWR | os.O_CREAT)
            if not take(self._lock, until - time.monotonic()):
                return False
            if _is_at(self._path, self._lock):
                return True
            self.close()

    def _take(self, epoch: int | None) -> bool:
        """With the lock held: no worker with a lower epoch writes any more. False if the lock was replaced."""
        found = os.pread(self._lock, _TEXT, 0)
        self._text = _claimed(found, epoch)
        if not found.endswith(b"\n") and os.path.lexists(self._log):
            # Its writer was of a version that appends without the lock, or its epoch is lost: it may still write.
            copy = _copied(self._log)
            if not _is_at(self._path, self._lock):
                copy.unlink(missing_ok=True)
                return False
            copy.replace(self._log)
        os.pwrite(self._lock, self._text, 0)
        os.ftruncate(self._lock, len(self._text))
        self.descriptor = _opened(self._log)
        return True

    def _replace(self, epoch: int | None) -> bool:
        """Without the lock: its holder may go on at any moment, in files that no other worker uses then.

        False where another worker has the lock by now. The log is replaced first: where this is cut short, the lock is
        still the frozen worker's, and the next worker does it again. Of two that do it at once, at most one finds both
        files its own.
        """
        before, self._lock, copy = self._lock, -1, None
        fresh = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        try:
            self._text = _claimed(os.pread(before, _TEXT, 0), epoch)
            self._lock = disk.open_regular(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.write(self._lock, self._text)
            copy = _copied(self._log) if os.path.lexists(self._log) else None
            if not _is_at(self._path, before):
                return False
            if copy:
                copy.replace(self._log)
            fresh.replace(self._path)
            self.descriptor = _opened(self._log)
            return self._is_ours()
        finally:
            os.close(before)
            for left in (fresh, copy):
                if left:
                    left.unlink(missing_ok=True)


def _claimed(found: bytes, epoch: int | None) -> bytes:
    """The epoch file's new text. Its newline says that the writer appends under the lock. Raises Fenced."""
    newest = 0
    with suppress(ValueError):  # spoilt: the shim and the workflow refuse lower epochs, too
        newest = int(found or 0)
    if epoch is not None and epoch < newest:
        raise Fenced(f"session {newest} has taken over from session {epoch}")
    return b"%d\n" % (newest if epoch is None else epoch)


def _opened(log: Path) -> int:
    return disk.open_regular(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)


def _copied(log: Path) -> Path:
    copy = log.with_name(f"{log.name}.{uuid.uuid4().hex}")
    try:
        with (
            os.fdopen(disk.open_regular(log), "rb") as old,
            os.fdopen(disk.open_regular(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as new,
        ):
            shutil.copyfileobj(old, new, _COPIED)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))
