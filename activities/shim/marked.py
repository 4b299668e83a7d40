"""Clearing away what a shim that was killed has left behind: processes that carry its mark in their environment.

What must not live here: stopping the agent of a shim that lives; the shim does that itself, and better.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from activities.shim.errors import AlreadyRunning
from activities.shim.lock import lock
from activities.shim.shim import ProcTable, PsTable, send

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Clearance:
    """How many processes were killed, and the ids of those that are there all the same."""

    processes: int
    left: tuple[int, ...]


async def kill_marked(directory: str | os.PathLike[str], *, timeout: timedelta = timedelta(seconds=5)) -> Clearance:
    """Kill what is left of the agent of a shim that died, and look until none of it is there.

    A process that has cleared its environment and lost its parent is not found.

    Raises:
        AlreadyRunning: a shim lives in this directory: stop its agent through it.
    """
    return await asyncio.to_thread(_kill_marked, Path(directory), timeout.total_seconds())


def _kill_marked(directory: Path, timeout_s: float) -> Clearance:
    try:
        mark = json.loads((directory / "state.json").read_bytes())["mark"]
    except FileNotFoundError:
        return Clearance(0, ())  # the shim died before it could have started anything
    table = ProcTable(mark) if Path("/proc/self/stat").exists() else PsTable(mark)
    killed: set[int] = set()
    until = time.monotonic() + timeout_s
    with lock(directory) as held:
        if not held:
            raise AlreadyRunning(f"a shim lives in {directory}: stop its agent through it")
        while True:
            alive = table.alive(_NOBODY)
            if not alive or time.monotonic() > until:
                return Clearance(len(killed), tuple(sorted(alive)))
            for pid in alive:
                send(pid, signal.SIGKILL)
            killed.update(alive)
            time.sleep(0.005)
