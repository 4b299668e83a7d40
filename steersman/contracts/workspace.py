"""What the client asks of a host about a workspace's files: what a run changed there, its undoing, what is kept."""

from datetime import datetime
from typing import Literal

from steersman.contracts.activities import RunKey
from steersman.contracts.model import TolerantModel


class Diff(TolerantModel):
    """Result of diff_run and diff_checkpoints."""

    stat: str = ""
    patch: str = ""
    truncated: bool = False
    now: bool = False
    """Of diff_run: it is held against the files as they are, not as they were at the run's end."""


class LoopStep(TolerantModel):
    """The checkpoints of a loop before and after one of its runs; `newer` None: there is none after it."""

    loop: str
    older: int
    newer: int | None = None


class RunDiffInput(TolerantModel):
    """Input of diff_run, a standalone activity on the host's queue: a run's two commits of its workspace's files."""

    key: RunKey
    workspace: str
    before: str
    after: str | None = None
    """None: the workspace's files now."""
    max_bytes: int = 500_000
    step: LoopStep | None = None
    """Of a loop's run, whose commits are those of the loop's checkpoints."""


class UndoInput(TolerantModel):
    """Input of undo_run, a standalone activity on the host's queue."""

    key: RunKey
    workspace: str
    before: str
    after: str
    step: LoopStep | None = None
    """As in RunDiffInput."""


class Undone(TolerantModel):
    """Result of undo_run."""

    files: int = 0
    """Files that are as before the run again."""
    conflicts: tuple[str, ...] = ()
    """Paths that the run changed and that were left as they are, at most 1,000: somebody has changed them since, or
    something is in the way; and nested repositories.
    """
    unnamed_conflicts: int = 0
    """How many more there are."""
    rescue: str = ""
    """The commit of the files before the undo; empty where it changed none."""
    ref: str = ""
    """The ref that names it."""


WorkspaceCheckpointKind = Literal["baseline", "end", "rescue", "conflict", "loop"]
"""baseline, end: a run's files before its first process and after its last one. rescue: those before its changes were
undone. conflict: what could not be merged of a run's copy. loop: a loop's checkpoint.
"""


class ListWorkspaceCheckpoints(TolerantModel):
    """Input of list_workspace_checkpoints, a standalone activity on the host's queue: at most `limit`, the newest."""

    workspace: str
    limit: int = 100


class WorkspaceCheckpoint(TolerantModel):
    """A commit of a workspace's files that is kept in its repository, by what its ref says. An agent can write refs."""

    kind: WorkspaceCheckpointKind
    run: str | None = None
    loop: str | None = None
    """Whose it is, by workflow id; neither for one of another Temporal namespace, whose id is nobody else's affair."""
    number: int | None = None
    """Of a loop's checkpoint."""
    time: datetime | None = None
    """None where the commit cannot be read."""
    commit: str
    ref: str | None = None
    """The ref that keeps it; None for one of another Temporal namespace."""
    files: int | None = None
    insertions: int | None = None
    deletions: int | None = None
    """What differs from the baseline, of a run's end; from the checkpoint before it, of a loop's. None of others,
    and where that is not kept any more.
    """


class WorkspaceCheckpointPage(TolerantModel):
    """Result of list_workspace_checkpoints."""

    repository: str
    """The work tree that the workspace lies in: what is kept is that of its whole repository."""
    total: int
    """How many there are."""
    checkpoints: tuple[WorkspaceCheckpoint, ...] = ()
    """The newest of them first: at most `limit`, and as many as an answer can have."""
