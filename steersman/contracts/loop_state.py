"""What a loop answers: its result, its checkpoints and the state that the `state` query returns."""

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from pydantic import Field

from steersman.contracts.loop import LoopLimits, LoopMode
from steersman.contracts.loop_status import LoopStatus as LoopStatus  # noqa: PLC0414 - also imported from here
from steersman.contracts.model import Answer
from steersman.contracts.run import Usage

CLOSED: frozenset[LoopStatus] = frozenset({"completed", "stopped", "failed", "cancelled"})

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


class Item(Answer):
    """One thing to do."""

    id: str
    text: str = ""
    state: ItemState = "open"
    phase: str | None = None
    blocked_by: tuple[str, ...] = ()


class ItemCount(Answer):
    """How many items there are in each state."""

    open: int = 0
    in_progress: int = 0
    blocked: int = 0
    needs_review: int = 0
    closed: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.open + self.in_progress + self.blocked + self.needs_review + self.closed

    @property
    def left(self) -> int:
        """Those that are not closed."""
        return self.total - self.closed

    @property
    def workable(self) -> int:
        """Those that an agent can do something about now."""
        return self.open + self.in_progress


class Phase(Answer):
    """One file of a plan's directory."""

    name: str
    """The file's name without its ending, e.g. `02-storage`."""
    title: str = ""
    state: ItemState = "open"
    depends_on: tuple[str, ...] = ()


class ItemList(Answer):
    """The items as they were when they were last looked at."""

    count: ItemCount = ItemCount()
    items: tuple[Item, ...] = ()
    """Those that are not closed first; at most 200."""
    digest: str = ""
    """Changes with every change of any item."""
    error: str | None = None
    """Why they could not be read: then nothing counts as closed."""


class Verification(Answer):
    """One run of the verification command."""

    status: Literal["passed", "failed", "missing", "timed_out"]
    """missing: there is no such command, which is no pass."""
    command: str
    exit_code: int | None = None
    output: str = ""
    """The end of what it printed, at most 4000 characters; the run's events have it all."""
    run: str | None = None
    """The AgentRun it was."""
    iteration: int
    time: datetime


class Totals(Answer):
    """What has been used up, over continue-as-new, restarts and forks."""

    iterations: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0
    active_s: float = 0.0
    """Without the time that the loop was paused or waited for a decision."""

    @property
    def tokens(self) -> int:
        """All tokens together."""
        used = self.usage
        return used.input_tokens + used.output_tokens + used.cache_read_tokens + used.cache_write_tokens


class Checkpoint(Answer):
    """What a loop can be taken back to."""

    schema_version: int = CHECKPOINT_SCHEMA
    number: int
    kind: CheckpointKind
    time: datetime
    iteration: int
    run: str | None = None
    """The AgentRun of the iteration."""
    session_id: str | None = None
    """The agent's session as it was then."""
    plan_version: int = 1
    plan_hash: str = ""
    phase: str | None = None
    commit: str | None = None
    """`refs/steersman/<loop>/<number>` in the workspace's repository; None where it is none."""
    head: str | None = None
    """The commit that was checked out."""
    files: str = ""
    """Fingerprint of the workspace's files."""
    items: ItemCount | None = None
    verification: Literal["passed", "failed", "missing", "timed_out"] | None = None
    usage: Usage = Usage()
    """Of this iteration alone."""
    cost_usd: float = 0.0
    took_s: float = 0.0
    totals: Totals = Totals()
    feedback: tuple[str, ...] = ()
    """Ids of the feedback that the iteration was given."""
    error: str | None = None
    note: str | None = None


class PlanVersion(Answer):
    """The plan as it was from one time on."""

    number: int
    hash: str
    since: datetime
    path: str | None = None
    phase: str | None = None
    """The phase to start at."""
    text: str | None = None
    """Of a plan that is a text."""
    prompt: str | None = None
    """The prompt's template, where the request or a `revise` gave one."""


class FeedbackNote(Answer):
    """Something that a person said to the loop."""

    id: str
    text: str
    given_at: datetime
    iteration: int | None = None
    """Which iteration was given it; None while it waits."""


class LoopResult(Answer):
    """The result of a loop; of one that failed, the first detail of its failure."""

    status: Literal["completed", "stopped", "failed", "cancelled"]
    stop_reason: StopReason | None = None
    iterations: int = 0
    checkpoints: int = 0
    last_checkpoint: Checkpoint | None = None
    usage: Usage = Usage()
    cost_usd: float = 0.0
    verification: Verification | None = None
    items: ItemCount | None = None
    session_id: str | None = None
    text: str = ""
    """The agent's last answer."""
    started_at: datetime
    ended_at: datetime
    error: str | None = None
    reason: str | None = None
    """Why it was stopped: in the words of whoever did it, or the limit that was reached."""


class LoopState(Answer):
    """What the `state` query of a loop answers, while it is open and after it has closed."""

    status: LoopStatus = "running"
    agent: str | None = None
    workspace: str | None = None
    host: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    mode: LoopMode = "autonomous"
    batch_size: int = 5
    limits: LoopLimits = LoopLimits()
    iteration: int = 0
    """The one at work, or the last one; 0 before the first. Goes back with `restart`, unlike totals.iterations."""
    run: str | None = None
    """The AgentRun at work now: of the iteration, or of its verification."""
    session_id: str | None = None
    plan: PlanVersion | None = None
    plan_versions: int = 0
    phase: str | None = None
    phases: tuple[Phase, ...] = ()
    items: ItemList | None = None
    feedback: tuple[FeedbackNote, ...] = ()
    """What waits for the next iteration."""
    feedback_consumed: tuple[FeedbackNote, ...] = ()
    """The last 50 that iterations were given."""
    totals: Totals = Totals()
    usage: Usage = Usage()
    """Of the last iteration that ended."""
    cost_usd: float = 0.0
    checkpoints: tuple[Checkpoint, ...] = ()
    """The last 20; the `checkpoints` query has all."""
    checkpoints_total: int = 0
    verification: Verification | None = None
    no_progress: int = 0
    failures: int = 0
    last_error: str | None = None
    waits_for: str | None = None
    """In a sentence: why the loop is paused or what it waits for."""
    wakes_at: datetime | None = None
    stop_reason: StopReason | None = None
    reason: str | None = None
    """Why it was stopped: in the words of whoever did it, or the limit that was reached."""
    started_at: datetime | None = None
    execution: str | None = None
    """Temporal's first run id of this loop."""
