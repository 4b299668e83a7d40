"""Inputs and results of the activities of runs, and the signals that `run_agent` sends to its workflow.

They are in recorded histories: only fields with defaults may be added.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from steersman.contracts.agents import Capabilities
from steersman.contracts.attachments import Attachments, images, worded
from steersman.contracts.errors import ErrorType
from steersman.contracts.events import AgentEvent, TerminalEvent
from steersman.contracts.messages import Decision
from steersman.contracts.model import JsonObject, JsonValue, TolerantModel
from steersman.contracts.notices import NoticeKind
from steersman.contracts.request import Caps, RunRequest
from steersman.contracts.run import (
    Approval,
    CarriedWorkspace,
    Changes,
    Finalize,
    Handle,
    LastEvent,
    MessageKind,
    MessageState,
    Phase,
    RunPart,
    RunProgress,
    StopReport,
    Worktree,
)
from steersman.contracts.workspace_holder import WorkspaceHolder


class RunKey(TolerantModel):
    """What names a run on disk: its workflow id and the run id that its execution began with, which a reset keeps."""

    run: str
    execution: str


class Claim(TolerantModel):
    """Result of claim_host: the host that takes the run, and its operator's caps."""

    host: str
    caps: Caps = Caps()
    store: str = ""
    """The id of the host's store; empty where a worker of an older version claimed."""
    capabilities: Capabilities | None = None
    """Those of the request's agent, as the host has it; None where a worker of an older version claimed."""
    agent_variables: tuple[str, ...] = ()
    """The own variables of the agents, also of those that only workers know: a loop keeps them from its programs."""
    workspace_held_by: tuple[WorkspaceHolder, ...] = ()
    """Those in whose way the run is: it has to take its workspace by hold_workspace before it goes on. None: it has it,
    or needs none.
    """
    worktree: Worktree | None = None
    """Where the run is to work, for one that asks for a worktree."""
    notices: tuple[NoticeKind, ...] = ()
    """What the host's operator is told of all runs."""


class RunAgentInput(TolerantModel):
    """Input of run_agent."""

    key: RunKey
    request: RunRequest
    store: str = ""
    """The id of the store that the run was claimed for; a host with another store refuses."""
    keeps_baseline: bool = True
    """What the run changes in its workspace is to be known. Not of a loop's: its checkpoints say that."""
    carried: CarriedWorkspace | None = None
    """Where the agent works in a copy of the workspace."""
    worktree: Worktree | None = None
    """Where it works in a worktree."""


class CarryOutInput(TolerantModel):
    """Input of carry_out: make a copy of the workspace for the run."""

    key: RunKey
    request: RunRequest
    store: str = ""
    """As in RunAgentInput."""


class CarryBackInput(TolerantModel):
    """Input of carry_back: merge what became of the copy into the workspace. No process of the run is at work."""

    key: RunKey
    request: RunRequest
    carried: CarriedWorkspace
    store: str = ""
    """As in RunAgentInput."""
    keep: bool = False
    """The copy is not removed: processes of the run may still be at work in it."""


class CarriedBack(TolerantModel):
    """Result of carry_back, describe_workspace and retry_workspace."""

    finalize: Finalize
    changes: Changes | None = None
    waits: bool = True
    """Of a `failed` one: whether what the copy has waits there, for retry_workspace or discard_workspace."""


class WorkspaceInput(TolerantModel):
    """Input of describe_workspace, retry_workspace and discard_workspace, standalone activities on the host's queue."""

    key: RunKey


class RunOutcome(RunProgress):
    """Result of run_agent: how the agent ended. Whether the run has succeeded is the workflow's decision."""

    status: Literal["succeeded", "failed", "stopped"]
    text: str = ""
    structured: JsonValue = None
    stop_reason: str | None = None
    attempts: int = 0
    error: ErrorType | None = None
    message: str | None = None
    facts: JsonObject = Field(default_factory=dict)
    messages: tuple["Settlement", ...] = ()
    journal_read: bool = False
    """The journal was read to its end: messages that `messages` does not name never reached the agent."""
    last_event: LastEvent | None = None
    stop_report: StopReport | None = None
    baseline: str | None = None
    """As in RunState: a short run ends before a signal has told of it."""
    parts: tuple[RunPart, ...] = ()
    """As in RunResult."""
    unread: bool = False
    """There may be more in the journals than this tells of: nobody led the run to this end."""


class SessionStarted(TolerantModel):
    """Signal: a worker leads the run now. Unsettled messages are delivered (again) to its task queue."""

    worker_queue: str
    handle: Handle | None = None
    """None while the workspace is prepared and there is no process."""
    attempt: int = 0
    epoch: int = 0
    """Orders the workers that have led the run: the greatest is the newest, and signals of the others are ignored."""
    baseline: str | None = None
    """As in RunState."""
    part: int = 0
    """Which of the request's agents is at work: 0, or the number from 1 of one of `fallback`."""
    capabilities: Capabilities | None = None
    """What a run of that agent can do; None of the first, which the claim has told of."""


class Progressed(RunProgress):
    """Signal: a milestone. Sent seldom, as each one adds to the history."""

    attempt: int = 0
    last_event: LastEvent | None = None
    awaits_message: Annotated[bool, Field(exclude_if=lambda awaits: not awaits)] = False
    """See RunState."""


class ApprovalAsked(TolerantModel):
    """Signal: the agent asks for an approval, or has withdrawn it."""

    approval: Approval
    withdrawn: bool = False


