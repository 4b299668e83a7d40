"""Where runs are kept on this machine: one directory a run, private to the worker's user.

runs/<run id, quoted>/<execution>/run.json     whose run it is
                                 /events.jsonl the event log
                                 /scratch/     files that an agent's argv must not hold
                                 /attempts/N/  the shim's directory of the agent's Nth process
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from activities import disk
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest


@dataclass(frozen=True)
class Ownership:
    """Which Temporal a run belongs to: a machine may serve several, and a sweep must touch its own only."""

    cluster: str
    namespace: str

    def recorded(self, meta: Path) -> bool | None:
        """Whether the JSON file names this owner; None where there is no such file or it names nobody."""
        try:
            facts = json.loads(meta.read_text())
            return bool((facts["cluster"], facts["namespace"]) == (self.cluster, self.namespace))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


@dataclass(frozen=True)
class RunDirectory:
    """One run's place. Paths only; creating is `create`."""

    path: Path
    key: RunKey

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / str(number)

    def attempts(self) -> int:
        """The number of the newest attempt that had a process, 0 for none."""
        return max(
            (int(name) for name in self._attempt_names() if (self.attempt(int(name)) / "journal").exists()), default=0
        )

    def all_attempts(self) -> list[Path]:
        """Every attempt's directory, whether or not a process came to be in it."""
        return [self.attempt(number) for number in sorted(map(int, self._attempt_names()))]

    def _attempt_names(self) -> list[str]:
        return [name for name in disk.names(self.path / "attempts") if name.isdigit()]


class RunStore:
    """All runs of this host."""

    def __init__(self, state: Path, owner: Ownership) -> None:
        self._runs = state / "runs"
        self._owner = owner

    def directory(self, key: RunKey) -> RunDirectory:
        """The run's directory, whether or not it is there. Raises InvalidRequest for one that is not this owner's.

        Temporal makes an execution's id up, but whoever calls an activity names the key: here every door is guarded.
        """
        directory = RunDirectory(self._runs / _safe(key.run) / _safe(key.execution), key)
        mine = self._owner.recorded(directory.path / "run.json")
        if mine is False:
            raise InvalidRequest("key: this host keeps that run for another Temporal namespace")
        if mine is None and (directory.events.exists() or (directory.path / "attempts").exists()):
            raise InvalidRequest("key: whose run that is cannot be told: its run.json is missing or unreadable")
        return directory

    def create(self, key: RunKey) -> RunDirectory:
        """The run's directory, made if it is not there. Raises InvalidRequest as `directory` does."""
        directory = self.directory(key)
        meta = directory.path / "run.json"
        if self._owner.recorded(meta) is None:
            for path in (self._runs.parent, self._runs, directory.path.parent, directory.path, directory.scratch):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = {"run": key.run, "execution": key.execution, "created": time.time(), **asdict(self._owner)}
            temporary = directory.path / f"run.json.{os.getpid()}"
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps(facts))
            if not meta.exists():
                with suppress(FileExistsError):
                    meta.hardlink_to(temporary)  # never over what another worker has written meanwhile
                temporary.unlink(missing_ok=True)
                return self.directory(key)
            temporary.replace(meta)  # unreadable, and of a run that has nothing yet
        return directory

    def mine(self) -> Iterator[RunDirectory]:
        """Every run of this worker's own Temporal namespace, oldest first."""
        found = []
        for meta in (
            self._runs / run / execution / "run.json"
            for run in disk.names(self._runs)
            for execution in disk.names(self._runs / run)
        ):
            try:
                facts = json.loads(meta.read_text())
                if (facts["cluster"], facts["namespace"]) == (self._owner.cluster, self._owner.namespace):
                    key = RunKey(run=facts["run"], execution=facts["execution"])
                    found.append((float(facts["created"]), RunDirectory(meta.parent, key)))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # half-written or foreign: nobody's to sweep
        yield from (directory for _, directory in sorted(found, key=lambda each: each[0]))

    def count_failure(self, key: RunKey) -> int:
        """One more failure to lead this run; how many there have been."""
        path = self.directory(key).path / "failures"
        with path.open("ab") as file:
            file.write(b"x")
        return path.stat().st_size

    def set_aside(self, directory: RunDirectory) -> None:
        """Keep a run's state under another name, so that its key is free for a new beginning."""
        directory.path.rename(directory.path.with_name(f"{directory.path.name}.{time.time_ns()}"))

    def remove(self, directory: RunDirectory) -> int:
        """Delete a run's state; the bytes freed."""
        size = disk.size(directory.path)
        shutil.rmtree(directory.path, ignore_errors=True)
        try:
            directory.path.parent.rmdir()
        except OSError:
            pass  # another execution of the same run id is kept
        return size


def _safe(name: str) -> str:
    """A file name for any workflow id, readable where that is possible, never one of the special names."""
    quoted = quote(name, safe="-_:@+=, ").replace(" ", "%20")
    if quoted.strip(".") and len(quoted) <= 120:
        return quoted
    return f"{quoted.replace('.', '%2E')[:80]}~{hashlib.sha256(name.encode()).hexdigest()[:24]}"
