"""What shims that died or do not answer have left behind, seen to without holding up the event loop.

What must not live here: how a process is found or killed (`program.leftovers`, `program.strays`).
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from activities.shim.client.errors import AlreadyRunning
from activities.shim.program import leftovers, strays
from activities.shim.program.leftovers import Clearance

_TIMEOUT = timedelta(seconds=5)


async def kill_marked(directory: str | os.PathLike[str], *, timeout: timedelta = _TIMEOUT) -> Clearance:
    """See `program.leftovers.kill_marked`.

    Raises:
        AlreadyRunning: a shim lives in this directory: stop its agent through it.
    """
    try:
        return await asyncio.to_thread(leftovers.kill_marked, directory, timeout.total_seconds())
    except leftovers.ShimAlive as error:
        raise AlreadyRunning(str(error)) from error


async def kill_unresponsive(directory: str | os.PathLike[str], *, timeout: timedelta = _TIMEOUT) -> Clearance:
    """See `program.leftovers.kill_unresponsive`."""
    return await asyncio.to_thread(leftovers.kill_unresponsive, directory, timeout.total_seconds())


async def thaw(directory: str | os.PathLike[str]) -> None:
    """SIGCONT to the shim of this directory: its agent may have frozen it."""
    await asyncio.to_thread(leftovers.thaw, directory)


async def has_stray(directory: str | os.PathLike[str]) -> bool:
    """Whether a shim works for this directory though its lock says no: its agent has moved or replaced its files."""
    return await asyncio.to_thread(leftovers.has_stray, directory)


async def waits_for_disk(directory: str | os.PathLike[str]) -> bool:
    """Whether the shim of this directory is held up by the system (state D): it cannot answer, and will go on."""
    return await asyncio.to_thread(leftovers.waits_for_disk, directory)


async def find_strays(root: Path, depth: int) -> set[str]:
    """See `program.strays.find_strays`."""
    return await asyncio.to_thread(strays.find_strays, root, depth)


async def kill_strays(root: Path, depth: int, tag: str, *, timeout: timedelta = _TIMEOUT) -> Clearance:
    """See `program.strays.kill_strays`."""
    return await asyncio.to_thread(strays.kill_strays, root, depth, tag, timeout.total_seconds())
