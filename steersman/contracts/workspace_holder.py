"""Who has a workspace: one run or loop at a time works in a directory, in those inside it and those around it."""

from datetime import datetime
from typing import Final, Literal

from steersman.contracts.model import TolerantModel

OnOverlap = Literal["reject", "queue", "interrupt", "steer", "rollback"]
"""What becomes of a run whose workspace another one has. "reject": it fails, and says who has it. "queue": it waits its
turn. "interrupt": the other is ended with its turn, as `interrupt` with `end` does, or cancelled where it cannot be.
"steer": the other is given this run's prompt, and this run is done. "rollback": the other is cancelled, and what it
changed is undone.
"""
HolderKind = Literal["run", "loop", "workflow"]
"""`workflow`: one of another type, which has asked for the hold itself."""
FOREIGN: Final = "a run of another Temporal namespace"


def is_within(path: str, directory: str) -> bool:
    """Whether a path is that directory's, or leads into it. Both are absolute, all links followed."""
    return path == directory or path.startswith(directory if directory.endswith("/") else f"{directory}/")


def overlap(one: str, other: str) -> bool:
    """Whether one directory is the other, or lies inside it. Only the paths count."""
    return is_within(one, other) or is_within(other, one)


class WorkspaceHolder(TolerantModel):
    """A run or loop that has a workspace, or that waits for one."""

    kind: HolderKind = "run"
    id: str | None = None
    """The workflow id; None for one of another Temporal namespace, whose id is nobody else's affair."""
    path: str
    """The workspace, all links followed; empty where it lies outside of what the worker that tells it may use."""
    waits: bool = False
    """It has not got it yet."""
    on_overlap: OnOverlap = "reject"
    since: datetime
    """When it asked for it."""

    @property
    def name(self) -> str:
        """In a sentence: "run fix-1"."""
        return FOREIGN if self.id is None else f"{self.kind} {self.id}"
