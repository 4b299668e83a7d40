"""The state that continue-as-new carries. It is in histories: no field may be renamed, a new one needs a default."""

from datetime import datetime
from typing import Literal

from steersman.contracts.agents import Capabilities
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
from steersman.contracts.notices import NoticeKind
from steersman.contracts.run import Usage


class WaitReason(TolerantModel):
    """Why the next iteration does not begin yet."""

    kind: Literal["paused", "decision", "rate_limit", "sleep"]
    reason: str = ""
    until: datetime | None = None
    """When a wait of the last two kinds ends by itself."""

    @property
    def timed(self) -> bool:
        """Whether the wait ends by itself."""
        return self.until is not None


class PackedCheckpoints(TolerantModel):
    """Consecutive checkpoints of the archive, encoded by steersman.contracts.archive_codec."""

    count: int = 0
    first: int = 0
    last: int = 0
    """Numbers of the first and the last checkpoint."""
    low: int = 0
    high: int = 0
    """The least and the greatest of their iterations."""
    packed: str = ""


class CarriedState(TolerantModel):
    """Frozen; the workflow replaces it whole."""

    host: str = ""
    """The worker host that the loop has claimed; empty until its setup is done."""
    capabilities: Capabilities | None = None
    """Those of the loop's agent, as the host that was claimed has it; None where an older version claimed."""
    agent_variables: tuple[str, ...] = ()
    """The own variables of an agent that only workers know, as that host has it."""
    mode: LoopMode = "autonomous"
    limits: LoopLimits = LoopLimits()
    hold: WaitReason | None = None
    iteration: int = 0
    unfinished: bool = False
    """The iteration was interrupted, or cut off by a rate limit: the next run continues it under the same number."""
    heard: bool = False
    """The session knows the prompt of the unfinished iteration."""
    runs: int = 0
    """Agent runs so far: numbers their ids."""
    unverified: bool = False
    """The iteration is finished, and its verification is not."""
    session_id: str | None = None
    lent: bool = False
    """The session was given with the request, and no run has continued it yet."""
    briefed: bool = False
    """The session has been told the plan."""
    forks: bool = False
    """The session belongs to somebody else: the next run forks it."""
    afresh: bool = False
    """The next run begins a new session."""
    notice: str = ""
    """What the agent must know of a return to a checkpoint, or of work that was not merged: part of the next prompt."""
    revised: bool = False
    """The plan was revised, and no prompt has said so yet."""
    text: str = ""
    """The agent's last answer."""
    promised: bool = False
    """The agent's last answer ends with the promise of `done.promise`."""
    totals: Totals = Totals()
    usage: Usage = Usage()
    cost_usd: float = 0.0
    plans: tuple[PlanVersion, ...] = ()
    plan: int = 1
    """Number of the plan version in force."""
    template: str | None = None
    """The prompt template in force; None for Steersman's own."""
    phases: tuple[Phase, ...] = ()
    items: ItemList | None = None
    feedback: tuple[FeedbackNote, ...] = ()
    """Feedback for the next prompt."""
    consumed: tuple[FeedbackNote, ...] = ()
    """Feedback that a prompt has contained."""
    next_feedback: int = 1
    chunks: tuple[PackedCheckpoints, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    next_checkpoint: int = 0
    last_kept: int = -1
    """Number of the checkpoint that was made after the last run of the agent."""
    verification: Verification | None = None
    missing: int = 0
    """Verifications in a row that found no command."""
    unverifiable: int = 0
    """How often in a row nobody could verify the iteration: see outcomes.unverifiable."""
    progress_mark: str = ""
    """HEAD, files and items at the last survey that counted."""
    no_progress: int = 0
    """Finished iterations in a row that changed nothing."""
    failures: int = 0
    """Failed iterations in a row."""
    rate_limits: int = 0
    """Rate-limited iterations in a row."""
    since_decision: int = 0
    """Iterations since a person last decided."""
    notices: tuple[NoticeKind, ...] = ()
    """What the host's operator is told."""
    notices_told: tuple[str, ...] = ()
    """The wait that was told, and the limits of which most is spent."""
    notices_sent: int = 0
    last_error: str | None = None
    stop_reason: StopReason | None = None
    started_at: datetime | None = None

    @property
    def plan_version(self) -> PlanVersion:
        """The plan version in force."""
        return next((each for each in self.plans if each.number == self.plan), self.plans[-1])
