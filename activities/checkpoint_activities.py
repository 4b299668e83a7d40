"""The activity that lists what is kept of a workspace's files. Comparing and undoing must not live here: see
host_activities and loop_activities.
"""

import asyncio
import os
from pathlib import Path

from temporalio import activity

from activities import kept_checkpoints
from activities.activity_helpers import as_application_error, git_errors, heartbeating
from activities.context import ActivityContext
from activities.loops.loop_store import LoopStore
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.checkpoint_commits import hashed
from activities.workspaces.git.kept_commits import Counts
from activities.workspaces.git.runner import GitFailed
from steersman import timeouts
from steersman.contracts import names
from steersman.contracts.workspace import ListWorkspaceCheckpoints, WorkspaceCheckpoint, WorkspaceCheckpointPage

COUNT_S = 30.0
"""Counting what differs may take this many seconds; then it is not told."""
MAX_LISTED = 10_000


class CheckpointActivities:
    """Stateless: any worker of the host can answer."""

    def __init__(self, context: ActivityContext, loops: LoopStore, checkpoints: WorkspaceCheckpoints) -> None:
        self._context, self._loops, self._checkpoints = context, loops, checkpoints

    @activity.defn(name=names.LIST_WORKSPACE_CHECKPOINTS)
    async def list_workspace_checkpoints(self, asked: ListWorkspaceCheckpoints) -> WorkspaceCheckpointPage:
        """What is kept in the workspace's repository, newest first."""
        async with heartbeating():
            with as_application_error(), git_errors():
                workspace = await asyncio.to_thread(self._context.policy.workspace, asked.workspace)
                directory = await asyncio.to_thread(self._directory, workspace)
                top, kept = await self._checkpoints.kept(directory, workspace)
                found = await asyncio.to_thread(kept_checkpoints.listed, kept)
                chosen = found[: max(0, min(asked.limit, MAX_LISTED))]
                shown = {each.ref for each, _ in chosen}
                pairs = {ref: pair for ref, pair in kept_checkpoints.pairs(found).items() if ref in shown}
                counts = await self._counts(directory, workspace, pairs)
                told = [each for each, _ in chosen]
                page = await asyncio.to_thread(kept_checkpoints.page, told, counts, self._is_foreign)
                return WorkspaceCheckpointPage(
                    repository=os.fsencode(top).decode("utf-8", "replace"), total=len(found), checkpoints=page
                )

    async def _counts(self, directory: Path, workspace: Path, pairs: dict[str, tuple[str, str]]) -> dict[str, Counts]:
        try:
            async with timeouts.timeout(COUNT_S):
                counted = await self._checkpoints.count_all(directory, workspace, pairs.values())
        except (TimeoutError, GitFailed):  # an agent may have spoiled what is kept
            return {}
        return {ref: counted[pair] for ref, pair in pairs.items() if pair in counted}

    def _is_foreign(self, each: WorkspaceCheckpoint) -> bool:
        if each.loop is not None:
            return self._loops.is_foreign(each.loop)
        return each.run is not None and self._context.store.is_foreign(each.run)

    def _directory(self, workspace: Path) -> Path:
        """A git directory of its own: a run that begins in the workspace does not wait for a list."""
        path = self._context.store.state / "workspaces" / hashed(b"kept\0" + os.fsencode(workspace))
        for each in (path.parent, path):
            each.mkdir(mode=0o700, exist_ok=True)
        os.utime(path)
        return path
