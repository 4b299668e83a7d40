"""A loop's result and checkpoints, and the state that the `state` query returns.

Times are aware UTC datetimes; money is US dollars.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from steersman.contracts.agents import Capabilities
from steersman.contracts.loop import LoopLimits, LoopMode
from steersman.contracts.loop_status import LoopStatus as LoopStatus  # noqa: PLC0414 - also imported from here
from steersman.contracts.loop_status import current_status
from steersman.contracts.model import TolerantModel
from steersman.contracts.run import Consumption, SessionProgress
from steersman.contracts.workspace_holder import WorkspaceHolder

CLOSED: frozenset[LoopStatus] = frozenset({"completed", "exited", "failed", "cancelled"})

ItemState = Literal["open", "in_progress", "blocked", "needs_review", "closed"]
CheckpointKind = Literal["baseline", "iteration", "pause", "failure", "rescue", "end"]
CHECKPOINT_SCHEMA: Final = 1


class StopReason(StrEnum):
    """Why a loop ended."""

    DONE = "done"
    EXIT = "exit"
    ITERATIONS = "iterations"
    COST = "cost"
    TOKENS = "tokens"
    DURATION = "duration"
    NO_PROGRESS = "no_progress"
    FAILURES = "failures"
    RATE_LIMIT = "rate_limit"
    VERIFICATION_MISSING = "verification_missing"


class Item(TolerantModel):
    """One thing to do."""

    id: str
    text: str = ""
    state: ItemState = "open"
    phase: str | None = None
    blocked_by: tuple[str, ...] = ()


class ItemCount(TolerantModel):
    """The number of items in each state."""

    open: int = 0
    in_progress: int = 0
    blocked: int = 0
    needs_review: int = 0
    closed: int = 0

    @property
    def total(self) -> int:
        """Items in any state."""
        return self.open + self.in_progress + self.blocked + self.needs_review + self.closed

    @property
    def left(self) -> int:
        """Items that are not closed."""
        return self.total - self.closed

    @property
    def workable(self) -> int:
        """Items that an agent can work on: open or in progress."""
        return self.open + self.in_progress


class Phase(TolerantModel):
    """One file of a plan that is a directory."""

    name: str
    """The file's name without its ending, e.g. `02-storage`."""
    title: str = ""
    state: ItemState = "open"
    depends_on: tuple[str, ...] = ()


class ItemList(TolerantModel):
    """The items when they were last read."""

    count: ItemCount = ItemCount()
    items: tuple[Item, ...] = ()
    """At most 200; those that are not closed come first."""
    digest: str = ""
    """Changes with every change of any item."""
    error: str | None = None
    """Why they could not be read; no item counts as closed then."""

    @property
    def known(self) -> ItemCount | None:
        """The count; None where they could not be read."""
        return None if self.error else self.count


class Verification(TolerantModel):
    """One run of the verification command."""

    status: Literal["passed", "failed", "missing", "timed_out"]
    """missing: there is no such command."""
    command: str
    exit_code: int | None = None
    output: str = ""
    """The end of its output, at most 4000 characters; the run's events have all of it."""
    run: str | None = None
    """The AgentRun in which it ran."""
    iteration: int
    time: datetime


class Totals(Consumption):
    """What a loop has consumed since it was started, over continue-as-new, restarts and forks."""

    iterations: int = 0
    active_s: float = 0.0
    """Seconds, without those in which the loop was paused or waited for a decision."""

    @property
    def tokens(self) -> int:
        """Tokens of all kinds."""
        used = self.usage
        return used.input_tokens + used.output_tokens + used.cache_read_tokens + used.cache_write_tokens


