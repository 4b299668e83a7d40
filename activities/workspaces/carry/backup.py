"""Snapshots of a copy that are taken while an agent works in it, in case its machine is lost with it.

They are kept beside the workspace's repository, which never has objects of them unless one is kept for the user:

    DIRECTORY/pack/         what they have beyond the snapshot that was carried out
             /incoming/     one on its way

When one is taken, and which counts, must not live here.
"""

import asyncio
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from activities.workspaces.carry import snapshots
from activities.workspaces.carry.carrier import (
    Carried,
    RefNames,
    WorkspaceCarrier,
    copy_header,
    export,
    keep_aside,
    snapshot_header,
)
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.carry.copy_program import quoted
from activities.workspaces.carry.incoming import move_packs, received
from activities.workspaces.carry.snapshots import Snapshot
from activities.workspaces.carry.work_tree import is_safe
from activities.workspaces.git import checkpoint_commits as commits
from activities.workspaces.git.shadow import Shadow


@dataclass(frozen=True)
class CopyBackup:
    """`snapshot`, and the files in DIRECTORY/pack that have it; `size`: bytes of those that came for it."""

    snapshot: Snapshot
    packs: frozenset[str]
    size: int


class CopyBackups:
    """Those of one copy, in `directory`. Each method raises GitFailed, snapshots.NoSnapshot, OSError."""

    def __init__(self, carrier: WorkspaceCarrier, carried: Carried, names: RefNames, directory: Path) -> None:
        self._carrier, self._carried, self._names, self._directory = carrier, carried, names, directory

    async def take(self, copy: WorkspaceCopy, last: CopyBackup | None) -> CopyBackup:
        """Have a snapshot of the copy. `last`: what is new since that one comes; None: all since the carry-out.

        Raises CopyFailed, MachineUnreachable.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = await asyncio.to_thread(tempfile.TemporaryDirectory, dir=self._directory)
        try:
            pack = Path(scratch.name) / "pack"
            async with self._carrier.opened_again(self._carried) as shadow:
                base = await snapshots.read(shadow, self._carried.snapshot)
            header = snapshot_header(base, self._carried, self._names)
            header["have"] = [*base.had, *(last.snapshot.had if last else ())]
            header["anew"] = last is None
            snapshot = await copy.back_up(header, pack)
            size = (await asyncio.to_thread(pack.stat)).st_size
            async with self._carrier.opened_again(self._carried) as shadow:
                incoming, repository = self._directory / "incoming", self._carried.repository
                taking = received(shadow, snapshot, pack, incoming, self._directory, repository=repository)
                async with taking as (taken, packs):
                    moved = await asyncio.to_thread(move_packs, packs, self._directory / "pack")
        finally:
            await asyncio.to_thread(scratch.cleanup)
        return CopyBackup(taken, frozenset(moved).union(last.packs if last else ()), size)

    async def keep_only(self, packs: Collection[str]) -> None:
        """Remove what else is there."""

        def remove() -> None:
            for path in (self._directory / "pack").iterdir():
                if path.name not in packs:
                    path.unlink(missing_ok=True)

        await asyncio.to_thread(remove)

    async def restore(self, snapshot: str, workspace: Path, copy: WorkspaceCopy) -> None:
        """Make the copy, which is not there, of this snapshot. Raises CopyFailed, MachineUnreachable."""
        scratch = await asyncio.to_thread(tempfile.TemporaryDirectory, dir=self._directory)
        try:
            pack = Path(scratch.name) / "pack"
            async with self._carrier.opened_again(self._carried) as shadow:
                lent = self._lent(shadow)
                base = await snapshots.read(shadow, self._carried.snapshot)
                found = await snapshots.read(lent, snapshot)
                repository = self._carried.repository
                header = await copy_header(lent, found, workspace, self._names, repository=repository)
                header["refs"] = {**found.state.others, **found.state.refs}
                # What was carried out, too: by that the copy says in the end what has changed.
                header["size"] = await snapshots.pack(lent, (*found.tips, *base.tips), (), pack)
            await copy.receive(header, pack)
        finally:
            await asyncio.to_thread(scratch.cleanup)

    async def keep(self, snapshot: str, kept: Path) -> str | None:
        """Keep what the snapshot has changed for the user, at a ref or in the directory `kept`: which of them it is;
        None where nothing was changed.
        """
        async with self._carrier.opened_again(self._carried) as shadow:
            lent = self._lent(shadow)
            base = await snapshots.read(shadow, self._carried.snapshot)
            found = await snapshots.read(lent, snapshot)
            before, now = base.state, {**found.state.others, **found.state.refs}
            moved = {name: value for name, value in now.items() if before.refs.get(name) != value}
            if (base.tree, base.index) == (found.tree, found.index) and not moved:
                return None
            await asyncio.to_thread(move_packs, self._directory / "pack", shadow.repository.objects / "pack")
            if not self._carried.repository:
                changed = await commits.differences(shadow, base.tree, found.tree)
                if unsafe := [path for path in changed if not is_safe(path)]:
                    raise snapshots.NoSnapshot(f"the copy has a path that no work tree may have: {unsafe[0][:200]!r}")
                await export(shadow, base, found, kept)
                return str(kept)
            await keep_aside(shadow, found, moved, self._names.conflicts)
            return self._names.conflicts

    def _lent(self, shadow: Shadow) -> Shadow:
        """One that has the objects of snapshots, too."""
        return replace(shadow, git=shadow.with_variables(GIT_ALTERNATE_OBJECT_DIRECTORIES=quoted(str(self._directory))))
