"""A run's results and reports, and the state that the `state` query returns.

Times are aware UTC datetimes; money is US dollars.
"""

from datetime import datetime
from typing import Annotated, Final, Literal, Self

from pydantic import Field

from steersman.contracts.agents import Capabilities
from steersman.contracts.model import JsonObject, JsonValue, TolerantModel
from steersman.contracts.workspace_holder import WorkspaceHolder

Phase = Literal[
    "queued",
    "carrying_out",
    "preparing",
    "running",
    "waiting",
    "stopping",
    "carrying_back",
    "finalizing",
    "closed",
]
"""`waiting`: as running, and a person is waited for: an approval is open, or the agent awaits a message.
`carrying_out`, `carrying_back`: the workspace is copied for the run, and what the run has changed in the copy is merged
into it.
"""
ClosedAs = Literal["succeeded", "failed", "cancelled", "terminated", "timed_out"]
RunStatus = Literal["succeeded", "failed", "cancelled"]
MessageKind = Literal["steer", "interrupt"]
MessageState = Literal["queued", "delivered", "acknowledged", "rejected", "too_late", "unverified"]
"""queued: waits for the agent. delivered: given to the agent. acknowledged: the agent has read or done it. rejected and
too_late: the agent has not and will not. unverified: the agent ended before anybody could tell whether it had read it.
"""

FINAL_STATES: frozenset[MessageState] = frozenset({"acknowledged", "rejected", "too_late", "unverified"})
MAX_REASON: Final = 1000
"""Characters of a reason that are kept: Temporal limits the reason of neither a cancel nor a terminate."""


class Usage(TolerantModel):
    """Tokens, by kind."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )

    def at_least(self, other: "Usage") -> "Usage":
        """Of each kind the greater number."""
        return Usage(**{kind: max(getattr(self, kind), getattr(other, kind)) for kind in Usage.model_fields})


class Consumption(TolerantModel):
    """What an agent has consumed. Of what, and over which time, the subclass says."""

    usage: Usage = Usage()
    cost_usd: float = 0.0


class SessionProgress(Consumption):
    """The agent's session and what it has consumed."""

    session_id: str | None = None
    """The agent's own id of the session, with which it can be resumed; None before the agent has named it."""


class RunProgress(SessionProgress):
    """How far a run has come, over all its attempts."""

    turns: int = 0
    """Turns of the agent, as the agent counts them."""
    own_session_id: str | None = None
    """The session of the agent that the request names, where one of `fallback` has taken over; else None."""

    def at_least(self, known: "RunProgress") -> Self:
        """The same, having consumed no less than is known otherwise: whoever says it may not have seen everything."""
        most = {
            "usage": self.usage.at_least(known.usage),
            "cost_usd": max(self.cost_usd, known.cost_usd),
            "turns": max(self.turns, known.turns),
        }
        return self.model_copy(update=most)


StopOutcome = Literal["stopped", "already_finished", "unverified"]


class StopReport(TolerantModel):
    """What a stop found and did.

    "stopped": no process of the agent is left. "already_finished": there was none when the stop began. "unverified":
    nobody could look (the host is gone), processes resisted, or a shim that was killed may have left some.
    """

    outcome: StopOutcome
    phase: Phase
    """The run's phase when the stop was requested."""
    how: Literal["exited", "terminated", "killed"] | None = None
    """The roughest means that was needed; None where nobody could look."""
    processes: int = 0
    """The number of processes that were alive or were signalled."""
    took_ms: int = 0
    """From the shim's receipt of the stop to the end of the last process."""
    left: tuple[int, ...] = ()
    """Pids that were still there at the end."""
    reason: str | None = None
    """Why it was stopped: what whoever did it said, or the limit that was reached."""
    place: str | None = None
    """Where it was, if not on the host: the machine, or the Job and the pod."""


class Changes(TolerantModel):
    """What a run changed in its workspace, a git work tree: its files after the last process held against those before
    the first. Ignored files are left out, and so is what lies in the repository beside the workspace.
    """

    before: str
    """The commit of the files before, in no branch."""
    after: str | None = None
    """The commit of the files after; None where they could not be kept."""
    late_s: float = 0.0
    """Seconds from the close of the workflow to the commit after, where the run could not have it made in time: what
    anybody did meanwhile counts as the run's.
    """
    files: int = 0
    """Files that differ; a renamed one counts twice."""
    insertions: int = 0
    deletions: int = 0
    """Lines of texts; other files have none."""
    error: str | None = None
    """Why the files after could not be kept or compared, in a sentence."""


