"""Which workers of this host live, and which runs each leads: known to one another by files, so that nobody has to ask
the server. What is done about a worker that has fallen must not live here: see takeover.

STATE/workers/<worker>/lock        held (flock) for as long as the process lives
                      /pulse       touched by its event loop twice a second
                      /worker.json who it is
                      /runs/HASH   one file for each run that it leads; HASH.left: that it led until a moment ago
             .claim                held by the worker that sees to fallen ones just now

    registry = Registry.open(state, owner, identity, queue)
    with registry.leading(key):        # in run_agent, for as long as the session lasts
        ...
    registry.holder(key)               # the task queue of the worker that leads this run, or None

Agents run as the same user and may write here: all that is read is taken for a hint. A forged file can send a message
to a queue where nobody listens, or have an activity tried again; no more.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from activities import disk
from activities.store import Ownership
from steersman.contracts.activities import RunKey

log = logging.getLogger("steersman.registry")

State = Literal["alive", "dead", "stopped", "hung"]

STOPPED_S = 1.0
"""How long a process that is stopped (SIGSTOP) may give no sign of life."""
HUNG_S = 10.0
"""How long one that is not stopped may."""
NOT_ENTERED = -1
"""The lock of a worker that could not be entered."""
LEFT = ".left"
LEFT_S = 30.0
"""How long a run is still named that this worker led: were it killed now, the server might never have heard how that
ended, and would wait for a heartbeat."""
BLIND_S = 2.0
"""Who has not looked for this long was itself held up, and begins anew to judge others."""
MAX_PEERS = 256
MAX_RUNS = 10_000
"""More than any host has; what an agent may have put there beyond is not looked at."""


class Facts(BaseModel):
    """What worker.json says. `locks`: whether flock tells there who lives; else only the pulse does."""

    model_config = ConfigDict(frozen=True)

    identity: str
    queue: str
    cluster: str
    namespace: str
    pid: int
    started: str | None = None
    """The process's start time as the kernel counts it, and the boot: a process id is used again."""
    boot: str | None = None
    locks: bool = True


