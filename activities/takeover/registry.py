"""Which workers of this host live, and which runs each leads. They tell one another by files, without the server.

STATE/workers/<worker>/lock        held (flock) for as long as the process lives
                      /pulse       touched by its event loop twice a second
                      /worker.json who it is
                      /ended       once it has shut down: the others remove all this when they have seen to its tasks
                      /runs/HASH   one file for each run that it leads; HASH.left: that it led until a moment ago
             .claim                held by the worker that sees to fallen ones just now

    registry = Registry.open(state, owner, identity, queue)
    with registry.leading(key):        # in run_agent, for as long as this worker leads the run
        ...
    registry.holder(key)               # the task queue of the worker that leads this run, or None

Agents run as the same user and may write here: all that is read is taken for a hint. A forged file can send a message
to a queue where nobody listens, or have an activity tried again; no more. What is done about a fallen worker must not
live here: see takeover.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from activities.store import disk
from activities.store.ownership import Ownership
from activities.takeover.liveness import (
    WorkerFacts,
    boot_id,
    is_locked,
    start_time,
    try_lock,
)
from activities.takeover.peers import ENDED, LEFT, Peer, Peers, entry_name
from steersman.contracts.activities import RunKey

log = logging.getLogger("steersman.registry")

NOT_ENTERED = -1
"""Stands for the lock of a worker that could not write its entry."""
LEFT_S = 30.0
"""A run is named for this many seconds after this worker led it: were the worker killed now, the server might never
have heard how that ended, and would wait for a heartbeat."""


class Registry:
    """This worker's own entry, and its view of the others. Methods are for threads: they read and write the disk."""

    def __init__(self, path: Path, facts: WorkerFacts, descriptor: int) -> None:
        self._path, self._facts, self._lock = path, facts, descriptor
        self._leads: dict[RunKey, int] = {}
        self._left: dict[RunKey, float] = {}
        """When this worker let each run go that it led until a moment ago, the oldest first."""
        self._peers = Peers(path, facts)
        self._failing = self._leaving = False

    @classmethod
    def open(cls, state: Path, owner: Ownership, identity: str, queue: str) -> "Registry":
        """Write this worker's entry, named by its queue's last part; on a full disk, as soon as that takes it."""
        path = state / "workers" / queue.rpartition(":")[2]
        facts = WorkerFacts(
            identity=identity,
            queue=queue,
            **asdict(owner),
            pid=os.getpid(),
            started=start_time(os.getpid()),
            boot=boot_id(),
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

        A disk that takes no entry is no reason not to lead: a fall of this worker is then noticed later.
        """
        self._leads[key] = self._leads.get(key, 0) + 1
        self._left.pop(key, None)
        self._write(entry_name(key), key)
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
        """The task queue of the worker that leads this run, if a living one of this host does."""
        if key in self._leads:
            return self._facts.queue
        return self._peers.holder(key)

    def pulse(self) -> None:
        """Show that this worker lives. Writes its entry anew where an agent has removed it; raises nothing."""
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
        """All other workers, each with its state. To be called a few times a second: see Peers."""
        return self._peers.look()

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Be the only worker that sees to fallen ones; False where another one does."""
        try:
            descriptor = disk.open_regular(self._path.with_name(".claim"), os.O_RDWR | os.O_CREAT)
        except OSError:
            yield False
            return
        try:
            yield try_lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    def leave(self) -> None:
        """This worker ends: the entries of runs that it lets go stay, so that others look whether they are taken."""
        self._leaving = True

    def close(self) -> None:
        """Give the lock up. The directory stays, for another worker to see to and to remove.

        The server may have handed this worker a task in the moment in which it stopped polling: nobody was there to
        enter it, and the server waits for its heartbeat.
        """
        self._forget_left(time.monotonic())
        with contextlib.suppress(OSError):
            os.close(disk.open_regular(self._path / ENDED, os.O_WRONLY | os.O_CREAT))
        self._close_lock()

    def _mark_left(self, key: RunKey) -> None:
        self._left[key] = time.monotonic()
        entry = self._path / "runs" / entry_name(key)
        with contextlib.suppress(OSError):
            entry.rename(entry.with_name(entry.name + LEFT))

    def _forget_left(self, before: float) -> None:
        for key in [key for key, since in self._left.copy().items() if since <= before]:
            self._left.pop(key, None)
            with contextlib.suppress(OSError):
                (self._path / "runs" / (entry_name(key) + LEFT)).unlink()

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
            self._write(entry_name(key), key)
        for key in self._left.copy():
            self._write(entry_name(key) + LEFT, key)

    def _close_lock(self) -> None:
        if self._lock != NOT_ENTERED:
            os.close(self._lock)

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            sentence = "this worker cannot show that it lives (%s): others will take its runs"
            log.warning(sentence, error, extra={"action": "registry_failed"})
        self._failing = True


def _enter(path: Path, facts: WorkerFacts) -> tuple[WorkerFacts, int]:
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
        locked = try_lock(descriptor, fcntl.LOCK_EX) and is_locked(made / "lock")
        facts = facts.model_copy(update={"locks": locked})
        for name, text in (("pulse", ""), ("worker.json", json.dumps(facts.model_dump()))):
            with os.fdopen(disk.open_regular(made / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.write(text)
        made.rename(path)
    except OSError:
        os.close(descriptor)
        raise
    return facts, descriptor
