"""Whether a worker hangs: exits 1 where one holds its lock in STATE/workers and has not touched its pulse for a while.

    python -I -S worker_pulse.py STATE

For a container's liveness check: a worker's event loop touches its pulse twice a second. It says nothing of Temporal:
a restart does not bring that back. A worker that has entered nothing yet, because it waits for Temporal's first answer,
does not hang, and where the file system has no locks nothing is told. The standard library alone: it runs often.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 30.0


def pulses(state: Path) -> Iterator[tuple[str, float]]:
    """Name of each worker that lives, and the seconds since its pulse."""
    for worker in (state / "workers").glob("[!.]*"):
        try:
            if is_held(worker / "lock"):
                yield worker.name, time.time() - (worker / "pulse").lstat().st_mtime
        except OSError:
            continue  # it has ended in this moment


def is_held(lock: Path) -> bool:
    """Whether a process holds it; False where that cannot be told. Raises OSError."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def main(state: Path) -> int:
    """The exit code; says on stderr which worker hangs."""
    hung = [(name, age) for name, age in pulses(state) if age > PATIENCE_S]
    for name, age in hung:
        sys.stderr.write(f"worker {name} has shown no sign of life for {age:.0f} s\n")
    return 1 if hung else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
