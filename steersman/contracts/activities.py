"""Inputs and outputs of Steersman's own activities and internal signals.

They are in recorded histories, so they change only by adding fields with defaults.
"""

from datetime import datetime
from typing import Literal

from pydantic import Field

from steersman.contracts.errors import ErrorType
from steersman.contracts.events import AgentEvent, TerminalEvent
from steersman.contracts.messages import Decision
from steersman.contracts.model import JsonObject, JsonValue, TolerantModel
from steersman.contracts.request import Caps, RunRequest
from steersman.contracts.run import Approval, Handle, LastEvent, MessageKind, MessageState, Phase, StopReport, Usage


class RunKey(TolerantModel):
    """One run on disk: the workflow id and Temporal's first run id of it."""

    run: str
    execution: str


class Claim(TolerantModel):
    """Result of claim_host: which machine carries the run, and what its operator lets one have at the most."""

    host: str
    caps: Caps = Caps()
    store: str = ""
    """Which store the host's state directory is; empty where an older worker claimed."""


class RunAgentInput(TolerantModel):
    """Input of run_agent."""

    key: RunKey
    request: RunRequest
    store: str = ""
    """The store that the run was claimed for: in another it is not led."""


class RunOutcome(TolerantModel):
    """Result of run_agent: how the agent ended, before the workflow judges it."""

    status: Literal["succeeded", "failed", "stopped"]
    text: str = ""
    structured: JsonValue = None
    session_id: str | None = None
    usage: Usage = Usage()
    cost_usd: float = 0.0
    turns: int = 0
    stop_reason: str | None = None
    attempts: int = 0
    error: ErrorType | None = None
    message: str | None = None
    facts: JsonObject = Field(default_factory=dict)
    messages: tuple["Settlement", ...] = ()
    journal_read: bool = False
    """Everything that was written to the agent was looked at: what `messages` does not name never reached it."""
    last_event: LastEvent | None = None
    stop_report: StopReport | None = None


class SessionStarted(TolerantModel):
    """Signal: a worker holds the session now. Everything unsettled is to be delivered (again) to its queue."""

    worker_queue: str
    handle: Handle | None = None
    """None while the workspace is being prepared and no process exists yet."""
    attempt: int = 0
    epoch: int = 0
    """Orders sessions: one that was frozen and comes back late must not be taken for the newest."""


class Progressed(TolerantModel):
    """Signal: a milestone. Sent seldom: it costs history."""

    session_id: str | None = None
    usage: Usage = Usage()
    cost_usd: float = 0.0
    turns: int = 0
    attempt: int = 0
    last_event: LastEvent | None = None


class ApprovalAsked(TolerantModel):
    """Signal: the agent waits for a person's word, or no longer does."""

    approval: Approval
    withdrawn: bool = False


class Settlement(TolerantModel):
    """What became of one message."""

    id: str
    state: MessageState
    how: str | None = None


class MessagesSettled(TolerantModel):
    """Signal: messages that the agent has meanwhile taken, or that can no longer reach it."""

    messages: tuple[Settlement, ...]


class OutgoingMessage(TolerantModel):
    """A numbered message on its way to the session."""

    id: str
    kind: MessageKind
    text: str | None = None
    end: bool = False


class OutgoingDecision(TolerantModel):
    """A decision on its way to the session; `tool` so that `remember` works in a later process too."""

    decision: Decision
    tool: str


class DeliverInput(TolerantModel):
    """Input of deliver_messages, in the order in which they were said."""

    key: RunKey
    messages: tuple[OutgoingMessage, ...] = ()
    decisions: tuple[OutgoingDecision, ...] = ()
    patience_s: float = 0.0
    """How long the answer may wait for the agent; what takes longer is told by messages_settled."""


class Delivered(TolerantModel):
    """Result of deliver_messages."""

    here: bool
    """False: this worker does not hold the session (any more)."""
    messages: tuple[Settlement, ...] = ()
    queue: str | None = None
    """The task queue of the worker that does, where this one knows it."""
    why: str | None = None
    """Why no worker of this host does, as far as this one knows."""


class StopInput(TolerantModel):
    """Input of stop_agent."""

    key: RunKey
    request: RunRequest
    phase: Phase
    reason: str
    asked_at: datetime | None = None
    """When the stop was asked for, by the server's clock: the ladder counts from then."""
    hurried: bool = False
    """SIGTERM now and SIGKILL 1.5 s later, whatever the request says."""
    attempts: int = 0
    """How many processes the workflow knows of: where the host finds fewer, nothing is proven."""
    store: str = ""
    """As in RunAgentInput."""


class FinalizeInput(TolerantModel):
    """Input of finalize_run: the terminal event closes the log, the shim is released."""

    key: RunKey
    request: RunRequest
    event: "TerminalEvent"
    attempts: int = 0
    """As in StopInput: no log is begun for a run whose own is gone."""
    store: str = ""
    """As in RunAgentInput."""
    unseen: bool = False
    """No session saw the agent's end: its journals may hold more than the log."""


class ReadEvents(TolerantModel):
    """Input of read_events, a standalone activity on the host's queue."""

    key: RunKey
    after: int = 0
    """Events with a greater number are wanted."""
    wait_s: float = 0.0
    """How long to wait for the first of them."""
    max_bytes: int = 1_000_000
    store: str = ""
    """As in RunAgentInput."""


class EventPage(TolerantModel):
    """Result of read_events."""

    events: tuple[AgentEvent, ...]
    ended: bool
    """The last event of the page is the run's terminal one (or the reader had it already)."""
    known: bool = True
    """False: this host has no log of that run (never started there, or pruned)."""


class EndRun(TolerantModel):
    """Input of end_run, a standalone activity on the host's queue."""

    key: RunKey


class RunEnd(TolerantModel):
    """Result of end_run."""

    event: "TerminalEvent | None" = Field(None, discriminator="type")
    """The run's terminal event; None while its workflow is open, or where the server does not say how it closed."""
    known: bool = True
    """False: this host has nothing of that run (never started there, or pruned)."""


class PruneInput(TolerantModel):
    """Input of prune_host: remove the state of runs that closed longer ago than this."""

    keep_days: float
    dry_run: bool = False


class Swept(TolerantModel):
    """Result of sweep_host and prune_host: ids of runs, and of loops whose state was pruned."""

    stopped: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    bytes_freed: int = 0
