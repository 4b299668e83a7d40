"""Work that one worker of this host at a time does in a directory."""

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from activities.store import disk

T = TypeVar("T")

PATIENCE_S = 5.0
"""The lock of the directory is tried for this many seconds: each who has it needs a few milliseconds."""
PAUSE_S = 0.005


async def exclusively(directory: Path, work: Callable[[], T]) -> T:
    """What `work` returns, done in a thread and alone among the workers of this host. Raises OSError."""

    def locked() -> T:
        with disk.locked(directory):
            return work()

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return cast("T", await asyncio.to_thread(locked))
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise BlockingIOError(errno.EAGAIN, "something keeps it locked", str(directory)) from error
        await asyncio.sleep(PAUSE_S)
