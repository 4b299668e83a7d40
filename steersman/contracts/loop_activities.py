"""Inputs and outputs of the activities of loops. They are in recorded histories: fields with defaults only."""

from steersman.contracts.loop import Items, LoopLimits, LoopRequest, PlanFile
from steersman.contracts.loop_state import Checkpoint, ItemList, Phase, PlanVersion
from steersman.contracts.model import TolerantModel
from steersman.contracts.request import RunRequest


class LoopKey(TolerantModel):
    """One loop on disk: the workflow id and Temporal's first run id of it."""

    loop: str
    execution: str


class AdmitLoop(TolerantModel):
    """Input of admit_loop: may this loop run on this host? Fails with InvalidRequest and the like, at once."""

    request: LoopRequest


class SurveyInput(TolerantModel):
    """Input of survey_workspace: look, and keep what is there as a checkpoint."""

    key: LoopKey
    run: RunRequest
    """The run's template: workspace, and the environment of commands."""
    plan: PlanFile | None = None
    """None where the plan is a text."""
    items: Items | None = None
    number: int | None = None
    """Keep the files as this checkpoint; None only looks."""
    message: str = ""
    """What the checkpoint's commit says, beside its number."""


class Survey(TolerantModel):
    """Result of survey_workspace."""

    commit: str | None = None
    """The checkpoint's; None without `number`, or where the workspace is in no git repository."""
    head: str | None = None
    files: str = ""
    """Fingerprint of all files, ignored ones aside: a git tree, or a hash where there is no repository."""
    plan_hash: str = ""
    """Of the plan's file or directory, however its boxes are ticked."""
    phases: tuple[Phase, ...] = ()
    """In the order in which they are to be done; empty for a plan of one file."""
    items: ItemList | None = None
    error: str | None = None
    """Why the files could not be kept, in a sentence; the loop goes on without this checkpoint's files."""


class RestoreInput(TolerantModel):
    """Input of restore_checkpoint: the workspace's files as they were. A rescue checkpoint was made before."""

    key: LoopKey
    run: RunRequest
    source: str
    """Whose checkpoint: this loop's id, or another's."""
    number: int
    commit: str | None = None
    """The commit that was kept: a ref that names another one now was overwritten, and is not restored."""


class Restored(TolerantModel):
    """Result of restore_checkpoint."""

    changed: int = 0
    """Files written or removed."""
    error: str | None = None
    """Why nothing was restored: no repository, or the checkpoint's files are gone."""


class DropInput(TolerantModel):
    """Input of drop_checkpoints: remove the git refs of these. Also asked for without a workflow."""

    loop: str
    workspace: str
    numbers: tuple[int, ...] = ()
    all: bool = False


class Dropped(TolerantModel):
    """Result of drop_checkpoints."""

    numbers: tuple[int, ...] = ()


class KeptInput(TolerantModel):
    """Input of list_checkpoints, a standalone activity on the host's queue: whose files are still there?"""

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
    """None: the workspace's files as they are now."""
    max_bytes: int = 500_000


class Diff(TolerantModel):
    """Result of diff_checkpoints."""

    stat: str = ""
    patch: str = ""
    truncated: bool = False


class ForkInput(TolerantModel):
    """Input of read_fork_point: another loop's checkpoint, asked of its workflow."""

    loop: str
    number: int


class ForkPoint(TolerantModel):
    """Result of read_fork_point, and of the loop's query `fork_point`."""

    checkpoint: Checkpoint
    plan: PlanVersion
    workspace: str
    host: str
    open: bool
    """That loop is still at work."""
    limits: LoopLimits = LoopLimits()
    """As they are now, set_limits included."""


class LookInput(TolerantModel):
    """Input of look_at_run: the state of a run that closed without a result (answer: RunState)."""

    run: str
