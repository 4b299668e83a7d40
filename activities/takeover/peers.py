"""Another worker of this host, and the entries of the runs that it leads. What is done about it must not live here."""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from activities.store import disk
from activities.takeover.liveness import WorkerFacts
from steersman.contracts.activities import RunKey

State = Literal["alive", "dead", "stopped", "hung"]

LEFT = ".left"
"""The suffix of the entry of a run that the worker led until a moment ago."""
MAX_RUNS = 10_000
"""A worker's entries beyond this many are not looked at: no host leads more runs, but an agent may write there."""


@dataclass(frozen=True)
class Peer:
    """Another worker of this host and of this Temporal namespace. `path`: its directory."""

    path: Path
    facts: WorkerFacts
    state: State

    def runs(self) -> list[RunKey]:
        """The runs that it led last, each once."""
        return list(dict.fromkeys(key for _, key in self._entries()))

    def forget(self, key: RunKey) -> None:
        """Remove the run's entry: another worker leads it, or nobody needs to. Raises nothing."""
        for suffix in ("", LEFT):
            with contextlib.suppress(OSError):
                (self.path / "runs" / (entry_name(key) + suffix)).unlink()

    def remove(self) -> None:
        """Remove a dead worker's directory, unless entries of runs are left. Raises nothing."""
        with contextlib.suppress(OSError):
            (self.path / "runs").rmdir()
            for name in ("worker.json", "pulse", "lock"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def _entries(self) -> Iterator[tuple[str, RunKey]]:
        # The runs that it leads come first.
        for name in sorted(disk.names(self.path / "runs")[:MAX_RUNS], key=lambda name: name.endswith(LEFT)):
            try:
                key = RunKey.model_validate_json(disk.read_text(self.path / "runs" / name, 64 * 1024))
            except (OSError, ValueError):
                key = None
            if key is not None and name.removesuffix(LEFT) == entry_name(key):
                yield name, key
            else:
                with contextlib.suppress(OSError):
                    (self.path / "runs" / name).unlink()  # half-written, or no worker's


def entry_name(key: RunKey) -> str:
    """The file name of a run's entry."""
    return hashlib.sha256(f"{key.run}\0{key.execution}".encode()).hexdigest()[:32]
