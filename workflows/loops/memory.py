"""What a loop remembers. Carried through continue-as-new, so it is in histories: fields with defaults only."""

from datetime import datetime
from typing import Literal

from steersman.contracts.loop import LoopLimits, LoopMode
from steersman.contracts.loop_state import (
    Checkpoint,
    FeedbackNote,
    ItemList,
    Phase,
    PlanVersion,
    StopReason,
    Totals,
    Verification,
)
from steersman.contracts.model import TolerantModel
from steersman.contracts.run import Usage


class Hold(TolerantModel):
    """Why the next iteration does not begin yet."""

    kind: Literal["paused", "decision", "rate_limit", "sleep"]
    reason: str = ""
    until: datetime | None = None
    """Of the last two: when it ends by itself."""

    @property
    def timed(self) -> bool:
        """Ends by itself."""
        return self.until is not None


class Chunk(TolerantModel):
    """Some checkpoints, packed."""

    count: int = 0
    first: int = 0
    last: int = 0
    """Numbers of the first and the last one."""
    low: int = 0
    high: int = 0
    """The least and the greatest of their iterations."""
    packed: str = ""


class Memory(TolerantModel):
    """Everything, as plain data. The workflow replaces it field by field."""

    host: str = ""
    """Empty until the loop is open."""
    mode: LoopMode = "autonomous"
    limits: LoopLimits = LoopLimits()
    hold: Hold | None = None
    iteration: int = 0
    unfinished: bool = False
    """The iteration was interrupted, or cut off by a rate limit: it is gone on with, not counted again."""
    heard: bool = False
    """Of an unfinished one: its session knows the iteration's prompt."""
    runs: int = 0
    """Agent runs so far: numbers their ids."""
    unverified: bool = False
    """The iteration is finished, and its verification was not."""
    session_id: str | None = None
    lent: bool = False
    """The session was given with the request, and no run has gone on with it yet."""
    briefed: bool = False
    """The session has been told the plan."""
    forks: bool = False
    """The session is somebody else's: the next run forks it."""
    afresh: bool = False
    """The next run begins a new session."""
    notice: str = ""
    """What the agent must know of a return to a checkpoint: told with the next prompt."""
    revised: bool = False
    """The plan was revised, and the agent has not been told yet."""
    text: str = ""
    """The agent's last answer."""
    promised: bool = False
    totals: Totals = Totals()
    usage: Usage = Usage()
    cost_usd: float = 0.0
    plans: tuple[PlanVersion, ...] = ()
    plan: int = 1
    """Number of the version in force."""
    template: str | None = None
    """The prompt's template in force; None for Steersman's own."""
    phases: tuple[Phase, ...] = ()
    items: ItemList | None = None
    feedback: tuple[FeedbackNote, ...] = ()
    consumed: tuple[FeedbackNote, ...] = ()
    next_feedback: int = 1
    chunks: tuple[Chunk, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    next_checkpoint: int = 0
    last_kept: int = -1
    """Number of the checkpoint that was made after the last run of the agent."""
    verification: Verification | None = None
    missing: int = 0
    """Verifications in a row that found no command."""
    progress_mark: str = ""
    """HEAD, files and items as they were."""
    no_progress: int = 0
    failures: int = 0
    rate_limits: int = 0
    """In a row."""
    since_decision: int = 0
    """Iterations since a person last decided."""
    last_error: str | None = None
    stop_reason: StopReason | None = None
    started_at: datetime | None = None

    @property
    def plan_version(self) -> PlanVersion:
        """The version in force."""
        return next((each for each in self.plans if each.number == self.plan), self.plans[-1])
