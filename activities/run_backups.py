"""What a run has done so far on a machine that can be lost for good, kept here while its agent works there.

    runs/<run>/<execution>/backup.json           the one that counts
                          /backup/pack/          its files: see workspaces.carry.backup
                          /backup/sessions-N/    the agent's sessions, as they were just before

One that was taken in part does not count. All of it goes once the copy was merged.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from activities.run_archives import CopyAt
from activities.run_changes import refs_of
from activities.run_sessions import RunSessions
from activities.shim.client import MachineUnreachable
from activities.store import disk
from activities.store.kept_copies import KeptCopies
from activities.store.notes import note, noted
from activities.store.run_directory import RunDirectory
from activities.workspaces.carry.backup import CopyBackup, CopyBackups
from activities.workspaces.carry.carrier import Carried, RefNames, WorkspaceCarrier
from activities.workspaces.carry.copies import CopyFailed, WorkspaceCopy
from activities.workspaces.carry.session_program import Failed
from activities.workspaces.carry.sessions import SessionsFailed
from activities.workspaces.carry.snapshots import NoSnapshot
from activities.workspaces.git.checkpoint_commits import REFS, quoted
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.printable_text import printable
from steersman.contracts.errors import InvalidRequest, RunError
from steersman.contracts.run import CarriedWorkspace

log = logging.getLogger("steersman.running")

MOST_INCREMENTS = 16
"""So often what is new is added to a backup; then it is taken anew, here and there, with what was dropped meanwhile."""
SPARE_BYTES = 64 * 1024 * 1024
"""It is taken anew also once it has this beyond twice what it then had."""
UNREADABLE = (GitFailed, NoSnapshot, RunError, OSError)
"""Of a backup, or of the workspace that it belongs to; never of the place."""

Within = Callable[[str, str], Path]
"""The real path of one of this name, if requests may work there. Raises InvalidRequest."""


class _Backup(BaseModel):
    snapshot: str
    time: datetime
    sessions: str | None = None


def names_of(directory: RunDirectory) -> RefNames:
    """Where the commits of a run's copy are kept in its workspace's repository."""
    return RefNames(refs_of(directory), f"{REFS}/conflicts/{quoted(directory.key.run)}")


def base_of(carried: CarriedWorkspace, top: Path) -> Carried:
    """What was carried out, as the carrier has it."""
    return Carried(top, carried.repository, carried.snapshot, carried.files, directory=carried.directory)


def moment(time: datetime) -> str:
    """A moment, for people."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


class RunBackups:
    """`copies`: where the copies of runs are. `within`: where requests may work."""

    def __init__(
        self, carrier: WorkspaceCarrier, copies: KeptCopies, copy_at: CopyAt, sessions: RunSessions, within: Within
    ) -> None:
        self.sessions, self._within = sessions, within
        self.carrier, self.copies, self.copy_at = carrier, copies, copy_at

    def of(self, directory: RunDirectory, carried: CarriedWorkspace, interval_s: float) -> "RunBackup":
        """Those of a run that is led."""
        return RunBackup(self, directory, carried, interval_s)

    def sessions_of(self, directory: RunDirectory) -> Path | None:
        """Where it has the agent's sessions. Blocks."""
        known = self._known(directory)
        name = known.sessions if known else None
        return self._place(directory) / name if name and "/" not in name and name != ".." else None

    async def restore(self, directory: RunDirectory, carried: CarriedWorkspace, workspace: Path) -> datetime | None:
        """Make the copy, which was lost, of the backup; when that was taken. None where there is none.

        Raises CopyFailed, MachineUnreachable, and what `UNREADABLE` names.
        """
        known = await asyncio.to_thread(self._known, directory)
        if known is None:
            return None
        copy = await self.copy_of(directory)
        await self.backups(directory, carried).restore(known.snapshot, workspace, copy)
        return known.time

    async def keep(self, directory: RunDirectory, carried: CarriedWorkspace) -> tuple[datetime, str | None] | None:
        """The copy was lost for good: keep what the backup has for the user; see CopyBackups.keep. None where there is
        none. Raises what `UNREADABLE` names.
        """
        known = await asyncio.to_thread(self._known, directory)
        if known is None:
            return None
        kept = directory.path / "conflicts"
        return known.time, await self.backups(directory, carried).keep(known.snapshot, kept)

    async def return_sessions(self, directory: RunDirectory) -> None:
        """The copy was lost for good: bring back the sessions that the backup has. Raises nothing."""
        try:
            if place := await asyncio.to_thread(self.sessions_of, directory):
                await self.sessions.back_from(directory, place)
        except (Failed, OSError) as error:
            facts = {"run": directory.key.run, "error": printable(str(error))}
            log.warning("sessions could not be brought back", extra={"action": "sessions_not_carried", "facts": facts})

    def drop(self, directory: RunDirectory) -> None:
        """Remove it. Blocks; raises nothing."""
        (directory.path / "backup.json").unlink(missing_ok=True)
        shutil.rmtree(self._place(directory), ignore_errors=True)

    def backups(self, directory: RunDirectory, carried: CarriedWorkspace) -> CopyBackups:
        """Those of the run's copy. Raises RunError."""
        base = base_of(carried, self.top(carried))
        return CopyBackups(self.carrier, base, names_of(directory), self._place(directory))

    def top(self, carried: CarriedWorkspace) -> Path:
        """Where the run's changes belong. Raises InvalidRequest."""
        return self.directory(carried.top)

    def directory(self, path: str) -> Path:
        """What is written down of where that is, as an agent of this machine can have done. Raises InvalidRequest."""
        found = self._within(path, "the run's workspace")
        if str(found) != path:
            raise InvalidRequest(f"the run's workspace: {path} leads to {found} by now")
        return found

    async def copy_of(self, directory: RunDirectory) -> WorkspaceCopy:
        """The run's copy. Raises MachineUnreachable."""
        return await self.copy_at(await asyncio.to_thread(self.copies.location, directory))

    def _known(self, directory: RunDirectory) -> _Backup | None:
        return noted(directory.path / "backup.json", _Backup)

    def _place(self, directory: RunDirectory) -> Path:
        return directory.path / "backup"