class Finalize(TolerantModel):
    """What became of the changes of a run that worked in a copy of its workspace."""

    status: Literal["none", "succeeded", "conflicted", "failed"]
    """none: there were no changes. succeeded: all are in the workspace. conflicted: all but those that `conflicts`
    names. failed: none, or not all, as `error` says then; the copy is kept until `steer workspace retry` or `discard`.
    """
    commit: str | None = None
    """The commit that is checked out in the workspace afterwards."""
    conflicts: tuple[str, ...] = ()
    """Paths that stay as they were in the workspace, at most 1,000: both sides had changed them."""
    unnamed_conflicts: int = 0
    """How many more there are."""
    ref: str | None = None
    """Where the copy's version of all that is kept: a ref of the repository, or a directory for a workspace without."""
    error: str | None = None
    """Why it failed, in a sentence; of what was discarded, that a part of it stays in the workspace."""
    lost: bool = Field(default=False, exclude_if=lambda lost: not lost)
    """Of a failed one: the copy is gone with its machine, so nothing waits. `ref` keeps what its newest backup has."""
    sessions: dict[str, str] = Field(default_factory=dict)
    """Sessions of the agent that are kept under another id than the agent gave, and that id: somebody has gone on with
    it in the workspace while the run did in the copy, or the agent began it unasked.
    """
    session_error: str | None = None
    """Why the agent's sessions did not come back, in a sentence. They stay where the agent has worked."""


class Worktree(TolerantModel):
    """The git worktree in which a run works. It stays after the run, with all that the agent has left there."""

    branch: str
    """The branch that it has checked out."""
    top: str
    """Its directory."""
    directory: str
    """The workspace's directory in it, in which the agent works."""


class CarriedWorkspace(TolerantModel):
    """A workspace as it was when it was copied for a run, and the copy."""

    top: str
    """The work tree that was copied: the workspace, or the repository that it lies in."""
    repository: bool
    """Whether it is a git repository."""
    snapshot: str
    """The commit of all that was copied, in no branch."""
    files: str
    """The commit of the files."""
    directory: str
    """The workspace's copy, in which the agent works."""


class Handle(TolerantModel):
    """An agent's process, identified across reboots and pid reuse."""

    host: str
    """The host (machine, user and state directory): the suffix of its task queues."""
    boot_id: str
    pid: int
    start_time: int
    """Clock ticks from boot to the process's start (field 22 of /proc/PID/stat); 0 where the system does not tell."""
    worker_queue: str = ""
    """The task queue of the worker that leads the run."""
    place: str | None = None
    """Where it is, if not on the host: the machine, or the Job and the pod."""

    @property
    def process(self) -> tuple[str, int, int]:
        """What tells this process from all others of its host."""
        return self.boot_id, self.pid, self.start_time


class MessageRecord(TolerantModel):
    """A message to the agent and its delivery."""

    id: str
    kind: MessageKind
    text: str | None = None
    """The whole text while the message waits; the first 80 characters of a settled one."""
    reason: str | None = None
    attachments: Annotated[tuple[str, ...], Field(exclude_if=lambda given: not given)] = ()
    """The names of the files that go with the text."""
    state: MessageState = "queued"
    how: str | None = None
    """How it reached the agent: "mid_turn", "new_turn", "interrupted"; or why it did not."""
    received_at: datetime
    delivered_at: datetime | None = None
    settled_at: datetime | None = None


class Approval(TolerantModel):
    """A tool that the agent wants to use and may use only if a person allows it."""

    id: str
    tool: str
    tool_id: str | None = None
    """See PermissionEvent."""
    input: JsonObject
    """The tool's arguments; long strings are shortened here, not in the event log."""
    since: datetime
    deadline: datetime | None = None
    """When it is denied if nobody has decided; None: it waits for ever."""