class Settlement(TolerantModel):
    """The final state of one message."""

    id: str
    state: MessageState
    how: str | None = None


class MessagesSettled(TolerantModel):
    """Signal: messages whose state became final after the delivery had been answered."""

    messages: tuple[Settlement, ...]


class OutgoingMessage(TolerantModel):
    """A message to be delivered to the agent."""

    id: str
    kind: MessageKind
    text: str | None = None
    attachments: Attachments = ()
    end: bool = False

    def as_told(self) -> "OutgoingMessage":
        """As its agent has it: attached texts are part of the text, and only images are beside it."""
        if not self.attachments:
            return self
        told = {"text": worded(self.text or "", self.attachments), "attachments": images(self.attachments)}
        return self.model_copy(update=told)


class OutgoingDecision(TolerantModel):
    """A decision to be delivered to the agent. `tool`: for `remember`, which also holds in later processes."""

    decision: Decision
    tool: str


class DeliverInput(TolerantModel):
    """Input of deliver_messages; messages in the order in which they were sent."""

    key: RunKey
    messages: tuple[OutgoingMessage, ...] = ()
    decisions: tuple[OutgoingDecision, ...] = ()
    patience_s: float = 0.0
    """Seconds that the answer waits for the agent; later settlements come by signal messages_settled."""


class Delivered(TolerantModel):
    """Result of deliver_messages."""

    here: bool
    """False: this worker does not lead the run."""
    messages: tuple[Settlement, ...] = ()
    queue: str | None = None
    """The task queue of the worker that leads it, if known."""
    why: str | None = None
    """Why no worker of this host leads it, if known."""


class StopInput(TolerantModel):
    """Input of stop_agent."""

    key: RunKey
    request: RunRequest
    phase: Phase
    reason: str
    asked_at: datetime | None = None
    """When the stop was requested, by the server's clock; the request's stop times count from then."""
    hurried: bool = False
    """SIGTERM at once and SIGKILL 1.5 s later, whatever the request says."""
    attempts: int = 0
    """The number of processes that the workflow knows of; where the host finds fewer, the stop is unverified."""
    store: str = ""
    """As in RunAgentInput."""


class FinalizeInput(TolerantModel):
    """Input of finalize_run: write the terminal event, and let the shims end."""

    key: RunKey
    request: RunRequest
    event: "TerminalEvent"
    attempts: int = 0
    """As in StopInput; where the host finds fewer, the log is gone, and none is begun."""
    store: str = ""
    """As in RunAgentInput."""
    unseen: bool = False
    """No worker led the run at the agent's end: the journals may have events that the log lacks."""
    baseline: str | None = None
    """As in RunState: the files are kept again and held against it."""
    carried_back: "CarriedBack | None" = None
    """What became of the copy of the workspace; None where the run had none."""


class Finalized(TolerantModel):
    """Result of finalize_run."""

    changes: Changes | None = None
    progress: RunProgress | None = None
    """How far the run had come by its journals, where those were read for its end."""


class CheckAgents(TolerantModel):
    """Input of check_agents, a standalone activity on the host's queue."""


class AgentCheck(TolerantModel):
    """What a worker found of one agent's program, or of its key. `hint`: what to do about it."""

    check: str
    ok: bool = True
    detail: str
    hint: str = ""


class AgentChecks(TolerantModel):
    """Result of check_agents. `usable`: at least one agent has all that a run needs."""

    checks: tuple[AgentCheck, ...] = ()
    usable: bool = False


class ReadEvents(TolerantModel):
    """Input of read_events, a standalone activity on the host's queue."""

    key: RunKey
    after: int = 0
    """Events with a greater number are returned."""
    wait_s: float = 0.0
    """Seconds to wait for the first of them."""
    max_bytes: int = 1_000_000
    store: str = ""
    """As in RunAgentInput."""
    gzip: bool = False
    """The reader takes a page whose events are compressed."""


class EventPage(TolerantModel):
    """Result of read_events."""

    events: tuple[AgentEvent, ...]
    ended: bool
    """The last event of the page is the terminal one, or the reader has it already."""
    known: bool = True
    """False: this host has no log of the run: it was never started there, or was pruned."""
    next_end: int | None = None
    """The number of the last event of the next page, of as many bytes, where the log fills that page: a reader may ask
    for what comes after it already.
    """
    gzip: str = ""
    """The events' JSON, compressed by gzip, in base64; `events` is empty then. Only where the reader takes that."""
    last: int | None = None
    """The number of the last event of a page that is compressed: known before its events are gone through."""


class EndRun(TolerantModel):
    """Input of end_run, a standalone activity on the host's queue."""

    key: RunKey


class RunEnd(TolerantModel):
    """Result of end_run."""

    event: "TerminalEvent | None" = Field(None, discriminator="type")
    """The terminal event; None while the workflow is open, or where the server does not say how it closed."""
    known: bool = True
    """False: this host has nothing of the run: it was never started there, or was pruned."""


class PruneInput(TolerantModel):
    """Input of prune_host: remove the state of runs and loops that closed more than `keep_days` days ago."""

    keep_days: float = Field(ge=0)
    dry_run: bool = False


class Swept(TolerantModel):
    """Result of sweep_host and prune_host: ids of the runs that were stopped, and of the runs and loops pruned."""

    stopped: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    bytes_freed: int = 0
