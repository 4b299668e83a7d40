"""What a run changes in its workspace: checkpoints of the files before its first process and after its last one, their
difference, and its undoing.

    runs/<run>/<execution>/baseline.json   the first checkpoint's commit, and the workspace
    workspaces/<hash of its path>/         our git directory for the workspace: see workspaces.git.shadow

Of workspaces in a git repository alone, and of no run that may only read. Nothing of this fails a run. A run's
checkpoints are of its workspace's directory; those of a run in a copy are of the whole work tree, as its merge is.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from activities.store import disk
from activities.store.run_directory import RunDirectory
from activities.workspaces.checkpoints import WorkspaceCheckpoints, make_empty_workspace
from activities.workspaces.git.checkpoint_commits import REFS, hashed, quoted
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadows import NoRepository
from activities.workspaces.printable_text import printable
from steersman import timeouts
from steersman.contracts.run import Changes
from steersman.contracts.workspace import Diff, Undone

BASELINE_S = 10.0
"""A run's first process waits this many seconds for the checkpoint before it; then the run goes without."""
END_S = 20.0
"""The checkpoint after the last process, its comparison, and the removal of both may take this many seconds each."""
MAX_NEW = 100 * 1024 * 1024
"""A run goes without where files that the user's index does not have are of more bytes: each start would write them."""
MAX_CONFLICTS = 1000
"""At most this many paths are named."""
IN_USE_S = 3600.0
"""A git directory that was used within this many seconds is not removed."""
BEFORE, AFTER, RESCUE = "before", "after", "undone"


class RunChanges:
    """What runs of this host change. `state`: the state directory."""

    def __init__(self, checkpoints: WorkspaceCheckpoints, state: Path) -> None:
        self._checkpoints, self._shadows = checkpoints, state / "workspaces"

    async def keep(self, directory: RunDirectory, workspace: Path, what: str) -> str:
        """A checkpoint of the files as they are; its commit. Raises NoRepository, GitFailed, OSError."""
        # A name of its own each time: a worker that thaws in here must not replace what another has kept since.
        name = f"{refs_of(directory)}{what}-{secrets.token_hex(8)}"
        message = f"{directory.key.run}: {what}\n"
        return await self._checkpoints.commit(self._shadow(workspace), workspace, name, message, MAX_NEW)

    async def finish(self, directory: RunDirectory, workspace: Path, before: str) -> Changes:
        """The checkpoint after a run's last process, and what differs from the one before its first. Raises nothing."""
        changes = Changes(before=before)
        try:
            async with timeouts.timeout(END_S):
                after = await self.keep(directory, workspace, AFTER)
                changes = changes.model_copy(update={"after": after})
                files, added, removed = await self._checkpoints.count(self._shadow(workspace), workspace, before, after)
        except TimeoutError:
            error = f"looking at the files took longer than {END_S:g} s and was given up"
        except Exception as failure:  # noqa: BLE001 - whatever an agent has made of its workspace, the run ends
            error = printable(str(failure)) or type(failure).__name__
        else:
            return changes.model_copy(update={"files": files, "insertions": added, "deletions": removed})
        return changes.model_copy(update={"error": error})

    async def between(self, directory: RunDirectory, workspace: Path, top: Path, before: str, after: str) -> Changes:
        """What differs in the work tree at `top` between two commits of files that are there, which are kept. Raises
        nothing.
        """
        changes = Changes(before=before, after=after)
        try:
            async with timeouts.timeout(END_S):
                shadow = self._shadow(top)
                for what, commit in ((BEFORE, before), (AFTER, after)):
                    name = f"{refs_of(directory)}{what}-{secrets.token_hex(8)}"
                    await self._checkpoints.keep(shadow, top, name, commit)
                await asyncio.to_thread(directory.note_baseline, before, workspace)
                files, added, removed = await self._checkpoints.count(shadow, top, before, after)
        except TimeoutError:
            return changes.model_copy(update={"error": "comparing the files took too long and was given up"})
        except Exception as failure:  # noqa: BLE001 - whatever an agent has made of its workspace, the run ends
            return changes.model_copy(update={"error": printable(str(failure)) or type(failure).__name__})
        return changes.model_copy(update={"files": files, "insertions": added, "deletions": removed})

    async def diff(self, covered: Path, before: str, after: str | None, limit: int) -> Diff:
        """What differs in a directory between two checkpoints, or between one and the files as they are.

        Raises NoRepository, NoCheckpoint, GitFailed, OSError.
        """
        return await self._checkpoints.compare_commits(self._shadow(covered), covered, before, after, limit)

    async def undo(
        self, directory: RunDirectory, workspace: Path, before: str, after: str, *, covered: Path | None = None
    ) -> Undone:
        """Take back what differs between two checkpoints, but for paths that have changed since the second one, in the
        directory that they cover; None: the workspace.

        Raises NoRepository, NoCheckpoint, GitFailed, OSError.
        """
        rescue = f"{refs_of(directory)}{RESCUE}-{time.time_ns()}"
        message = f"{directory.key.run}: before its changes were undone\n"
        covered = covered or workspace
        undone = await self._checkpoints.undo(self._shadow(covered), covered, before, after, rescue, message)
        await asyncio.to_thread(make_empty_workspace, workspace)
        conflicts = sorted(printable(os.fsdecode(path)) for path in undone.conflicts)
        return Undone(
            files=undone.changed,
            conflicts=tuple(conflicts[:MAX_CONFLICTS]),
            unnamed_conflicts=max(len(conflicts) - MAX_CONFLICTS, 0),
            rescue=undone.rescue,
            ref=rescue if undone.rescue else "",
        )

    async def forget(self, directory: RunDirectory) -> None:
        """Remove the run's checkpoints from its workspace's repository, where both are still there; what undos found
        stays. Raises nothing.
        """
        recorded = directory.baseline
        if not (place := recorded.get("workspace")):
            return
        if not await asyncio.to_thread(os.path.lexists, place):  # a worktree that its user has removed
            place = recorded.get("asked", place)
        workspace, refs = Path(place), refs_of(directory)
        with suppress(NoRepository, GitFailed, OSError, ValueError):
            async with timeouts.timeout(END_S):
                for what in (BEFORE, AFTER):
                    await self._checkpoints.drop_refs(self._shadow(workspace), workspace, f"{refs}{what}-")

    def prune(self, before: float) -> None:
        """Remove our git directories of workspaces that were not looked at since that Unix time. Raises nothing."""
        for name in disk.names(self._shadows):
            with suppress(OSError):
                path = self._shadows / name
                # What was copied of a workspace without a repository has its only base there.
                needed = any(each.is_file() for each in (path / "own" / "refs").rglob("*"))
                if not needed and path.stat().st_mtime < min(before, time.time() - IN_USE_S):
                    shutil.rmtree(path)

    def _shadow(self, workspace: Path) -> Path:
        path = self._shadows / hashed(os.fsencode(workspace))
        for each in (self._shadows, path):
            each.mkdir(mode=0o700, exist_ok=True)
        os.utime(path)
        return path


