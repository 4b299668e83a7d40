"""Wakes readers of an event log in this process when something is written to it here.

A log that another worker of the host writes is looked at from time to time all the same.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_lock = threading.Lock()
_readers: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}


def written(path: Path) -> None:
    """The log has more now. From any thread."""
    with _lock:
        for changed, loop in _readers.get(str(path), {}).items():
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(changed.set)


@contextmanager
def watched(path: Path) -> Iterator[asyncio.Event]:
    """An event of the running loop that is set whenever the log has more, for the length of a block."""
    changed = asyncio.Event()
    with _lock:
        _readers.setdefault(str(path), {})[changed] = asyncio.get_running_loop()
    try:
        yield changed
    finally:
        with _lock:
            readers = _readers[str(path)]
            del readers[changed]
            if not readers:
                del _readers[str(path)]