class LastEvent(TolerantModel):
    """The agent's last event, in one line."""

    seq: int
    type: str
    summary: str
    """Its type again where there is nothing to say of it."""
    time: datetime

    @property
    def shown(self) -> str:
        """For people."""
        return self.type if self.summary == self.type else f"{self.type}: {self.summary}"


class RunPart(SessionProgress):
    """What one agent did of a run with `fallback`."""

    agent: str
    turns: int = 0
    model: str | None = None
    """As the request names it."""
    attempts: int = 0
    """The number of its processes; 0 where it could not be started."""
    error: str | None = None
    """Why it could not go on; None of the last one, whose failure is the run's."""


class RunResult(RunProgress):
    """The result of a run; of a failed run, the first detail of its failure."""

    status: RunStatus
    part: int = 0
    """Which of the request's agents was at work last, as in RunState."""
    text: str = ""
    """The agent's last answer."""
    structured: JsonValue = None
    """The answer by `output_schema`."""
    stop_reason: str | None = None
    started_at: datetime
    ended_at: datetime
    attempts: int = 0
    """The number of the agent's processes: 1, and one more for each that died and was resumed."""
    messages_delivered: int = 0
    error: str | None = None
    facts: JsonObject = Field(default_factory=dict)
    """Details of a failure, e.g. exit_code, signal, stderr."""
    code: str | None = None
    """A failure's code for programs; "interrupted": a person ended the run."""
    stop_report: StopReport | None = None
    """Where the agent was stopped: by a limit, or because a person ended the run with its turn."""
    changes: Changes | None = None
    """None where the workspace is in no git repository, the run could only read, or nobody could look."""
    finalize: Finalize | None = None
    """None where the run worked in the workspace itself."""
    worktree: Worktree | None = None
    """Where the run worked; None where it was its workspace, or a copy."""
    parts: tuple[RunPart, ...] = ()
    """Who did what, in order, where the request has `fallback`. `session_id` is the last one's."""


class RunState(RunProgress):
    """The answer of the `state` query, while the run is open and after it has closed."""

    phase: Phase = "queued"
    agent: str | None = None
    capabilities: Capabilities | None = None
    handle: Handle | None = None
    attempt: int = 0
    """The number of the agent's newest process, from 1; 0 before there was one."""
    part: int = 0
    """Which of the request's agents is at work: 0, or the number from 1 of one of `fallback`."""
    messages: tuple[MessageRecord, ...] = ()
    messages_wait: str | None = None
    """Why queued messages have not reached the agent, after the last try."""
    approvals: tuple[Approval, ...] = ()
    awaits_message: bool = False
    """The agent's turn was interrupted, and it does nothing until somebody tells it how to go on."""
    workspace_held_by: tuple[WorkspaceHolder, ...] = ()
    """While the run waits for its workspace: who had it, and who waited for it, when the run came."""
    stop_report: StopReport | None = None
    last_event: LastEvent | None = None
    workspace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    host: str | None = None
    """The host that has claimed the run; its events are read from task queue `steersman@<host>`."""
    store: str = ""
    """The id of the host's store when it claimed the run."""
    execution: str | None = None
    """The run id that Temporal's execution began with, which distinguishes runs that have had the same workflow id."""
    error: str | None = None
    closed_as: ClosedAs | None = None
    """How the run closed; None while it is open."""
    baseline: str | None = None
    """The commit of the workspace's files before the run's first process; None as in RunResult.changes."""
    changes: Changes | None = None
    """As in RunResult; None until the agent has ended."""
    carried: CarriedWorkspace | None = None
    """None where the run works in the workspace itself, or has no copy of it yet."""
    finalize: Finalize | None = None
    """As in RunResult; None until then."""
    worktree: Worktree | None = None
    """As in RunResult; it may not be there yet."""

    @property
    def unmerged(self) -> Finalize | None:
        """Why the run's end could not merge its copy; None where it could. What became of it since its host knows."""
        is_failed = self.carried is not None and self.finalize is not None and self.finalize.status == "failed"
        return self.finalize if is_failed else None


def own_session(run: RunState | RunResult) -> str | None:
    """The session with which the agent that the request names goes on; None where it has named none."""
    return run.own_session_id or (None if run.part else run.session_id)