class RunBaseline:
    """What one run found in its workspace; see ports.baseline. `workspace`: the real path of the directory that it
    works in. `asked`: that of the one that was asked for, which is another one where it works in a worktree.
    """

    def __init__(
        self, changes: RunChanges, directory: RunDirectory, workspace: Path, asked: Path, *, wanted: bool
    ) -> None:
        self._changes, self._directory, self._wanted = changes, directory, wanted
        self._workspace, self._asked = workspace, asked

    @property
    def commit(self) -> str | None:
        return self._directory.baseline.get("commit")

    async def changes(self, limit: int) -> str:
        if not (before := self.commit):
            return ""
        try:
            async with timeouts.timeout(BASELINE_S):
                found = await self._changes.diff(self._workspace, before, None, limit)
        except Exception:  # noqa: BLE001 - whatever lies in a workspace, the run goes on
            return ""
        return found.patch[:limit]

    async def keep(self) -> str | None:
        if not self._wanted or self.commit:
            return None
        try:
            async with timeouts.timeout(BASELINE_S):
                commit = await self._changes.keep(self._directory, self._workspace, BEFORE)
            await asyncio.to_thread(self._directory.note_baseline, commit, self._workspace, self._asked)
        except NoRepository:
            return None
        except TimeoutError:
            why = f"it took {BASELINE_S:.0f} s"
        except Exception as failure:  # noqa: BLE001 - whatever lies in a workspace, the run goes without
            why = printable(str(failure)) or type(failure).__name__
        else:
            return None
        return f"what this run changes in its workspace will not be known: {why}"


def refs_of(directory: RunDirectory) -> str:
    """What the refs of one beginning of a run begin with; spread over directories, as there are many runs."""
    key = directory.agent_key
    name = quoted(f"{key.run}/{key.execution}")
    return f"{REFS}/runs%2F{hashlib.sha256(name.encode()).hexdigest()[:2]}/{name}-"