@dataclass(frozen=True)
class Peer:
    """Another worker of this host and of this Temporal namespace."""

    path: Path
    facts: Facts
    state: State

    def runs(self) -> list[RunKey]:
        """The runs that it led last, each once."""
        return list(dict.fromkeys(key for _, key in self._files()))

    def forget(self, key: RunKey) -> None:
        """Somebody else has that run, or nobody needs to. Raises nothing."""
        for suffix in ("", LEFT):
            with contextlib.suppress(OSError):
                (self.path / "runs" / (_file(key) + suffix)).unlink()

    def remove(self) -> None:
        """Clear a dead one away, unless runs are left. Raises nothing."""
        with contextlib.suppress(OSError):
            (self.path / "runs").rmdir()
            for name in ("worker.json", "pulse", "lock"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def _files(self) -> Iterator[tuple[str, RunKey]]:
        # What it led last comes first.
        for name in sorted(disk.names(self.path / "runs")[:MAX_RUNS], key=lambda name: name.endswith(LEFT)):
            try:
                key = RunKey.model_validate_json(disk.read_text(self.path / "runs" / name, 64 * 1024))
            except (OSError, ValueError):
                key = None
            if key is not None and name.removesuffix(LEFT) == _file(key):
                yield name, key
            else:
                with contextlib.suppress(OSError):
                    (self.path / "runs" / name).unlink()  # half-written, or no worker's


class Registry:
    """This worker's own place among them. Methods are for threads: they read and write the disk."""

    def __init__(self, path: Path, facts: Facts, descriptor: int) -> None:
        self._path, self._facts, self._lock = path, facts, descriptor
        self._leads: dict[RunKey, int] = {}
        self._left: dict[RunKey, float] = {}
        """The runs that this worker led until a moment ago, the longest gone first; when it let them go."""
        self._pulses: dict[str, tuple[int, float]] = {}
        self._judged: dict[str, State] = {}
        self._looked = 0.0
        self._failing = self._leaving = False

    @classmethod
    def open(cls, state: Path, owner: Ownership, identity: str, queue: str) -> "Registry":
        """Enter this worker under its queue's last part. On a disk that takes nothing it is entered once that does."""
        path = state / "workers" / queue.rpartition(":")[2]
        facts = Facts(
            identity=identity,
            queue=queue,
            **asdict(owner),
            pid=os.getpid(),
            started=_started(os.getpid()),
            boot=_boot(),
        )
        try:
            return cls(path, *_enter(path, facts))
        except OSError as error:
            unseen = cls(path, facts, NOT_ENTERED)
            unseen._failed(error)
            return unseen

    @property
    def identity(self) -> str:
        return self._facts.identity

    @property
    def queue(self) -> str:
        """This worker's own task queue."""
        return self._facts.queue

    @contextmanager
    def leading(self, key: RunKey) -> Iterator[None]:
        """This worker leads the run meanwhile. After `leave`, a block that raises leaves its entry for the next worker.

        A disk that takes no entry is no reason not to lead: it is then found out later that this worker has fallen.
        """
        self._leads[key] = self._leads.get(key, 0) + 1
        self._left.pop(key, None)
        self._write(_file(key), key)
        ended = False
        try:
            yield
            ended = True
        finally:
            self._leads[key] -= 1
            if not self._leads[key]:
                del self._leads[key]
                if ended or not self._leaving:
                    self._mark_left(key)

    def leads(self) -> list[RunKey]:
        """The runs that this worker leads."""
        return list(self._leads)

    def holder(self, key: RunKey) -> str | None:
        """The task queue of the worker that leads this run, if one of this host does and lives."""
        if key in self._leads:
            return self._facts.queue
        for path in self._places():
            facts = self._read(path) if os.path.lexists(path / "runs" / _file(key)) else None
            if facts and self._judged.get(path.name, "alive") == "alive" and not _is_dead(path, facts):
                return facts.queue
        return None

    def pulse(self) -> None:
        """A sign of life. Enters this worker anew where an agent has removed its files; raises nothing."""
        self._forget_left(time.monotonic() - LEFT_S)
        try:
            if os.stat(self._path / "lock").st_ino != os.fstat(self._lock).st_ino:  # noqa: PTH116
                raise FileNotFoundError(str(self._path / "lock"))
            os.utime(self._path / "pulse", follow_symlinks=False)
        except FileNotFoundError:
            self._enter_anew()
        except OSError as error:
            self._failed(error)
        else:
            self._failing = False

    def peers(self) -> list[Peer]:
        """All other workers, each as it stands. To be called a few times a second: how long a pulse has stood still is
        measured from look to look, so that no clock needs to agree with another.
        """
        now = time.monotonic()
        if now - self._looked > BLIND_S:
            self._pulses.clear()
        self._looked = now
        found = []
        for path in self._places():
            facts = self._read(path)
            if facts is not None:
                found.append(Peer(path, facts, self._state(path, facts, now)))
        self._judged = {peer.path.name: peer.state for peer in found}
        self._pulses = {name: seen for name, seen in self._pulses.items() if name in self._judged}
        return found

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Be the only one that sees to fallen workers; False where another one does."""
        try:
            descriptor = disk.open_regular(self._path.with_name(".claim"), os.O_RDWR | os.O_CREAT)
        except OSError:
            yield False
            return
        try:
            yield _lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    def leave(self) -> None:
        """The worker ends: the runs that it lets go are another's to take, who looks whether somebody has."""
        self._leaving = True

    def close(self) -> None:
        """Give the lock up. The entries of runs that wait for another worker stay."""
        self._forget_left(time.monotonic())
        Peer(self._path, self._facts, "dead").remove()
        self._close_lock()

    def _places(self) -> list[Path]:
        names = [name for name in disk.names(self._path.parent) if not name.startswith(".")][:MAX_PEERS]
        places = [self._path.parent / name for name in names if name != self._path.name]
        return [path for path in places if not path.is_symlink()]

    def _read(self, path: Path) -> Facts | None:
        """None for what is no worker's, or another Temporal namespace's."""
        try:
            facts = Facts.model_validate_json(disk.read_text(path / "worker.json", 64 * 1024))
        except (OSError, ValueError):
            return None
        mine = (facts.cluster, facts.namespace) == (self._facts.cluster, self._facts.namespace)
        return facts if mine and facts.identity != self._facts.identity else None

    def _state(self, path: Path, facts: Facts, now: float) -> State:
        if _is_dead(path, facts):
            return "dead"
        try:
            pulse = (path / "pulse").lstat().st_mtime_ns
        except OSError:
            return "alive"  # its lock is held: it will mend that
        seen, since = self._pulses.get(path.name, (None, now))
        if seen != pulse:
            since = now
            self._pulses[path.name] = (pulse, now)
        if now - since > HUNG_S:
            return "hung" if facts.locks else "dead"
        return "stopped" if now - since > STOPPED_S and _is_stopped(facts) else "alive"

    def _mark_left(self, key: RunKey) -> None:
        self._left[key] = time.monotonic()
        entry = self._path / "runs" / _file(key)
        with contextlib.suppress(OSError):
            entry.rename(entry.with_name(entry.name + LEFT))

    def _forget_left(self, before: float) -> None:
        for key in [key for key, since in self._left.copy().items() if since <= before]:
            self._left.pop(key, None)
            with contextlib.suppress(OSError):
                (self._path / "runs" / (_file(key) + LEFT)).unlink()

    def _write(self, name: str, key: RunKey) -> None:
        file = self._path / "runs" / name
        try:
            with os.fdopen(disk.open_regular(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as entry:
                entry.write(key.model_dump_json())
        except OSError as error:
            facts = {"run": key.run, "error": str(error)}
            log.warning("the run cannot be entered", extra={"action": "registry_failed", "facts": facts})

    def _enter_anew(self) -> None:
        try:
            if os.path.lexists(self._path):
                aside = self._path.rename(self._path.with_name(f".{self._path.name}.{time.time_ns()}"))
                shutil.rmtree(aside, ignore_errors=True)
            facts, descriptor = _enter(self._path, self._facts)
        except OSError as error:
            self._failed(error)
            return
        self._close_lock()
        self._facts, self._lock = facts, descriptor
        for key in self.leads():
            self._write(_file(key), key)
        for key in self._left.copy():
            self._write(_file(key) + LEFT, key)

    def _close_lock(self) -> None:
        if self._lock != NOT_ENTERED:
            os.close(self._lock)

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            sentence = "this worker cannot show that it lives (%s): others will take its runs"
            log.warning(sentence, error, extra={"action": "registry_failed"})
        self._failing = True


def _enter(path: Path, facts: Facts) -> tuple[Facts, int]:
    """Make the directory, complete and locked before others see it. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(OSError):  # now: when it is needed, the disk may be full
        os.close(disk.open_regular(path.with_name(".claim"), os.O_RDWR | os.O_CREAT))
    made = path.with_name(f".{path.name}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    (made / "runs").mkdir(mode=0o700)
    descriptor = disk.open_regular(made / "lock", os.O_RDWR | os.O_CREAT)
    try:
        # Where flock is not there, or lets everybody pass, only the pulse tells.
        locked = _lock(descriptor, fcntl.LOCK_EX) and _is_locked(made / "lock")
        facts = facts.model_copy(update={"locks": locked})
        for name, text in (("pulse", ""), ("worker.json", json.dumps(facts.model_dump()))):
            with os.fdopen(disk.open_regular(made / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.write(text)
        made.rename(path)
    except OSError:
        os.close(descriptor)
        raise
    return facts, descriptor


def _file(key: RunKey) -> str:
    return hashlib.sha256(f"{key.run}\0{key.execution}".encode()).hexdigest()[:32]


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_dead(path: Path, facts: Facts) -> bool:
    return facts.locks and not _is_locked(path / "lock")


def _is_locked(file: Path) -> bool:
    """Whether a process holds it; True where that cannot be told."""
    try:
        descriptor = disk.open_regular(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _is_stopped(facts: Facts) -> bool:
    """Whether the very process is stopped by a signal. Linux; elsewhere nobody knows."""
    if facts.started is None or facts.boot != _boot() or facts.started != _started(facts.pid):
        return False
    return _stat(facts.pid)[:1] == ["T"]


def _started(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
