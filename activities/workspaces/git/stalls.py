"""Stalled processes: one that sleeps, and neither computes nor reads or writes a byte, waits for something."""

import asyncio
from pathlib import Path

_SAMPLE_S = 0.25


async def wait_for_stall(pid: int, seconds: float) -> None:
    """Return once the process has done nothing for this many seconds; never for one that ends, or without /proc.

    Waiting for a disk, or for a file system that does not answer, counts as work.
    """
    before, idle = None, 0
    # Counted in samples: what suspended this process may have suspended the other one, too.
    while idle * _SAMPLE_S < seconds:
        await asyncio.sleep(_SAMPLE_S)
        now = _work_done(pid)
        idle = idle + 1 if now is not None and now == before else 0
        before = now


def _work_done(pid: int) -> tuple[str, ...] | None:
    """Counters of what a process has done so far; None while it works, or where they cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        moved = Path(f"/proc/{pid}/io").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, faults, times = fields[0], fields[7:11], fields[11:13]
    return None if state in "RDZX" else (state, *faults, *times, moved)
