"""Whether another worker's process lives: by the lock that it holds, and by what the kernel says of it."""

import fcntl
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from activities.store import disk


class WorkerFacts(BaseModel):
    """The fields of worker.json. `locks`: flock works on this file system; else only the pulse shows who lives."""

    model_config = ConfigDict(frozen=True)

    identity: str
    queue: str
    cluster: str
    namespace: str
    pid: int
    started: str | None = None
    """The process's start time as the kernel counts it; with `boot`, because a process id is used again."""
    boot: str | None = None
    locks: bool = True


def try_lock(descriptor: int, kind: int) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_dead(path: Path, facts: WorkerFacts) -> bool:
    """Whether the worker's lock is free. `path`: the worker's directory."""
    return facts.locks and not is_locked(path / "lock")


def is_locked(file: Path) -> bool:
    """Whether a process holds the lock; True where that cannot be told."""
    try:
        descriptor = disk.open_regular(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def is_stopped(facts: WorkerFacts) -> bool:
    """Whether the very process is stopped by a signal. Linux; elsewhere nobody knows."""
    if facts.started is None or facts.boot != boot_id() or facts.started != start_time(facts.pid):
        return False
    return _stat(facts.pid)[:1] == ["T"]


def start_time(pid: int) -> str | None:
    """When the process was started, in the kernel's ticks since the boot."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else None


def boot_id() -> str | None:
    """The kernel's id of this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
