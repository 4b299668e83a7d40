"""Where the runs of this machine are kept: one directory a run, private to the worker's user.

store.json                                     which store this is (see identity)
runs/<run id, quoted>/<execution>/run.json     whose run it is, which beginning of it, and where its processes live
                                 /events.jsonl the event log
                                 /attempts/N/  the shim's directory of the agent's Nth process; of one that lives
                                               elsewhere the copy of its journal (see runtimes.mirror)
                                 /removed      nothing of the run is left elsewhere
                                 /given-up     somebody has given up what is left elsewhere
                                 /snapshots/N.json  that process's transcript, so that its journal is not read again
"""

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from activities.shim import client as shim
from activities.store import disk
from activities.store.hold_files import HoldFiles
from activities.store.identity import StoreIdentity
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.model import JsonObject

_DEPTH = 2
"""A run's directory is this many levels below `runs`."""


class RunStore:
    """All runs of this host."""

    def __init__(self, state: Path, owner: Ownership, identity: StoreIdentity | None = None) -> None:
        self.state, self.owner = state, owner
        self.holds = HoldFiles(state)
        self._runs = state / "runs"
        self._identity = identity

    def check(self, began_in: str = "") -> str:
        """The store's id; empty for a store that was opened without one. Raises StoreGone: see StoreIdentity."""
        return self._identity.check(began_in) if self._identity else ""

    async def strays(self) -> set[str]:
        """The tags of runs at work whose directories are gone. Raises OSError where that cannot be told."""
        at_work = await shim.find_strays(self._runs, _DEPTH)
        return at_work - self._tags() if at_work else set()

    async def kill_strays(self, tag: str) -> shim.Clearance:
        """Stop the processes that have a run's tag, without the run's directory."""
        return await shim.kill_strays(self._runs, _DEPTH, tag)

    def _tags(self) -> set[str]:
        found = set()
        for run in _listed(self._runs):
            found |= {shim.tag_of(self._runs, f"{run}/{execution}") for execution in _listed(self._runs / run)}
        return found

    def directory(self, key: RunKey) -> RunDirectory:
        """The run's directory, whether or not it is there. Raises InvalidRequest for one that is not this owner's.

        Temporal makes up an execution's id, but an activity's caller names the key: every activity comes through here.
        """
        directory = RunDirectory(self._path(key), key)
        if self.owner.recorded(directory.path / "run.json") is False:
            raise InvalidRequest("key: this host keeps that run for another Temporal namespace")
        return directory

    def readable(self, key: RunKey) -> RunDirectory:
        """The same, in order to show what is in it. Raises InvalidRequest also where run.json does not say whose it is.

        An agent that has removed that file must not hide from a stop by it, but only the owner may read the run.
        """
        directory = self.directory(key)
        if self.owner.recorded(directory.path / "run.json") is None and os.path.lexists(directory.path):
            raise InvalidRequest("key: whose run that is cannot be told: its run.json is missing or unreadable")
        return directory

    def is_foreign(self, run: str) -> bool:
        """Whether this host keeps runs of that id, and other Temporal namespaces' alone."""
        above = self._runs / _safe(run)
        owned = {self.owner.recorded(above / each / "run.json") for each in disk.names(above)}
        return False in owned and True not in owned

    def create(self, key: RunKey, runtime: JsonObject | None = None) -> RunDirectory:
        """The run's directory, made if it is not there. Raises InvalidRequest as `directory` does.

        `runtime`: that of the request, for run.json; None: as far as can be told.
        """
        directory = self.directory(key)
        meta = directory.path / "run.json"
        if self.owner.recorded(meta) is None:
            for path in (self._runs.parent, self._runs, directory.path.parent, directory.path):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = {"run": key.run, "execution": key.execution, "created": time.time(), **asdict(self.owner)}
            facts["beginning"] = secrets.token_hex(8)
            facts["runtime"] = directory.placement if runtime is None else runtime
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

    def discard_unbegun(self, key: RunKey) -> None:
        """Remove the empty files of a run of which nothing could be written down, as on a full disk: without run.json
        no sweep would ever know whose they are. Never raises.
        """
        path = self._path(key)
        with suppress(OSError):
            if os.path.lexists(path / "run.json"):
                return
            for each in path.iterdir():
                if each.is_file() and not each.is_symlink() and each.stat().st_size == 0:
                    each.unlink()
            path.rmdir()
            path.parent.rmdir()

    def _path(self, key: RunKey) -> Path:
        return self._runs / _safe(key.run) / _safe(key.execution)

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
        """Count one more failure to lead this run; returns how many there have been."""
        descriptor = disk.open_regular(self.directory(key).path / "failures", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as file:
            file.write(b"x")
            file.flush()
            return os.fstat(descriptor).st_size

    def set_aside(self, directory: RunDirectory) -> None:
        """Rename a run's directory, so that its key is free for a new beginning."""
        directory.path.rename(directory.path.with_name(f"{directory.path.name}.{time.time_ns()}"))

    def remove(self, directory: RunDirectory) -> int:
        """Delete a run's state; the bytes freed. Raises OSError where it cannot be deleted, as on a read-only disk."""
        size = disk.size(directory.path)
        disk.remove_tree(directory.path, last=("events.jsonl", "run.json"))
        if os.path.lexists(directory.path):
            shutil.rmtree(directory.path)  # to hear why
        try:
            directory.path.parent.rmdir()
        except OSError:
            pass  # another execution of the same run id is kept
        return size


def _listed(directory: Path) -> list[str]:
    """The names in a directory; none where it is gone or no directory. Raises OSError where that cannot be told."""
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
