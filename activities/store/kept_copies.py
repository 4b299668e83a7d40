"""Where the copies of workspaces are, and which of them outlive a run: a loop's runs work in one after another.

copies/<id>/                        one that is kept, where it is on this machine
      /<id>.json                    whose it is, where it is, and which run took it last
runs/<run>/<execution>/copy         the run's own, or a file: it is elsewhere, or which kept one the run has

The run's file is what counts: as long as it is there the copy is that run's, and no other one takes it. Agents run as
the same user and may write here: a forged file can have one loop's copy taken for another's.
"""

import asyncio
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from activities.store import disk
from activities.store.directory_lock import exclusively
from activities.store.notes import note, noted
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from steersman.contracts.activities import RunKey
from steersman.contracts.model import JsonObject

_ID = re.compile(r"[0-9a-f]{32}")
_KEPT = re.compile(r"kept as ([0-9a-f]{32})\n")


@dataclass(frozen=True)
class CopyLocation:
    """Where a copy is: `placement` as RunDirectory has it, which is to be read as hostile; `path` where that is this
    machine; `id`: a name that no other copy has anywhere.
    """

    placement: JsonObject
    path: Path
    id: str


class _Record(BaseModel):
    """`holder`: the directory of the run that took it last, `maker`: of the one that it was made for. `retired`: it is
    to be removed, and nobody takes it.
    """

    cluster: str
    namespace: str
    loop: RunKey
    placement: JsonObject
    holder: str
    maker: str = ""
    retired: bool = False


class KeptCopies:
    """`state`: the state directory. `owner`: whose copies these are."""

    def __init__(self, state: Path, owner: Ownership) -> None:
        self._place, self._owner = state / "copies", owner

    def location(self, run: RunDirectory) -> CopyLocation:
        """Where the run's copy is, or will be."""
        kept = self._of(run.path)
        if kept is None:
            return CopyLocation(run.placement, run.path / "copy", run.id)
        return CopyLocation(run.placement, self._place / kept, kept)

    def is_kept(self, run: RunDirectory) -> bool:
        """Whether the run works in a copy that outlives it."""
        return self._of(run.path) is not None

    def was_taken_over(self, run: RunDirectory) -> bool:
        """Whether the copy that the run has was another run's before: that one may have left work in it."""
        kept = self._of(run.path)
        found = noted(self._file(kept), _Record) if kept else None
        return found is not None and found.maker != str(run.path)

    async def take(self, run: RunDirectory, loop: RunKey) -> None:
        """Have the run work in a copy of this loop that no other run has, or in a new one. Twice is once.

        Raises OSError.
        """
        if not await asyncio.to_thread(self.is_kept, run):
            await exclusively(self._place, lambda: self._take(run, loop))

    async def leave(self, run: RunDirectory) -> None:
        """The run's copy is gone; one that is its own and here was removed before. Raises OSError."""
        await asyncio.to_thread((run.path / "copy").unlink, missing_ok=True)

    async def note_elsewhere(self, run: RunDirectory) -> None:
        """The run has a copy of its own on another machine. Raises OSError."""
        await asyncio.to_thread(disk.write_new, run.path / "copy", "on another machine\n")

    def loops(self) -> dict[str, RunKey]:
        """Id -> loop of every copy that is kept."""
        return {id: record.loop for id, record in self._records()}

    async def retire(self, id: str) -> CopyLocation | None:
        """Have no run take the copy any more; where it is, for whoever removes it then. None where a run has it.

        Raises OSError.
        """
        return await exclusively(self._place, lambda: self._retire(id))

    def forget(self, id: str) -> None:
        """A copy that was retired has been removed. Raises OSError."""
        self._file(id).unlink(missing_ok=True)

    def _take(self, run: RunDirectory, loop: RunKey) -> None:
        record = _Record(
            cluster=self._owner.cluster,
            namespace=self._owner.namespace,
            loop=loop,
            placement=run.placement,
            holder=str(run.path),
            maker=str(run.path),
        )
        free = (
            (id, found.maker)
            for id, found in self._records()
            if (found.loop, found.placement, found.retired) == (loop, run.placement, False) and not self._has(found, id)
        )
        id, maker = next(free, (secrets.token_hex(16), record.maker))
        note(self._file(id), record.model_copy(update={"maker": maker}))
        disk.write_new(run.path / "copy", f"kept as {id}\n")

    def _retire(self, id: str) -> CopyLocation | None:
        found = noted(self._file(id), _Record)
        if found is None or self._has(found, id):
            return None
        note(self._file(id), found.model_copy(update={"retired": True}))
        return CopyLocation(found.placement, self._place / id, id)

    def _has(self, record: _Record, id: str) -> bool:
        return self._of(Path(record.holder)) == id

    def _of(self, run: Path) -> str | None:
        """The kept copy that the run in this directory has."""
        try:
            found = _KEPT.fullmatch(disk.read_text(run / "copy"))
        except (OSError, UnicodeDecodeError):
            return None
        return found[1] if found else None

    def _records(self) -> Iterator[tuple[str, _Record]]:
        for name in disk.names(self._place):
            id = name.removesuffix(".json")
            if name.endswith(".json") and _ID.fullmatch(id):
                record = noted(self._place / name, _Record)
                if record and (record.cluster, record.namespace) == (self._owner.cluster, self._owner.namespace):
                    yield id, record

    def _file(self, id: str) -> Path:
        return self._place / f"{id}.json"
