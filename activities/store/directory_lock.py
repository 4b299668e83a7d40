"""Work that one worker of this host at a time does in a directory."""

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast
from weakref import WeakValueDictionary

from activities.store import disk

T = TypeVar("T")

PATIENCE_S, LEAST_PATIENCE_S = 5.0, 0.5
"""The lock of the directory is tried for this many seconds, and for that many after all those of this process who came
before: each who has it needs a few milliseconds.
"""
PAUSE_S = 0.005
_queues: WeakValueDictionary[tuple[int, Path], asyncio.Lock] = WeakValueDictionary()
"""By event loop: there they wait for each other in order; other processes are asked for it again and again."""


async def exclusively(directory: Path, work: Callable[[], T], *, makes: bool = True) -> T:
    """What `work` returns, done in a thread and alone among the workers of this host. `makes`: the directory, if it is
    missing. Raises OSError.
    """

    def locked() -> T:
        with disk.locked(directory, makes=makes):
            return work()

    until = time.monotonic() + PATIENCE_S
    async with _queues.setdefault((id(asyncio.get_running_loop()), directory), asyncio.Lock()):
        until = max(until, time.monotonic() + LEAST_PATIENCE_S)
        while True:
            try:
                return cast("T", await asyncio.to_thread(locked))
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise BlockingIOError(errno.EAGAIN, "something keeps it locked", str(directory)) from error
            await asyncio.sleep(PAUSE_S)
