"""Copies of workspaces for runs: made before the first process, merged into the workspace after the last one.

    runs/<run>/<execution>/copy/            the copy: see workspaces.carry.copy_program; a file where it is elsewhere,
                                            or a loop's: see store.kept_copies
                          /workspace.json   the workspace, before anything of it is kept
                          /carried.json     what was copied
                          /carried-back.json  what became of it
                          /partly-carried   a part of it is in the workspace, and the rest could not be carried back
                          /unreached        it is merged by whoever sees to it next, with no word of a person
                          /merging/         locked by who does that
                          /loss             why the copy's machine was lost, until there is another with a copy
                          /conflicts/       the copy's version of what could not be merged, for a workspace without git
    gates/<hash of the run's directory>     the run's directory: its changes could not be merged, and wait in its copy

A gate needs no release: it counts as long as the copy is there. Twice is once, for all of this.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from activities.run_backups import UNREADABLE, RunBackups, base_of, moment, names_of
from activities.run_changes import RunChanges
from activities.shim.client import MachineGone, MachineUnreachable, MachineUnusable
from activities.store import disk
from activities.store.directory_lock import exclusively
from activities.store.kept_copies import CopyLocation
from activities.store.notes import note as _note
from activities.store.notes import noted as _noted
from activities.store.run_directory import RunDirectory
from activities.workspaces.carry.carrier import Carried, PartlyCarried, Returned
from activities.workspaces.carry.copies import CopyFailed
from activities.workspaces.carry.snapshots import NoSnapshot
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.printable_text import printable
from steersman.contracts.activities import CarriedBack, RunKey
from steersman.contracts.errors import InvalidRequest, RunError, WorkspaceError
from steersman.contracts.run import CarriedWorkspace, Changes, Finalize

log = logging.getLogger("steersman.hosting")

MERGED_S = 0.1
"""Seconds between two looks whether another one has merged a copy."""
MAX_CONFLICTS = 1000
"""At most this many paths are named."""
_GIVEN_UP = CarriedBack(finalize=Finalize(status="none"))
_DISCARDED = "it was discarded"
_PARTLY = "a part of it is in the workspace already, and a retry brings the rest"
_IS_MERGED = "what waited to be merged into the workspace is being merged at the moment: try again when it is"
_STAYS = "what had been carried back of it stays in the workspace"


class RunCarry:
    """`state`: the state directory."""

    def __init__(self, backups: RunBackups, changes: RunChanges, state: Path) -> None:
        self.backups, self.sessions = backups, backups.sessions
        self._carrier, self._copies = backups.carrier, backups.copies
        self._changes, self._gates = changes, state / "gates"

    async def out(
        self,
        directory: RunDirectory,
        workspace: Path,
        include: tuple[str, ...] = (),
        loop: RunKey | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> CarriedWorkspace:
        """Copy the workspace (resolved). `include`: what of it is ignored and copied, too. `loop`: in whose copy the
        run works, which is brought up to date. `tell` hears what is waited for.

        Raises WorkspaceError, MachineUnreachable.
        """
        try:
            if loop:
                await self._copies.take(directory, loop)
            copy = await self.backups.copy_of(directory)
            # What became of an earlier copy says nothing of this one: a run that is reset begins with it once more.
            for name in ("carried-back.json", "partly-carried"):
                (directory.path / name).unlink(missing_ok=True)
            if not copy.is_here and not loop:
                await self._copies.note_elsewhere(directory)
            await copy.prepare(directory.key.run, tell)
            await asyncio.to_thread(_note, directory.path / "workspace.json", _Workspace(workspace=str(workspace)))
            carried = await self._carrier.carry_out(
                workspace,
                copy,
                names_of(directory),
                borrow=copy.is_here,
                refresh=loop is not None,
                include=include,
            )
        except (GitFailed, CopyFailed, NoSnapshot, MachineUnusable, OSError) as error:
            raise WorkspaceError(f"workspace: it cannot be copied: {printable(str(error))}") from error
        known = CarriedWorkspace(
            top=str(carried.top),
            repository=carried.repository,
            snapshot=carried.snapshot,
            files=carried.files,
            directory=carried.directory,
        )
        await asyncio.to_thread(_note, directory.path / "carried.json", known)
        return known

    async def again(
        self, directory: RunDirectory, carried: CarriedWorkspace, workspace: Path, include: tuple[str, ...]
    ) -> datetime | None:
        """The machine of the copy was lost: make both anew, of its backup, else of what was carried out before; when
        the backup was taken. Twice is once.

        Raises WorkspaceError, PlaceError, MachineUnreachable.
        """
        try:
            copy = await self.backups.copy_of(directory)
            await copy.prepare(directory.key.run)
            if not copy.outlives_machine and (time := await self._restored(directory, carried, workspace)):
                return time
            await self._carrier.carry_out(workspace, copy, names_of(directory), borrow=False, include=include)
        except (GitFailed, CopyFailed, NoSnapshot, MachineUnusable, OSError) as error:
            raise WorkspaceError(f"workspace: it cannot be copied: {printable(str(error))}") from error
        return None

    async def _restored(self, directory: RunDirectory, carried: CarriedWorkspace, workspace: Path) -> datetime | None:
        """As RunBackups.restore. One that cannot be used is done without. Raises MachineUnreachable."""
        try:
            return await self.backups.restore(directory, carried, workspace)
        except UNREADABLE as error:
            facts = {"run": directory.key.run, "error": printable(str(error))}
            log.warning("a backup cannot be used", extra={"action": "backup_unusable", "facts": facts})
            await asyncio.to_thread(self.backups.drop, directory)
            return None

    async def back(
        self, directory: RunDirectory, carried: CarriedWorkspace, workspace: Path, *, keep: bool
    ) -> CarriedBack:
        """Merge the copy into the workspace, and remove it where it is the run's own. Where that fails the copy stays,
        and is a gate. The agent's sessions come back first.

        `keep`: the copy stays anyway, as processes may be at work in it. Raises MachineUnreachable, OSError.
        """
        why = await asyncio.to_thread(self.loss, directory)
        if why is not None and not (await self.backups.copy_of(directory)).outlives_machine:
            lost = await self._lose(directory, carried, why or "its machine was lost")
            return await self.sessions.told(directory, lost)
        await self.sessions.back(directory, keep=keep)
        return await self.sessions.told(directory, await self._merge(directory, carried, workspace, keep=keep))

    async def _merge(
        self, directory: RunDirectory, carried: CarriedWorkspace, workspace: Path, *, keep: bool
    ) -> CarriedBack:
        known = await asyncio.to_thread(_noted, directory.path / "carried-back.json", CarriedBack)
        if known and known.finalize.status != "failed":
            if not keep:
                await self._let_go(directory)
            return known
        try:
            top = await asyncio.to_thread(self.backups.top, carried)
        except RunError as error:
            return await self.fail(directory, error.message)
        base = base_of(carried, top)
        try:
            returned = await self._returned(base, directory)
        except MachineGone as error:
            return await self._lose(directory, carried, printable(str(error)))
        except (GitFailed, CopyFailed, NoSnapshot, MachineUnusable, OSError) as error:
            # Another worker may have done it meanwhile: one that was frozen, and wakes.
            known = await asyncio.to_thread(_noted, directory.path / "carried-back.json", CarriedBack)
            if known and known.finalize.status != "failed":
                return known
            if isinstance(error, PartlyCarried):
                (directory.path / "partly-carried").touch(mode=0o600)
            return await self.fail(directory, printable(str(error)))
        back = await self._told(directory, carried, returned, workspace)
        await asyncio.to_thread(_note, directory.path / "carried-back.json", back)
        await asyncio.to_thread(self._open_gate, directory)
        if not keep:
            await self._let_go(directory)
        return back

    async def _returned(self, base: Carried, directory: RunDirectory) -> Returned:
        copy, title = await self.backups.copy_of(directory), f"run {directory.key.run}"
        back = partial(self._carrier.carry_back, base, copy, names_of(directory), title, directory.path / "conflicts")
        try:
            return await back()
        except MachineGone:
            if not copy.outlives_machine:
                raise
        await copy.prepare(directory.key.run)
        return await back()

    def note_loss(self, directory: RunDirectory, why: str) -> None:
        """Record that the machine of the run's copy was lost, and that there is no other with a copy yet. Blocks.

        Raises OSError.
        """
        disk.write_new(directory.path / "loss", why)

    def loss(self, directory: RunDirectory) -> str | None:
        """Why the machine was lost; None where there is one with a copy. Blocks."""
        try:
            return disk.read_text(directory.path / "loss")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            return ""

    def forget_loss(self, directory: RunDirectory) -> None:
        """There is another one, with all that was to be there. Raises OSError."""
        (directory.path / "loss").unlink(missing_ok=True)

    async def _lose(self, directory: RunDirectory, carried: CarriedWorkspace, error: str) -> CarriedBack:
        """Record that the copy is gone with its machine: nothing waits in it, so it is no gate. What its backup has is
        kept for the user. Raises OSError.
        """
        known = await asyncio.to_thread(_noted, directory.path / "carried-back.json", CarriedBack)
        if known and known.finalize.status == "failed" and known.finalize.ref:  # the backup may be gone by now
            await self._let_go(directory)
            return known
        told, ref = f"the copy is lost: {error}", None
        await self.backups.return_sessions(directory)
        try:
            kept = await self.backups.keep(directory, carried)
        except UNREADABLE as failure:
            kept, told = None, f"{told}; its backup cannot be read: {printable(str(failure))}"
        if kept:
            time, ref = kept
            what = (
                f"what it had at {moment(time)} is kept" if ref else f"nothing was changed there until {moment(time)}"
            )
            told = f"{told}; {what}"
        back = CarriedBack(finalize=Finalize(status="failed", error=told, ref=ref, lost=True), waits=False)
        await asyncio.to_thread(_note, directory.path / "carried-back.json", back)
        await asyncio.to_thread(self._open_gate, directory)
        await self._let_go(directory)
        return back

    async def fail(self, directory: RunDirectory, error: str, *, unreachable: bool = False) -> CarriedBack:
        """Record that the copy could not be merged: it stays, and is a gate. One that was merged already is not that.

        `unreachable`: because nobody reached it, see `settle`. Raises OSError.
        """
        known = await asyncio.to_thread(_noted, directory.path / "carried-back.json", CarriedBack)
        if known and known.finalize.status != "failed":
            return known
        if await asyncio.to_thread(self._is_partly_back, directory) and not error.startswith(_PARTLY):
            error = f"{_PARTLY}: {error}"
        back = CarriedBack(finalize=Finalize(status="failed", error=error))
        if await asyncio.to_thread(self.has_copy, directory):
            await asyncio.to_thread(self._close_gate, directory)
            await asyncio.to_thread(_note, directory.path / "carried-back.json", back)
            if unreachable:
                (directory.path / "unreached").touch(mode=0o600)
        return back

    async def settle(self, directory: RunDirectory) -> None:
        """See to the copy of a closed run of which nothing lives: one that was merged is removed, one that could not be
        because its machine was out of reach is merged. Raises MachineUnreachable, WorkspaceError, OSError.
        """
        if not await asyncio.to_thread(self.has_copy, directory):
            return
        if not await asyncio.to_thread(self.is_gate, directory):
            await self.remove(directory)
            return
        async with self._merging(directory, waits=False) as may_merge:
            if may_merge and await asyncio.to_thread(self.is_gate, directory):
                await self.retry(directory)

    async def leave_to_people(self, workspace: Path) -> None:
        """What waits to be merged into this workspace is merged by nobody but a person: it was taken back to an earlier
        state meanwhile.

        Raises WorkspaceError where something is being merged at the moment; OSError.
        """
        for directory in await asyncio.to_thread(self._waiting_for, workspace):
            try:
                await exclusively(directory / "merging", partial((directory / "unreached").unlink, missing_ok=True))
            except BlockingIOError as error:
                raise WorkspaceError(_IS_MERGED) from error

    def _waiting_for(self, workspace: Path) -> list[Path]:
        """Directories of runs whose copies wait to be merged into this workspace. Blocks. Raises OSError."""
        known = [(each, _noted(each / "carried.json", CarriedWorkspace)) for each in self._gated()]
        return [each for each, carried in known if carried and _concerns(Path(carried.top), workspace)]

    @asynccontextmanager
    async def _merging(self, directory: RunDirectory, *, waits: bool) -> AsyncIterator[bool]:
        """Whether the copy may be merged with no word of a person now, which it needs no more then. Not while another
        one does that, who is waited for where this `waits`.
        """
        mark = directory.path / "unreached"
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(disk.locked(directory.path / "merging"))
                    break
                except BlockingIOError:
                    if not waits:
                        yield False
                        return
                await asyncio.sleep(MERGED_S)
            if mark.exists() or not await asyncio.to_thread(self.is_gate, directory):
                yield True
                mark.unlink(missing_ok=True)
            else:
                yield False

    async def finish(
        self, directory: RunDirectory, *, reached: bool = True, known: CarriedBack | None = None
    ) -> CarriedBack | None:
        """As `back`, for a run that has closed unseen, by what is written down of it. None where it had no copy.

        `known`: what its workflow has heard of that: a copy that was merged is not merged again where the state
        directory, and what it has of the copy, is older.

        `reached`: False: its machine did not answer a moment ago, and is not waited for, see `settle`. Raises
        MachineUnreachable, OSError.
        """
        carried = await asyncio.to_thread(_noted, directory.path / "carried.json", CarriedWorkspace)
        if carried is None:
            return None
        back = await asyncio.to_thread(_noted, directory.path / "carried-back.json", CarriedBack)
        if back is None and known is not None and known.finalize.status != "failed":
            await asyncio.to_thread(_note, directory.path / "carried-back.json", known)
            back = known
        mark = directory.path / "unreached"
        if back is not None and not (reached and mark.exists()):
            return await self.sessions.told(directory, back)
        if not reached:
            return await self.fail(directory, "the machine on which it is cannot be reached", unreachable=True)
        # Whoever asks may not wait until it is merged: until then nobody else works in the workspace.
        await self.fail(directory, "it has not been merged yet, which a sweep does", unreachable=True)
        async with self._merging(directory, waits=True) as may_merge:
            if may_merge:
                return await self.back(directory, carried, Path(carried.top), keep=True)
        return await self.describe(directory)

    def changes(self, directory: RunDirectory) -> Changes | None:
        """What the run changed, of one in a copy that was merged. Blocks. Raises OSError."""
        back = _noted(directory.path / "carried-back.json", CarriedBack)
        return back.changes if back else None

    def covered(self, directory: RunDirectory) -> Path | None:
        """The work tree that the changes of a run in a copy are of, whatever directory of it is its workspace; None for
        another run. Blocks. Raises InvalidRequest, OSError.
        """
        carried = _noted(directory.path / "carried.json", CarriedWorkspace)
        return self.backups.top(carried) if carried and self.changes(directory) else None

    async def describe(self, directory: RunDirectory) -> CarriedBack:
        """What is written down of the run's copy. Raises InvalidRequest, OSError."""
        back = await asyncio.to_thread(_noted, directory.path / "carried-back.json", CarriedBack)
        if back is None:
            raise InvalidRequest(f"of a copy of run {directory.key.run} nothing is known")
        back = await self.sessions.told(directory, back)
        return back.model_copy(update={"waits": await asyncio.to_thread(self.has_copy, directory)})

    async def retry(self, directory: RunDirectory) -> CarriedBack:
        """Try again what had failed. Raises InvalidRequest, MachineUnreachable, OSError."""
        carried = await self._waiting(directory)
        return await self.back(directory, carried, Path(carried.top), keep=False)

    async def discard(self, directory: RunDirectory) -> CarriedBack:
        """Give up what could not be merged: the copy is removed. `finalize.error` says where a part of it was.

        Raises InvalidRequest, WorkspaceError, OSError.
        """
        await self._waiting(directory)
        stays = _STAYS if await asyncio.to_thread(self._is_partly_back, directory) else None
        try:
            await self._give_up(directory)
        except CopyFailed as error:
            raise WorkspaceError(str(error)) from error
        if not await asyncio.to_thread(self.has_copy, directory):  # else a sweep removes what is no gate any more
            told = f"{_DISCARDED}; {stays}" if stays else _DISCARDED
            discarded = CarriedBack(finalize=Finalize(status="failed", error=told), waits=False)
            await asyncio.to_thread(_note, directory.path / "carried-back.json", discarded)
        return CarriedBack(finalize=Finalize(status="none", error=stays))

    async def abandon(self, directory: RunDirectory) -> None:
        """Give up the copy of a run in which no process has worked, as far as that can be done now. Raises OSError.

        A loop's, in which an earlier run has worked, is for the next one: what that one has built is in it.
        """
        if not await asyncio.to_thread(self.has_copy, directory):
            return
        if await asyncio.to_thread(self._copies.was_taken_over, directory):
            await self._copies.leave(directory)
            return
        try:
            await self._give_up(directory)
        except CopyFailed:
            await asyncio.to_thread(_note, directory.path / "carried-back.json", _GIVEN_UP)

    async def _give_up(self, directory: RunDirectory) -> None:
        """Remove the copy: a sweep does, where its machine cannot be reached or has to be mended first. Raises
        CopyFailed, OSError.
        """
        try:
            await self._remove(directory)
        except MachineUnreachable:
            await asyncio.to_thread(_note, directory.path / "carried-back.json", _GIVEN_UP)
        await asyncio.to_thread(self._open_gate, directory)

    async def remove(self, directory: RunDirectory) -> None:
        """Remove the run's copy, whatever is in it. Raises WorkspaceError, MachineUnreachable, OSError."""
        await self.sessions.back(directory, keep=False)
        if not await asyncio.to_thread(self.has_copy, directory):
            return
        try:
            await self._remove(directory)
        except (CopyFailed, MachineUnusable) as error:
            raise WorkspaceError(str(error)) from error
        await asyncio.to_thread(self._open_gate, directory)

    async def remove_kept(self, is_closed: Callable[[RunKey], Awaitable[bool]]) -> None:
        """Remove the copies of loops that have closed; one that cannot be now, another time."""

        async def remove(id: str, loop: RunKey) -> None:
            try:
                if not await is_closed(loop) or (where := await self._copies.retire(id)) is None:
                    return
                await (await self.backups.copy_at(where)).remove()
                await asyncio.to_thread(self._copies.forget, id)
            except (CopyFailed, MachineUnreachable, OSError) as error:  # a sweep has more to do, on a full disk, too
                facts = {"loop": loop.run, "error": printable(str(error))}
                log.warning("a loop's copy could not be removed", extra={"action": "copy_left", "facts": facts})

        # At once: a machine that does not answer is waited for.
        kept = await asyncio.to_thread(self._copies.loops)
        await asyncio.gather(*(remove(id, loop) for id, loop in kept.items()))

    async def forget(self, directory: RunDirectory) -> None:
        """Remove what was kept of the run in its workspace's repository, but for conflicts. Raises nothing."""
        carried = await asyncio.to_thread(_noted, directory.path / "carried.json", CarriedWorkspace)
        begun = await asyncio.to_thread(_noted, directory.path / "workspace.json", _Workspace)
        if where := carried.top if carried else begun.workspace if begun else None:
            with suppress(GitFailed, OSError, ValueError, RunError):
                top = await asyncio.to_thread(self.backups.directory, where)
                await self._carrier.forget(top, names_of(directory))

    def where(self, directory: RunDirectory) -> CopyLocation:
        """Where the run's copy is, or was."""
        return self._copies.location(directory)

    def has_copy(self, directory: RunDirectory) -> bool:
        """Whether there is something of a copy."""
        return os.path.lexists(directory.path / "copy")

    def is_gate(self, directory: RunDirectory) -> bool:
        """Whether changes of this run, which has closed, wait in its copy, because they were not merged."""
        back = _noted(directory.path / "carried-back.json", CarriedBack)
        was_copied = _noted(directory.path / "carried.json", CarriedWorkspace) is not None
        return was_copied and (back is None or back.finalize.status == "failed") and self.has_copy(directory)

    def check_gates(self, workspace: Path) -> None:
        """Raises WorkspaceGated where changes of another run wait to be merged into this workspace (resolved)."""
        for directory in self._gated():
            carried = _noted(directory / "carried.json", CarriedWorkspace)
            back = _noted(directory / "carried-back.json", CarriedBack)
            if carried and back and _concerns(Path(carried.top), workspace):
                run = _noted(directory / "carried-by.json", _Run)
                raise WorkspaceGated(run.run if run else directory.name, back.finalize.error)

    def _gated(self) -> Iterator[Path]:
        for name in disk.names(self._gates):
            with suppress(OSError):
                directory = Path(disk.read_text(self._gates / name).strip())
                if os.path.lexists(directory / "copy"):
                    yield directory

    async def _waiting(self, directory: RunDirectory) -> CarriedWorkspace:
        carried = await asyncio.to_thread(_noted, directory.path / "carried.json", CarriedWorkspace)
        if carried is None or not await asyncio.to_thread(self.is_gate, directory):
            raise InvalidRequest(f"run {directory.key.run} has no changes that wait to be carried back")
        return carried

    async def _told(
        self, directory: RunDirectory, carried: CarriedWorkspace, returned: Returned, workspace: Path
    ) -> CarriedBack:
        names = [printable(os.fsdecode(path)) for path in returned.conflicts[:MAX_CONFLICTS]]
        conflicted = bool(returned.conflicts or returned.kept)
        finalize = Finalize(
            status="conflicted" if conflicted else "succeeded" if returned.changed else "none",
            commit=returned.commit,
            conflicts=tuple(names),
            unnamed_conflicts=max(len(returned.conflicts) - MAX_CONFLICTS, 0),
            ref=returned.kept,
        )
        if not carried.repository:
            return CarriedBack(finalize=finalize)
        changes = await self._changes.between(directory, workspace, Path(carried.top), returned.before, returned.files)
        return CarriedBack(finalize=finalize, changes=changes)

    def _is_partly_back(self, directory: RunDirectory) -> bool:
        return os.path.lexists(directory.path / "partly-carried")

    def _close_gate(self, directory: RunDirectory) -> None:
        self._gates.mkdir(mode=0o700, exist_ok=True)
        _note(directory.path / "carried-by.json", _Run(run=directory.key.run))
        gate = self._gate(directory)
        with suppress(FileExistsError):
            disk.write_new(gate, str(directory.path))

    def _open_gate(self, directory: RunDirectory) -> None:
        self._gate(directory).unlink(missing_ok=True)

    def _gate(self, directory: RunDirectory) -> Path:
        return self._gates / hashlib.sha256(os.fsencode(directory.path)).hexdigest()[:32]

    async def _let_go(self, directory: RunDirectory) -> None:
        """What was merged: a copy that is kept is for the loop's next run. Raises OSError."""
        await asyncio.to_thread(self.backups.drop, directory)
        if await asyncio.to_thread(self._copies.is_kept, directory):
            await self._copies.leave(directory)
        elif await asyncio.to_thread(self.has_copy, directory):
            with suppress(CopyFailed, MachineUnreachable):  # it goes with the run's directory
                await self._remove(directory)

    async def _remove(self, directory: RunDirectory) -> None:
        copy = await self.backups.copy_of(directory)
        await copy.remove()
        await asyncio.to_thread(self.backups.drop, directory)
        await self._copies.leave(directory)


def _concerns(top: Path, workspace: Path) -> bool:
    return workspace.is_relative_to(top) or top.is_relative_to(workspace)


class WorkspaceGated(WorkspaceError):
    """Changes of another run wait to be merged into the workspace."""

    def __init__(self, run: str, error: str | None) -> None:
        super().__init__(
            f"workspace: what run {run} changed in its copy could not be carried back ({error}): "
            f"`steer workspace retry {run}`, or `discard {run}`, comes first",
            workspace_gate=run,
        )


class _Run(BaseModel):
    run: str


class _Workspace(BaseModel):
    workspace: str
