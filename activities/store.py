"""Where runs are kept on this machine: one directory a run, private to the worker's user.

store.json                                     which store this is (see identity)
runs/<run id, quoted>/<execution>/run.json     whose run it is, and which beginning of it
                                 /events.jsonl the event log
                                 /scratch/     files that an agent's argv must not hold
                                 /attempts/N/  the shim's directory of the agent's Nth process
                                 /snapshots/N.json  what had been made of that process's journal, not to be read again
"""

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from activities import disk
from activities.identity import Identity
from activities.shim import client as shim
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest

_BEGINNING = re.compile(r"[0-9a-f]{16}")
_DEPTH = 2
"""Of how many parts a run's directory is named below `runs`."""


class RunGone(Exception):
    """What was written down of a run is gone: it can neither go on nor begin anew."""


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

    @property
    def beginning(self) -> str:
        """Which beginning of the run this is: one that is reset after its end begins anew under the same key. Empty for
        a directory of before there were any, and where nobody can tell.
        """
        said = self._facts().get("beginning")
        return said if isinstance(said, str) and _BEGINNING.fullmatch(said) else ""

    @property
    def created(self) -> float | None:
        """Unix time at which it was made; None where nobody can tell."""
        said = self._facts().get("created")
        return said if isinstance(said, float) and math.isfinite(said) else None

    @property
    def agent_key(self) -> RunKey:
        """The run's key as its agent has it, which makes ids of its own from it: another one for each beginning, and
        the same for every worker.
        """
        if not (beginning := self.beginning):
            return self.key
        return self.key.model_copy(update={"execution": f"{self.key.execution}:{beginning}"})

    def snapshot(self, attempt: int) -> Path:
        return self.path / "snapshots" / f"{attempt}.json"

    @property
    def tag(self) -> str:
        """What the marks of this run's processes begin with."""
        return shim.tag_of(self.path.parents[1], f"{self.path.parent.name}/{self.path.name}")

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / str(number)

    def attempts(self) -> int:
        """The number of the newest attempt that had a process, 0 for none."""
        return max((number for number in map(int, self._attempt_names()) if self._was_used(number)), default=0)

    def require(self, attempts: int) -> None:
        """Raises RunGone where less is there than a run has written that has had so many processes, OSError where that
        cannot be told.
        """
        if (found := self.attempts()) >= attempts:
            return
        try:
            os.lstat(self.attempt(attempts) / "journal")
        except (FileNotFoundError, NotADirectoryError) as error:
            text = f"the run's directory is gone or empty: {self.path} holds {found} of its {attempts} attempts"
            raise RunGone(f"{text}; without what they wrote down it can neither go on nor begin anew") from error

    def all_attempts(self) -> list[Path]:
        """Every attempt's directory, whether or not a process came to be in it."""
        return [self.attempt(number) for number in sorted(map(int, self._attempt_names()))]

    def is_told_gone(self, attempt: int) -> bool:
        """Whether some worker has logged that this attempt's process is gone."""
        return os.path.lexists(self.path / f"gone-{attempt}")

    def tell_gone(self, attempt: int) -> bool:
        """The same, and from now on one has."""
        try:
            os.close(os.open(self.path / f"gone-{attempt}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return True
        except OSError:
            return False  # a full disk: twice is better than never
        return False

    def _facts(self) -> dict[str, object]:
        try:
            facts = json.loads(disk.read_text(self.path / "run.json"))
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _was_used(self, number: int) -> bool:
        return os.path.exists(self.attempt(number) / "journal")  # noqa: PTH110 - Path.exists raises on a disk that fails

    def _attempt_names(self) -> list[str]:
        return [name for name in disk.names(self.path / "attempts") if name.isdigit()]


class RunStore:
    """All runs of this host."""

    def __init__(self, state: Path, owner: Ownership, identity: Identity | None = None) -> None:
        self.state, self.owner = state, owner
        self._runs = state / "runs"
        self._identity = identity

    def check(self, began_in: str = "") -> str:
        """The id of the store at hand; empty where nobody asks for one. Raises StoreGone, see Identity."""
        return self._identity.check(began_in) if self._identity else ""

    async def strays(self) -> set[str]:
        """Tags of runs at work whose directories are gone. Raises OSError where nobody can tell."""
        at_work = await shim.find_strays(self._runs, _DEPTH)
        return at_work - self._tags() if at_work else set()

    async def kill_strays(self, tag: str) -> shim.Clearance:
        """Stop what works under a run's tag, without the run's directory."""
        return await shim.kill_strays(self._runs, _DEPTH, tag)

    def _tags(self) -> set[str]:
        found = set()
        for run in _listed(self._runs):
            found |= {shim.tag_of(self._runs, f"{run}/{execution}") for execution in _listed(self._runs / run)}
        return found

    def directory(self, key: RunKey) -> RunDirectory:
        """The run's directory, whether or not it is there. Raises InvalidRequest for one that is not this owner's.

        Temporal makes an execution's id up, but whoever calls an activity names the key: here every door is guarded.
        """
        directory = RunDirectory(self._runs / _safe(key.run) / _safe(key.execution), key)
        if self.owner.recorded(directory.path / "run.json") is False:
            raise InvalidRequest("key: this host keeps that run for another Temporal namespace")
        return directory

    def readable(self, key: RunKey) -> RunDirectory:
        """The same to read from it. Raises InvalidRequest also where nobody can tell whose it is: its agent may have
        removed that file, and must not hide from a stop by it, but what is in there is shown to its owner alone.
        """
        directory = self.directory(key)
        if self.owner.recorded(directory.path / "run.json") is None and os.path.lexists(directory.path):
            raise InvalidRequest("key: whose run that is cannot be told: its run.json is missing or unreadable")
        return directory

    def create(self, key: RunKey) -> RunDirectory:
        """The run's directory, made if it is not there. Raises InvalidRequest as `directory` does."""
        directory = self.directory(key)
        meta = directory.path / "run.json"
        if self.owner.recorded(meta) is None:
            for path in (self._runs.parent, self._runs, directory.path.parent, directory.path, directory.scratch):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = {"run": key.run, "execution": key.execution, "created": time.time(), **asdict(self.owner)}
            facts["beginning"] = secrets.token_hex(8)
            temporary = directory.path / f"run.json.{secrets.token_hex(8)}"  # a stop and a leader may both be here
            disk.write_new(temporary, json.dumps(facts))
            try:
                meta.hardlink_to(temporary)  # never over what another has written meanwhile
            except FileExistsError:
                if self.owner.recorded(meta) is None:  # unreadable: a cut of power, or an agent
                    if meta.is_dir() and not meta.is_symlink():
                        meta.rename(meta.with_name(f"run.json.{time.time_ns()}"))
                    temporary.replace(meta)
            temporary.unlink(missing_ok=True)
            return self.directory(key)
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
                if (facts["cluster"], facts["namespace"]) == (self.owner.cluster, self.owner.namespace):
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
        """Delete a run's state; the bytes freed. Raises OSError where it cannot be deleted, as on a read-only disk."""
        size = disk.size(directory.path)
        shutil.rmtree(directory.path, ignore_errors=True)
        if os.path.lexists(directory.path):
            shutil.rmtree(directory.path)  # to hear why
        try:
            directory.path.parent.rmdir()
        except OSError:
            pass  # another execution of the same run id is kept
        return size


def _listed(directory: Path) -> list[str]:
    """What it holds; nothing where it is gone or none. Raises OSError where that cannot be told."""
    try:
        return [each.name for each in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _safe(name: str) -> str:
    """A file name for any workflow id, readable where that is possible, never one of the special names."""
    quoted = quote(name, safe="-_:@+=, ", errors="surrogatepass").replace(" ", "%20")
    if quoted.strip(".") and len(quoted) <= 120:
        return quoted
    return f"{quoted.replace('.', '%2E')[:80]}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
