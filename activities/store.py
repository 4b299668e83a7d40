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
            facts = json.loads(disk.read_text(meta))
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
        if self._owner.recorded(directory.path / "run.json") is False:
            raise InvalidRequest("key: this host keeps that run for another Temporal namespace")
        return directory

    def readable(self, key: RunKey) -> RunDirectory:
        """The same to read from it. Raises InvalidRequest also where nobody can tell whose it is: its agent may have
        removed that file, and must not hide from a stop by it, but what is in there is shown to its owner alone.
        """
        directory = self.directory(key)
        if self._owner.recorded(directory.path / "run.json") is None and os.path.lexists(directory.path):
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
            _write(temporary, json.dumps(facts))
            if not os.path.lexists(meta):
                with suppress(FileExistsError):
                    meta.hardlink_to(temporary)  # never over what another worker has written meanwhile
                temporary.unlink(missing_ok=True)
                return self.directory(key)
            if meta.is_dir() and not meta.is_symlink():
                meta.rename(meta.with_name(f"run.json.{time.time_ns()}"))
            temporary.replace(meta)  # unreadable: a cut of power, or an agent
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
                facts = json.loads(disk.read_text(meta))
                if (facts["cluster"], facts["namespace"]) == (self._owner.cluster, self._owner.namespace):
                    key = RunKey(run=facts["run"], execution=facts["execution"])
                    found.append((float(facts["created"]), RunDirectory(meta.parent, key)))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # half-written or foreign: nobody's to sweep
        yield from (directory for _, directory in sorted(found, key=lambda each: each[0]))

    def count_failure(self, key: RunKey) -> int:
        """One more failure to lead this run; how many there have been."""
        descriptor = disk.open_regular(self.directory(key).path / "failures", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as file:
            file.write(b"x")
            file.flush()
            return os.fstat(descriptor).st_size

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


def _write(path: Path, text: str) -> None:
    """On the disk before it is used: an empty file after a cut of power would be nobody's."""
    path.unlink(missing_ok=True)
    with os.fdopen(disk.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _safe(name: str) -> str:
    """A file name for any workflow id, readable where that is possible, never one of the special names."""
    quoted = quote(name, safe="-_:@+=, ").replace(" ", "%20")
    if quoted.strip(".") and len(quoted) <= 120:
        return quoted
    return f"{quoted.replace('.', '%2E')[:80]}~{hashlib.sha256(name.encode()).hexdigest()[:24]}"
