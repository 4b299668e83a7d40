"""Whether a process is at work: one that sleeps, and neither computes nor moves a byte, waits for something."""

import asyncio
from pathlib import Path

_SAMPLE_S = 0.25


async def stalled(pid: int, patience_s: float) -> None:
    """Returns when the process has done nothing for so long; never for one that ends, or where there is no /proc.

    Waiting for a disk, or for a file system that is away, counts as work.
    """
    before, idle = None, 0
    # Counted in samples: where this process was held up, the other one was perhaps, too.
    while idle * _SAMPLE_S < patience_s:
        await asyncio.sleep(_SAMPLE_S)
        now = _effort(pid)
        idle = idle + 1 if now is not None and now == before else 0
        before = now


def _effort(pid: int) -> tuple[str, ...] | None:
    """What a process has done so far; None where it is at work just now, or nobody can say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        moved = Path(f"/proc/{pid}/io").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, faults, times = fields[0], fields[7:11], fields[11:13]
    return None if state in "RDZX" else (state, *faults, *times, moved)
