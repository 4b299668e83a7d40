"""Inputs and results of the activities of loops.

They are in recorded histories: only fields with defaults may be added.
"""

from steersman.contracts.loop import Items, LoopLimits, LoopRequest, PlanFile
from steersman.contracts.loop_state import Checkpoint, ItemList, Phase, PlanVersion
from steersman.contracts.model import TolerantModel
from steersman.contracts.request import RunRequest


class LoopKey(TolerantModel):
    """What names a loop on disk: its workflow id and Temporal's first run id."""

    loop: str
    execution: str


class AdmitLoop(TolerantModel):
    """Input of admit_loop, which fails with a RunError's type where the loop may not run on the host."""

    request: LoopRequest


class SurveyInput(TolerantModel):
    """Input of survey_workspace: read items and files, and keep the files as a checkpoint."""

    key: LoopKey
    run: RunRequest
    """The run's template: its workspace, and the environment of commands."""
    plan: PlanFile | None = None
    """The plan; None where it is a text."""
    items: Items | None = None
    number: int | None = None
    """The checkpoint as which to keep the files; None: keep none."""
    message: str = ""
    """The message of the checkpoint's commit, after its number."""


class Survey(TolerantModel):
    """Result of survey_workspace."""

    commit: str | None = None
    """The checkpoint's commit; None without `number`, or where the workspace is in no git repository."""
    head: str | None = None
    files: str = ""
    """Fingerprint of all files that git does not ignore: a git tree, or a hash where there is no repository."""
    plan_hash: str = ""
    """Hash of the plan's file or directory; ticking a checkbox does not change it."""
    phases: tuple[Phase, ...] = ()
    """In the order of their work; empty for a plan of one file."""
    items: ItemList | None = None
    error: str | None = None
    """Why the files could not be kept, or not be looked at, in a sentence."""


class RestoreInput(TolerantModel):
    """Input of restore_checkpoint: restore the workspace's files. A rescue checkpoint was made before."""

    key: LoopKey
    run: RunRequest
    source: str
    """The id of the loop whose checkpoint it is: this one or another."""
    number: int
    commit: str | None = None
    """The checkpoint's commit. A ref that names another commit was overwritten, and is not restored."""
    unkept: str | None = None
    """Why the files that are there now could not be kept: nothing is restored over them then."""


class Restored(TolerantModel):
    """Result of restore_checkpoint."""

    changed: int = 0
    """The number of files written or removed."""
    error: str | None = None
    """Why nothing was restored: no repository, the checkpoint's files are gone, or what is there now is not kept."""


class DropInput(TolerantModel):
    """Input of drop_checkpoints, also a standalone activity on the host's queue: remove checkpoints' git refs."""

    loop: str
    workspace: str
    numbers: tuple[int, ...] = ()
    all: bool = False


class Dropped(TolerantModel):
    """Result of drop_checkpoints."""

    numbers: tuple[int, ...] = ()


class KeptInput(TolerantModel):
    """Input of list_checkpoints, a standalone activity on the host's queue: which still have their files?"""

    loop: str
    workspace: str


class Kept(TolerantModel):
    """Result of list_checkpoints: numbers in ascending order."""

    numbers: tuple[int, ...] = ()


class DiffInput(TolerantModel):
    """Input of diff_checkpoints, a standalone activity on the host's queue."""

    loop: str
    workspace: str
    older: int
    newer: int | None = None
    """None: the workspace's files now."""
    max_bytes: int = 500_000


class ForkInput(TolerantModel):
    """Input of read_fork_point, which queries another loop's workflow."""

    loop: str
    number: int


class ForkPoint(TolerantModel):
    """Result of read_fork_point, and of the loop's query `fork_point`."""

    checkpoint: Checkpoint
    plan: PlanVersion
    workspace: str
    host: str
    open: bool
    """Whether that loop is open."""
    limits: LoopLimits = LoopLimits()
    """The loop's limits now, with the changes of `set_limits`."""


class LookInput(TolerantModel):
    """Input of look_at_run, whose result is the RunState of a run that closed without a result."""

    run: str
