"""What the client returns beside the models of the wire. Data only."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from steersman.contracts.loop_status import LoopStatus
from steersman.contracts.model import TolerantModel
from steersman.contracts.run import Phase, StopReport

CloseStatus = Literal["running", "completed", "failed", "canceled", "terminated", "continued_as_new", "timed_out"]


class RunSummary(TolerantModel):
    """A run in a list, from Temporal's visibility, which lags by up to a second or so."""

    id: str
    execution: str
    """Temporal's run id of its newest execution."""
    agent: str | None
    phase: Phase | None
    status: CloseStatus
    """Temporal's status of the workflow execution."""
    paused: bool = False
    """The run's activity is paused in Temporal: the agent works on, messages wait, and limits are not enforced."""
    cost_usd: float
    """US dollars, as of the last milestone."""
    workspace: str | None
    title: str | None = None
    """The first line of the prompt, else of the command; None of a run that a client of another kind has started."""
    labels: dict[str, str] = Field(default_factory=dict)
    parent: str | None = None
    """The id of the workflow whose child it is: its loop, or one of somebody's own."""
    started_at: datetime
    closed_at: datetime | None = None


class LoopSummary(TolerantModel):
    """A loop in a list, from Temporal's visibility, which lags by up to a second or so."""

    id: str
    execution: str
    """Temporal's run id of its newest execution."""
    agent: str | None
    status: LoopStatus | None
    """None before the loop has set its search attribute."""
    cost_usd: float
    """US dollars, as of the last milestone."""
    workspace: str | None
    plan: str | None
    """The first line of a plan that is a text, else the plan's path in the workspace."""
    labels: dict[str, str] = Field(default_factory=dict)
    started_at: datetime
    closed_at: datetime | None = None


class StopResult(TolerantModel):
    """What `stop` found: the fields of a StopReport, and the run's id.

    Outcomes: "stopped", no process of the agent is left. "already_finished", the run had closed, or ended by itself
    before the stop reached it. "unverified", the host is gone, or processes may be left. "not_found", there is no run
    of that id.
    """

    run: str
    """The id of the run, or of the loop."""
    outcome: Literal["stopped", "already_finished", "unverified", "not_found"]
    phase: Phase | None = None
    """The run's phase when the stop was requested."""
    how: Literal["exited", "terminated", "killed"] | None = None
    """The roughest means that was needed; None where nobody could look."""
    processes: int = 0
    """The number of processes that were alive or were signalled."""
    took_ms: int = 0
    left: tuple[int, ...] = ()
    """Pids that were still there at the end."""
    reason: str | None = None
    place: str | None = None
    """Where it was, if not on the host."""

    @classmethod
    def of(cls, run: str, report: StopReport) -> "StopResult":
        """The report of a workflow, with the id of its run or loop."""
        return cls(run=run, **report.model_dump())
