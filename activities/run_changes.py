"""What a run changes in its workspace: checkpoints of the files before its first process and after its last one, their
difference, and its undoing.

    runs/<run>/<execution>/baseline.json   the first checkpoint's commit, and the workspace
    workspaces/<hash of its path>/         our git directory for the workspace: see workspaces.git.shadow

Of workspaces in a git repository alone, and of no run that may only read. Nothing of this fails a run.
"""

import asyncio
import hashlib
import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from activities.store import disk
from activities.store.run_directory import RunDirectory
from activities.workspaces.checkpoints import NoRepository, WorkspaceCheckpoints
from activities.workspaces.git.checkpoint_commits import REFS, NoCheckpoint, quoted
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.printable_text import printable
from steersman.contracts.run import Changes
from steersman.contracts.workspace import Diff, Undone

log = logging.getLogger("steersman.running")

BASELINE_S = 10.0
"""A run's first process waits this many seconds for the checkpoint before it; then the run goes without."""
END_S = 20.0
"""The checkpoint after the last process, and its comparison, may take this many seconds."""
BEFORE, AFTER = 0, 1
"""The checkpoints' numbers; of what an undo found, the time in ns."""


class RunChanges:
    """What runs of this host change. `state`: the state directory."""

    def __init__(self, checkpoints: WorkspaceCheckpoints, state: Path) -> None:
        self._checkpoints, self._shadows = checkpoints, state / "workspaces"

    async def keep(self, directory: RunDirectory, workspace: Path, number: int, message: str) -> str:
        """A checkpoint of the files as they are; its commit. Raises NoRepository, GitFailed, OSError."""
        run = directory.key.run
        text = f"{run}: {message}\n"
        return await self._checkpoints.commit(self._shadow(workspace), workspace, _ref(directory, number), text)

    async def finish(self, directory: RunDirectory, workspace: Path, before: str) -> Changes:
        """The checkpoint after a run's last process, and what differs from the one before its first. Raises nothing."""
        try:
            async with asyncio.timeout(END_S):
                after = await self.keep(directory, workspace, AFTER, "after its last process")
                counts = await self._checkpoints.count(self._shadow(workspace), workspace, before, after)
        except TimeoutError:
            return Changes(before=before, error=f"looking at the files took longer than {END_S:g} s and was given up")
        except (NoRepository, NoCheckpoint, GitFailed, OSError) as error:
            return Changes(before=before, error=printable(str(error)))
        files, insertions, deletions = counts
        return Changes(before=before, after=after, files=files, insertions=insertions, deletions=deletions)

    async def diff(self, workspace: Path, before: str, after: str | None, limit: int) -> Diff:
        """What differs between two checkpoints, or between one and the files as they are.

        Raises NoRepository, NoCheckpoint, GitFailed, OSError.
        """
        return await self._checkpoints.compare_commits(self._shadow(workspace), workspace, before, after, limit)

    async def undo(self, directory: RunDirectory, workspace: Path, before: str, after: str) -> Undone:
        """Take back what differs between two checkpoints, but for paths that have changed since the second one.

        Raises NoRepository, NoCheckpoint, GitFailed, OSError.
        """
        message = f"{directory.key.run}: before its changes were undone\n"
        rescue = _ref(directory, time.time_ns())
        undone = await self._checkpoints.undo(self._shadow(workspace), workspace, before, after, rescue, message)
        conflicts = tuple(sorted(printable(os.fsdecode(path)) for path in undone.conflicts))
        return Undone(files=undone.changed, conflicts=conflicts, rescue=undone.rescue, ref=rescue)

    async def forget(self, directory: RunDirectory) -> None:
        """Remove the run's checkpoints from its workspace's repository, where both are still there. Raises nothing."""
        if workspace := directory.baseline.get("workspace"):
            with suppress(NoRepository, GitFailed, OSError):
                await self._checkpoints.drop_refs(self._shadow(Path(workspace)), Path(workspace), _refs(directory))

    def prune(self, before: float) -> None:
        """Remove our git directories of workspaces in which no run was since that Unix time. Raises nothing."""
        for name in disk.names(self._shadows):
            with suppress(OSError):
                if (self._shadows / name).stat().st_mtime < before:
                    shutil.rmtree(self._shadows / name)

    def _shadow(self, workspace: Path) -> Path:
        path = self._shadows / hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
        for each in (self._shadows, path):
            each.mkdir(mode=0o700, exist_ok=True)
        os.utime(path)
        return path


class RunBaseline:
    """What one run found in its workspace; see ports.baseline. `workspace`: the real path of its directory."""

    def __init__(self, changes: RunChanges, directory: RunDirectory, workspace: Path, *, wanted: bool) -> None:
        self._changes, self._directory, self._workspace, self._wanted = changes, directory, workspace, wanted
        self._commit = directory.baseline.get("commit")

    @property
    def commit(self) -> str | None:
        return self._commit

    async def keep(self) -> str | None:
        if self._commit or not self._wanted:
            return None
        began = time.monotonic()
        try:
            async with asyncio.timeout(BASELINE_S):
                message = "before its first process"
                commit = await self._changes.keep(self._directory, self._workspace, BEFORE, message)
            await asyncio.to_thread(self._directory.note_baseline, commit, self._workspace)
        except NoRepository:
            return None
        except (GitFailed, OSError, TimeoutError) as error:
            took_s = time.monotonic() - began
            why = f"it took {took_s:.0f} s" if isinstance(error, TimeoutError) else printable(str(error))
            return f"what this run changes in its workspace will not be known: {why}"
        self._commit = commit
        return None


def _ref(directory: RunDirectory, number: int) -> str:
    return f"{_refs(directory)}{number}"


def _refs(directory: RunDirectory) -> str:
    """What the refs of one beginning of a run begin with; spread over directories, as there are many runs."""
    key = directory.agent_key
    name = quoted(f"{key.run}/{key.execution}")
    return f"{REFS}/runs%2F{hashlib.sha256(name.encode()).hexdigest()[:2]}/{name}-"
