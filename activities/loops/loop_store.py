"""The loops' directories on this machine: one for each loop, private to the worker's user.

loops/<loop id, quoted>/loop.json   the loop's owner; the file's modification time is when the loop was last used
                       /lock, git/  see git/shadow.py
                       /programs/   directories of running programs
"""

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from activities import untrusted_json
from activities.store import disk
from activities.store.identity import StoreIdentity
from activities.store.ownership import Ownership
from activities.workspaces.git.checkpoint_commits import quoted
from steersman.contracts.errors import InvalidRequest


@dataclass(frozen=True)
class LoopDirectory:
    """One loop's directory."""

    path: Path
    loop: str
    used: float
    """Unix time."""


class LoopStore:
    """All loops of this host."""

    def __init__(self, state: Path, owner: Ownership, identity: StoreIdentity | None = None) -> None:
        self._loops = state / "loops"
        self._owner = owner
        self._identity = identity

    def create(self, loop: str) -> Path:
        """The loop's directory, made if it is missing, and marked as used now.

        Raises InvalidRequest as `check` does, and StoreGone if the state directory is missing.
        """
        self.check(loop)
        if self._identity:
            self._identity.check()
        path = self._loops / quoted(loop)
        facts = json.dumps({"loop": loop, **asdict(self._owner)})
        try:
            if (path / "loop.json").read_text() == facts:
                os.utime(path / "loop.json")
                return path
        except OSError:
            pass
        for each in (self._loops.parent, self._loops, path):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path / f"loop.json.{secrets.token_hex(8)}"  # as run.json: two threads may be here
        temporary.touch(mode=0o600)
        temporary.write_text(facts)
        temporary.replace(path / "loop.json")
        return path

    def is_foreign(self, loop: str) -> bool:
        """Whether the directory is of another Temporal namespace's loop: people choose the ids."""
        return self._owner.recorded(self._loops / quoted(loop) / "loop.json") is False

    def check(self, loop: str) -> None:
        """Raises InvalidRequest if the loop is another Temporal namespace's."""
        if self.is_foreign(loop):
            raise InvalidRequest(f"loop {loop[:200]}: this host keeps a loop of that id for another Temporal namespace")

    def mine(self) -> Iterator[LoopDirectory]:
        """Every loop of this worker's own Temporal namespace."""
        for name in disk.names(self._loops):
            meta = self._loops / name / "loop.json"
            try:
                facts = untrusted_json.parse_object(meta.read_text())
                if (facts["cluster"], facts["namespace"]) == (self._owner.cluster, self._owner.namespace):
                    yield LoopDirectory(meta.parent, str(facts["loop"]), meta.stat().st_mtime)
            except (OSError, ValueError, KeyError):
                continue  # half-written or foreign: not to be pruned by this worker

    def remove(self, directory: LoopDirectory) -> int:
        """Delete a loop's directory, not its checkpoints; returns the bytes freed."""
        size = disk.size(directory.path)
        disk.remove_tree(directory.path, last=("loop.json",))
        return size
