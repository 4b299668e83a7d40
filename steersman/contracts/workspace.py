"""What the client asks of a host about the files of a workspace: what a run changed there, and its undoing."""

from steersman.contracts.activities import RunKey
from steersman.contracts.model import TolerantModel


class Diff(TolerantModel):
    """Result of diff_run and diff_checkpoints."""

    stat: str = ""
    patch: str = ""
    truncated: bool = False


class RunDiffInput(TolerantModel):
    """Input of diff_run, a standalone activity on the host's queue: a run's two commits of its workspace's files."""

    key: RunKey
    workspace: str
    before: str
    after: str | None = None
    """None: the workspace's files now."""
    max_bytes: int = 500_000


class UndoInput(TolerantModel):
    """Input of undo_run, a standalone activity on the host's queue."""

    key: RunKey
    workspace: str
    before: str
    after: str


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
    """The commit of the files before the undo."""
    ref: str = ""
    """The ref that names it."""