class Checkpoint(SessionProgress):
    """Files and state of a loop that can be restored. `usage` and `cost_usd` are those of this iteration alone."""

    schema_version: int = CHECKPOINT_SCHEMA
    number: int
    kind: CheckpointKind
    time: datetime
    iteration: int
    run: str | None = None
    """The AgentRun of the iteration."""
    plan_version: int = 1
    plan_hash: str = ""
    phase: str | None = None
    commit: str | None = None
    """The commit of `refs/steersman/<loop>/<number>` in the workspace's repository; None without a repository."""
    head: str | None = None
    """The commit that was checked out."""
    files: str = ""
    """Fingerprint of the workspace's files."""
    items: ItemCount | None = None
    verification: Literal["passed", "failed", "missing", "timed_out"] | None = None
    took_s: float = 0.0
    totals: Totals = Totals()
    feedback: tuple[str, ...] = ()
    """Ids of the feedback that the iteration was given."""
    error: str | None = None
    note: str | None = None
    unfinished: Annotated[bool | None, Field(exclude_if=lambda given: given is None)] = None
    """Whether its iteration was to be gone on with; None: as `kind` says, which is so of a pause alone."""

    @property
    def is_unfinished(self) -> bool:
        """Whether who begins from here goes on with its iteration."""
        return self.kind == "pause" if self.unfinished is None else self.unfinished


class PlanVersion(TolerantModel):
    """One version of the plan."""

    number: int
    hash: str
    since: datetime
    path: str | None = None
    phase: str | None = None
    """The phase to start at."""
    text: str | None = None
    """The plan, where it is a text."""
    prompt: str | None = None
    """The prompt's template, where the request or a `revise` gave one."""


class FeedbackNote(TolerantModel):
    """A person's feedback for an iteration."""

    id: str
    text: str
    given_at: datetime
    iteration: int | None = None
    """The iteration that was given it; None while it waits."""


class LoopResult(SessionProgress):
    """The result of a loop; of a failed loop, the first detail of its failure. `usage` and `cost_usd` are totals."""

    status: Annotated[Literal["completed", "exited", "failed", "cancelled"], BeforeValidator(current_status)]
    stop_reason: StopReason | None = None
    iterations: int = 0
    checkpoints: int = 0
    last_checkpoint: Checkpoint | None = None
    verification: Verification | None = None
    items: ItemCount | None = None
    text: str = ""
    """The agent's last answer."""
    started_at: datetime
    ended_at: datetime
    error: str | None = None
    reason: str | None = None
    """Why it exited or was cancelled: what whoever did it said, or the limit that was reached."""


class LoopState(SessionProgress):
    """The answer of a loop's `state` query, while the loop is open and after it has closed.

    `usage` and `cost_usd` are those of the last iteration that ended.
    """

    status: Annotated[LoopStatus, BeforeValidator(current_status)] = "running"
    agent: str | None = None
    capabilities: Capabilities | None = None
    """Of the iterations' runs, as the claiming host has them; None before the claim."""
    workspace: str | None = None
    host: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    mode: LoopMode = "autonomous"
    batch_size: int = 5
    limits: LoopLimits = LoopLimits()
    iteration: int = 0
    """The iteration at work, or the last one; 0 before the first. `restart` sets it back, unlike totals.iterations."""
    run: str | None = None
    """The AgentRun at work now: of the iteration, or of its verification."""
    plan: PlanVersion | None = None
    plan_versions: int = 0
    phase: str | None = None
    phases: tuple[Phase, ...] = ()
    items: ItemList | None = None
    feedback: tuple[FeedbackNote, ...] = ()
    """Feedback that waits for the next iteration."""
    feedback_consumed: tuple[FeedbackNote, ...] = ()
    """Feedback that iterations were given; the last 50."""
    totals: Totals = Totals()
    checkpoints: tuple[Checkpoint, ...] = ()
    """The last 20; the query `checkpoints` has all."""
    checkpoints_total: int = 0
    verification: Verification | None = None
    no_progress: int = 0
    failures: int = 0
    last_error: str | None = None
    waits_for: str | None = None
    """A sentence: why the loop is paused, or what it waits for."""
    wakes_at: datetime | None = None
    workspace_held_by: tuple[WorkspaceHolder, ...] = ()
    """While the loop waits for its workspace: who had it, and who waited for it, when the loop came."""
    stop_reason: StopReason | None = None
    reason: str | None = None
    """Why it exited or was cancelled: what whoever did it said, or the limit that was reached."""
    started_at: datetime | None = None
    as_of: datetime | None = None
    """When `totals.active_s` was so: in a loop that works, or waits for its next run, as it was when that began."""
    execution: str | None = None
    """Temporal's first run id of this loop."""
