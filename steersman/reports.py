"""What the client answers beside the wire's own models. Shapes only."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from steersman.contracts.loop_status import LoopStatus
from steersman.contracts.model import Answer
from steersman.contracts.run import Phase, StopReport

CloseStatus = Literal["running", "completed", "failed", "canceled", "terminated", "continued_as_new", "timed_out"]


class RunSummary(Answer):
    """One line of a list of runs, from Temporal's visibility (which lags by up to a second or so)."""

    id: str
    execution: str
    """Temporal's run id of it."""
    agent: str | None
    phase: Phase | None
    status: CloseStatus
    """How Temporal shows it."""
    paused: bool = False
    """Its activity is paused in Temporal: the agent works on, what is said to it waits, and its limits are not held."""
    cost_usd: float
    workspace: str | None
    labels: dict[str, str] = Field(default_factory=dict)
    started_at: datetime
    closed_at: datetime | None = None


class LoopSummary(Answer):
    """One line of a list of loops, from Temporal's visibility (which lags by up to a second or so)."""

    id: str
    execution: str
    """Temporal's run id of its newest execution."""
    agent: str | None
    status: LoopStatus | None
    """None where nobody told."""
    cost_usd: float
    workspace: str | None
    plan: str | None
    """Its first line, or its path."""
    labels: dict[str, str] = Field(default_factory=dict)
    started_at: datetime
    closed_at: datetime | None = None


class StopResult(Answer):
    """What `stop` found: a StopReport's fields, and one outcome more, "not_found": no run of that id.

    "already_finished": the run had closed, or ended by itself before the stop reached it; nothing was done.
    """

    run: str
    """The id of the run, or of the loop."""
    outcome: Literal["stopped", "already_finished", "unverified", "not_found"]
    phase: Phase | None = None
    """The run's phase when the stop was asked for."""
    how: Literal["exited", "terminated", "killed"] | None = None
    processes: int = 0
    took_ms: int = 0
    left: tuple[int, ...] = ()
    reason: str | None = None

    @classmethod
    def of(cls, run: str, report: StopReport) -> "StopResult":
        """The workflow's report, as an answer about this run."""
        return cls(run=run, **report.model_dump())
