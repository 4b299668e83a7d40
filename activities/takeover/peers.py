"""The other workers of this host, and the entries of the runs that they lead.

What is done about a fallen worker must not live here.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from activities.store import disk
from activities.takeover.liveness import WorkerFacts, is_dead, is_stopped
from steersman.contracts.activities import RunKey

State = Literal["alive", "ended", "dead", "stopped", "hung"]
"""`ended`: it shut down, and said so; `dead`: it did not."""

STOPPED_S = 1.0
"""A process that is stopped (SIGSTOP) is judged so after this many seconds without a pulse."""
HUNG_S = 10.0
"""A process that is not stopped is judged hung after this many seconds without a pulse."""
BLIND_S = 2.0
"""A worker that has not looked at the others for this many seconds was itself held up: it judges them anew."""
MAX_PEERS = 256
"""Directories beyond this many are not looked at: no host has more workers, but an agent may write there."""
LEFT = ".left"
"""The suffix of the entry of a run that the worker led until a moment ago."""
ENDED = "ended"
"""The file by which a worker says that it has shut down."""
MAX_RUNS = 10_000
"""A worker's entries beyond this many are not looked at: no host leads more runs, but an agent may write there."""


@dataclass(frozen=True)
class Peer:
    """Another worker of this host and of this Temporal namespace. `path`: its directory."""

    path: Path
    facts: WorkerFacts
    state: State

    @property
    def is_gone(self) -> bool:
        """Whether its process is no more."""
        return self.state in ("ended", "dead")

    def runs(self) -> list[RunKey]:
        """The runs that it led last, each once."""
        return list(dict.fromkeys(key for _, key in self._entries()))

    def forget(self, key: RunKey) -> None:
        """Remove the run's entry: another worker leads it, or nobody needs to. Raises nothing."""
        for suffix in ("", LEFT):
            with contextlib.suppress(OSError):
                (self.path / "runs" / (entry_name(key) + suffix)).unlink()

    def remove(self) -> None:
        """Remove the directory of a worker that is gone, unless entries of runs are left. Raises nothing."""
        with contextlib.suppress(OSError):
            (self.path / "runs").rmdir()
            for name in (ENDED, "worker.json", "pulse", "lock"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def _entries(self) -> Iterator[tuple[str, RunKey]]:
        # The runs that it leads come first.
        for name in sorted(_names(self.path / "runs")[:MAX_RUNS], key=lambda name: name.endswith(LEFT)):
            try:
                key = RunKey.model_validate_json(disk.read_text(self.path / "runs" / name, 64 * 1024))
            except (OSError, ValueError) as error:
                if disk.exhaustion(error):
                    continue  # it is whole, and can be read another time
                key = None
            if key is not None and name.removesuffix(LEFT) == entry_name(key):
                yield name, key
            else:
                with contextlib.suppress(OSError):
                    (self.path / "runs" / name).unlink()  # half-written, or no worker's


def _names(directory: Path) -> list[str]:
    """As `disk.names`; none where no descriptors are left: the next look is soon."""
    try:
        return disk.names(directory)
    except OSError:
        return []


class Peers:
    """This worker's view of the others. `own`: its own directory, beside theirs."""

    def __init__(self, own: Path, facts: WorkerFacts) -> None:
        self._own, self._facts = own, facts
        self._pulses: dict[str, tuple[int, float]] = {}
        self._judged: dict[str, State] = {}
        self._looked = 0.0

    def look(self) -> list[Peer]:
        """All other workers, each with its state. To be called a few times a second.

        How long a pulse has stood still is measured from call to call: no clock needs to agree with another.
        """
        now = time.monotonic()
        if now - self._looked > BLIND_S:
            self._pulses.clear()
        self._looked = now
        found = []
        for path in self._directories():
            facts = self._read(path)
            if facts is not None:
                found.append(Peer(path, facts, self._state(path, facts, now)))
        self._judged = {peer.path.name: peer.state for peer in found}
        self._pulses = {name: seen for name, seen in self._pulses.items() if name in self._judged}
        return found

    def holder(self, key: RunKey) -> str | None:
        """The task queue of the living worker that leads this run; None for none."""
        for path in self._directories():
            facts = self._read(path) if os.path.lexists(path / "runs" / entry_name(key)) else None
            if facts and self._judged.get(path.name, "alive") == "alive" and not is_dead(path, facts):
                return facts.queue
        return None

    def _directories(self) -> list[Path]:
        names = [name for name in _names(self._own.parent) if not name.startswith(".")][:MAX_PEERS]
        found = [self._own.parent / name for name in names if name != self._own.name]
        return [path for path in found if not path.is_symlink()]

    def _read(self, path: Path) -> WorkerFacts | None:
        """Who the worker is; None for what is no worker's, or another Temporal namespace's."""
        try:
            facts = WorkerFacts.model_validate_json(disk.read_text(path / "worker.json", 64 * 1024))
        except (OSError, ValueError):
            return None
        mine = (facts.cluster, facts.namespace) == (self._facts.cluster, self._facts.namespace)
        return facts if mine and facts.identity != self._facts.identity else None

    def _state(self, path: Path, facts: WorkerFacts, now: float) -> State:
        if is_dead(path, facts):
            return "ended" if os.path.lexists(path / ENDED) else "dead"
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
        return "stopped" if now - since > STOPPED_S and is_stopped(facts) else "alive"


def entry_name(key: RunKey) -> str:
    """The file name of a run's entry."""
    return hashlib.sha256(f"{key.run}\0{key.execution}".encode()).hexdigest()[:32]
