"""What a run answers: results, reports and the state that the `state` query returns."""

from datetime import datetime
from typing import Final, Literal

from pydantic import Field

from steersman.contracts.agents import Capabilities
from steersman.contracts.model import JsonObject, JsonValue, TolerantModel

Phase = Literal["queued", "preparing", "running", "waiting", "stopping", "finalizing", "closed"]
"""`waiting` is a kind of running: the agent is at work, or would be if a person answered what it asks."""
ClosedAs = Literal["succeeded", "failed", "cancelled", "terminated", "timed_out"]
RunStatus = Literal["succeeded", "failed", "cancelled"]
MessageKind = Literal["steer", "interrupt"]
MessageState = Literal["queued", "delivered", "acknowledged", "rejected", "too_late", "unverified"]
"""queued: waits for the agent. delivered: it has been given to it. acknowledged: it has read or done it. rejected and
too_late: it has not and will not. unverified: the agent ended before anybody could tell whether it had read it.
"""

FINAL_STATES: frozenset[MessageState] = frozenset({"acknowledged", "rejected", "too_late", "unverified"})
MAX_REASON: Final = 1000
"""Characters of a reason that are kept: Temporal bounds neither that of a cancel nor that of a terminate."""


class Usage(TolerantModel):
    """Tokens, over all attempts of a run."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


class StopReport(TolerantModel):
    """What a stop found and did. "unverified" means that nobody could look (the host is gone), or that
    processes resisted, or may have been left by a shim that was killed.
    """

    outcome: Literal["stopped", "already_finished", "unverified"]
    phase: Phase
    """The run's phase when the stop was asked for."""
    how: Literal["exited", "terminated", "killed"] | None = None
    """The roughest means that was needed; None where nobody could look."""
    processes: int = 0
    """How many processes were alive or were signalled."""
    took_ms: int = 0
    """From the shim's receipt of the stop to the last process gone."""
    left: tuple[int, ...] = ()
    """Pids that were still there when looking ended."""
    reason: str | None = None
    """Why it was stopped: in the words of whoever did it, or the limit that was reached."""


class Handle(TolerantModel):
    """Which process it is: unique on its host across reboots and pid reuse."""

    host: str
    """Steersman's name for the machine, user and state directory: the suffix of its task queues."""
    boot_id: str
    pid: int
    start_time: int
    """Clock ticks between boot and start (field 22 of /proc/PID/stat); 0 where the system does not tell."""
    worker_queue: str = ""
    """The task queue of the worker that holds the session."""


class MessageRecord(TolerantModel):
    """A message to the agent and what became of it."""

    id: str
    kind: MessageKind
    text: str | None = None
    """Whole while it waits; of a settled one its first 80 characters."""
    reason: str | None = None
    state: MessageState = "queued"
    how: str | None = None
    """How it reached the agent: "mid_turn", "new_turn", "interrupted"; or why it did not."""
    received_at: datetime
    delivered_at: datetime | None = None
    settled_at: datetime | None = None


class Approval(TolerantModel):
    """A tool that the agent wants to use and may not without a person's word."""

    id: str
    tool: str
    input: JsonObject
    """Long strings are shortened; the event log has them whole."""
    since: datetime
    deadline: datetime | None = None
    """When it is denied for want of an answer; None: it waits for ever."""


class LastEvent(TolerantModel):
    """What the agent did last, in one line."""

    seq: int
    type: str
    summary: str
    time: datetime


class RunResult(TolerantModel):
    """The result of a run; of one that failed, the first detail of its failure."""

    status: RunStatus
    text: str = ""
    """The agent's last answer."""
    structured: JsonValue = None
    session_id: str | None = None
    usage: Usage = Usage()
    cost_usd: float = 0.0
    turns: int = 0
    stop_reason: str | None = None
    started_at: datetime
    ended_at: datetime
    attempts: int = 0
    """How many processes the agent took: 1, and one more for each that died and was resumed."""
    messages_delivered: int = 0
    error: str | None = None
    facts: JsonObject = Field(default_factory=dict)
    """Of a failure, e.g. exit_code, signal, stderr."""
    code: str | None = None
    """Of a failure, what a program can tell it by; "interrupted": a person had ended the run."""
    stop_report: StopReport | None = None
    """Where the agent was stopped: by a limit, or because a person ended the run with its turn."""


class RunState(TolerantModel):
    """What the `state` query answers, while the run is open and after it has closed."""

    phase: Phase = "queued"
    agent: str | None = None
    capabilities: Capabilities | None = None
    session_id: str | None = None
    handle: Handle | None = None
    attempt: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0
    turns: int = 0
    messages: tuple[MessageRecord, ...] = ()
    messages_wait: str | None = None
    """Why messages that are queued have not reached the agent, as far as that was tried."""
    approvals: tuple[Approval, ...] = ()
    stop_report: StopReport | None = None
    last_event: LastEvent | None = None
    workspace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    host: str | None = None
    """Where its events are read: queue `steersman@<host>`."""
    store: str = ""
    """Which store the host's state directory was when it claimed the run."""
    execution: str | None = None
    """Temporal's first run id of this run: tells two runs with one workflow id apart."""
    error: str | None = None
    closed_as: ClosedAs | None = None
    """How it closed; None while it is open."""
