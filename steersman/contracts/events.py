"""AgentEvent: everything an agent does, in one vocabulary for all agents.

A run's events are numbered from 1 without gaps; the last one, and no other, is terminal: done, cancelled or failed. A
string in an event has at most MAX_TEXT characters, and `truncated` says whether one was cut; the shim's journal has
every byte.
"""

from datetime import datetime
from typing import Annotated, Final, Literal, TypeGuard

from pydantic import ConfigDict, Field, TypeAdapter

from steersman.contracts import deferral
from steersman.contracts.errors import ErrorType
from steersman.contracts.model import JsonObject, JsonValue, TolerantModel
from steersman.contracts.run import Changes, Finalize, StopReport, Usage, Worktree

MAX_TEXT: Final = 256 * 1024
MAX_TOOL_OUTPUT: Final = 2_000
"""Characters of a tool's output in one event."""
MAX_CALL_OUTPUT: Final = 512 * 1024
"""Characters of a call's output in all its events."""


class EventBase(TolerantModel):
    """Fields of every event."""

    seq: int = 0
    """The number in the run, from 1; 0 before the event log has given it one."""
    time: datetime
    attempt: int = 1
    """The number of the agent's process that it came from."""
    truncated: bool = False


class InitEvent(EventBase):
    """The agent's session began, or was resumed."""

    type: Literal["init"] = "init"
    session_id: str | None = None
    model: str | None = None
    version: str | None = None
    tools: tuple[str, ...] = ()


class MessageEvent(EventBase):
    """A text of the agent or to the agent. Where the agent streams, parts have `delta` true, and the whole follows."""

    type: Literal["message"] = "message"
    role: Literal["assistant", "user"] = "assistant"
    kind: Literal["text", "thinking"] = "text"
    text: str
    delta: bool = False
    message_id: str | None = None
    parent_tool_id: str | None = None
    """The tool call that started the sub-agent whose text it is."""


class ToolUseEvent(EventBase):
    """The agent uses a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: JsonObject
    parent_tool_id: str | None = None


class ToolOutputEvent(EventBase):
    """What a tool has put out since the last such event, while it works. Told as far as its agent tells it.

    One has at most MAX_TOOL_OUTPUT characters, those of a call together at most MAX_CALL_OUTPUT: a flood is told of in
    part, ever less often; `truncated` says that this was the last of it. The result follows.
    """

    type: Literal["tool_output"] = "tool_output"
    id: str
    text: str
    omitted: bool = False
    """Output of the call that came before this text was left out."""


class ToolResultEvent(EventBase):
    """The tool's result."""

    type: Literal["tool_result"] = "tool_result"
    id: str
    name: str | None = None
    text: str
    is_error: bool = False


class FileChangeEvent(EventBase):
    """A tool of the agent changed a file. What commands change is not reported."""

    type: Literal["file_change"] = "file_change"
    path: str
    change: Literal["created", "edited", "deleted"]
    tool_id: str | None = None


class PlanItem(TolerantModel):
    """An item of the agent's own plan."""

    text: str
    status: str


class PlanUpdateEvent(EventBase):
    """The agent's plan now."""

    type: Literal["plan_update"] = "plan_update"
    items: tuple[PlanItem, ...]


REFUSED_BY_MODE = "is not allowed here (permission mode "
"""Part of the message of a denial that no person gave."""


class PermissionEvent(EventBase):
    """A tool needs an approval, or the approval was decided or withdrawn."""

    type: Literal["permission"] = "permission"
    id: str
    """The approval's, of which a run has no two."""
    tool: str
    tool_id: str | None = None
    """The id of the tool's call, where the agent tells it: a model may give two calls one."""
    input: JsonObject = Field(default_factory=dict)
    state: Literal["asked", "allowed", "denied", "withdrawn"]
    message: str | None = None


class UsageEvent(EventBase):
    """What the run has consumed so far, over all attempts."""

    type: Literal["usage"] = "usage"
    usage: Usage
    cost_usd: float
    turns: int


TURN_INTERRUPTED = "the turn was interrupted"
"""The text of the progress with which an interrupted turn ends: what the agent does next is for a person to say."""


class ProgressEvent(EventBase):
    """A step worth a line: of a sub-agent, a retry of the model, a resumed session, a message delivered."""

    type: Literal["progress"] = "progress"
    text: str
    data: JsonObject = Field(default_factory=dict)


class RateLimitEvent(EventBase):
    """The model's provider limits the account."""

    type: Literal["rate_limit"] = "rate_limit"
    status: str
    resets_at: datetime | None = None
    limit: str | None = None


class ErrorEvent(EventBase):
    """An error after which the run goes on, or is about to fail."""

    type: Literal["error"] = "error"
    message: str


class EndEvent(EventBase):
    """What the three terminal events have in common."""

    changes: Changes | None = None
    """As in RunResult."""
    finalize: Finalize | None = None
    """As in RunResult."""
    worktree: Worktree | None = None
    """As in RunResult."""


class DoneEvent(EndEvent):
    """Terminal: the run succeeded."""

    type: Literal["done"] = "done"
    text: str = ""
    structured: JsonValue = None
    stop_reason: str | None = None
    stop_report: StopReport | None = None
    """Where a person ended the run with its turn."""


class CancelledEvent(EndEvent):
    """Terminal: the run was cancelled, or its workflow was terminated."""

    type: Literal["cancelled"] = "cancelled"
    stop_report: StopReport | None = None
    terminated: bool = False
    """The server closed the workflow without telling it; the host stopped the agent afterwards."""
    reason: str | None = None
    """What whoever did it said."""
    by: str | None = None
    """Of a terminated run: the identity of the client that terminated it, as the server has it."""


class FailedEvent(EndEvent):
    """Terminal: the run failed."""

    type: Literal["failed"] = "failed"
    error: ErrorType
    message: str
    code: str | None = None
    """The failure's code for programs; "interrupted": a person ended the run."""
    stop_report: StopReport | None = None
    """Where the agent was stopped, e.g. by a limit."""


TerminalEvent = DoneEvent | CancelledEvent | FailedEvent

AgentEvent = Annotated[
    InitEvent
    | MessageEvent
    | ToolUseEvent
    | ToolOutputEvent
    | ToolResultEvent
    | FileChangeEvent
    | PlanUpdateEvent
    | PermissionEvent
    | UsageEvent
    | ProgressEvent
    | RateLimitEvent
    | ErrorEvent
    | DoneEvent
    | CancelledEvent
    | FailedEvent,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[AgentEvent] = TypeAdapter(AgentEvent, config=ConfigDict(defer_build=deferral.models_are_deferred))
TERMINAL_TYPES: Final = frozenset({"done", "cancelled", "failed"})


def is_terminal(event: EventBase) -> TypeGuard[TerminalEvent]:
    """Whether it is the last event of a run."""
    return getattr(event, "type", None) in TERMINAL_TYPES