class RunBackup:
    """See ports.backup. What it builds upon is this worker's own: another one begins anew."""

    def __init__(
        self, backups: RunBackups, directory: RunDirectory, carried: CarriedWorkspace, interval_s: float
    ) -> None:
        self._backups, self._directory, self._carried = backups, directory, carried
        self.interval_s = interval_s
        self._last: CopyBackup | None = None
        self._taking = asyncio.Lock()
        self._increments = self._first_size = self._size = 0

    async def take(self) -> str | None:
        """See Backup."""
        try:
            place = self._directory.path / "backup"
            await asyncio.to_thread(place.mkdir, mode=0o700, exist_ok=True)
            async with self._taking:  # the last one, of a pod that is to go, comes after the one that is under way
                with disk.locked(place):
                    await self._take(place)
        except BlockingIOError:
            return "another worker is at it"
        except (*UNREADABLE, CopyFailed, SessionsFailed, Failed, MachineUnreachable) as error:
            self._last = None  # perhaps what it would build upon is not there
            return printable(str(error))[:1000]
        return None

    async def _take(self, place: Path) -> None:
        began = datetime.now(UTC)
        is_full = self._increments >= MOST_INCREMENTS or self._size > 2 * self._first_size + SPARE_BYTES
        last = None if is_full else self._last
        # Sessions first: what an agent believes to have done must be in the files.
        sessions = await self._take_sessions(place)
        copy = await self._backups.copy_of(self._directory)
        backups = self._backups.backups(self._directory, self._carried)
        taken = await backups.take(copy, last)
        if last is None:
            self._increments, self._first_size, self._size = 0, taken.size, taken.size
        else:
            self._increments, self._size = self._increments + 1, self._size + taken.size
        counts = _Backup(snapshot=taken.snapshot.id, time=began, sessions=sessions)
        await asyncio.to_thread(note, self._directory.path / "backup.json", counts)
        self._last = taken
        await backups.keep_only(taken.packs)
        await asyncio.to_thread(_remove_other_sessions, place, place / sessions)

    async def _take_sessions(self, place: Path) -> str:
        # Those of tries that came to nothing must not add up.
        counted = await asyncio.to_thread(self._backups.sessions_of, self._directory)
        await asyncio.to_thread(_remove_other_sessions, place, counted)
        name = f"sessions-{time.time_ns()}"
        await self._backups.sessions.back_up(self._directory, place / name)
        return name


def _remove_other_sessions(place: Path, kept: Path | None) -> None:
    for path in place.glob("sessions-*"):
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)
