"""AgentEvent: everything an agent does, in one vocabulary for all agents.

A run's events are numbered from 1 without gaps, and the last one is exactly one of done, cancelled, failed. Strings in
events are bounded (MAX_TEXT characters each, `truncated` says so); the journal beside the agent has every byte.
"""

from datetime import datetime
from typing import Annotated, Final, Literal, TypeGuard

from pydantic import Field, TypeAdapter

from steersman.contracts.errors import ErrorType
from steersman.contracts.model import JsonObject, JsonValue, TolerantModel
from steersman.contracts.run import StopReport, Usage

MAX_TEXT: Final = 256 * 1024


class EventBase(TolerantModel):
    """Fields of every event."""

    seq: int = 0
    """Number in the run, from 1; 0 before the log has numbered it."""
    time: datetime
    attempt: int = 1
    """Which process of the agent it came from."""
    truncated: bool = False


class InitEvent(EventBase):
    """A session began, or was resumed."""

    type: Literal["init"] = "init"
    session_id: str | None = None
    model: str | None = None
    version: str | None = None
    tools: tuple[str, ...] = ()


class MessageEvent(EventBase):
    """Something said. Deltas come first where the agent streams; the whole message follows with `delta` false."""

    type: Literal["message"] = "message"
    role: Literal["assistant", "user"] = "assistant"
    kind: Literal["text", "thinking"] = "text"
    text: str
    delta: bool = False
    message_id: str | None = None
    parent_tool_id: str | None = None
    """Said by a sub-agent that this tool call started."""


class ToolUseEvent(EventBase):
    """The agent uses a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: JsonObject
    parent_tool_id: str | None = None


class ToolResultEvent(EventBase):
    """What the tool answered."""

    type: Literal["tool_result"] = "tool_result"
    id: str
    name: str | None = None
    text: str
    is_error: bool = False


class FileChangeEvent(EventBase):
    """The agent's tool changed a file (a command it ran may change others unseen)."""

    type: Literal["file_change"] = "file_change"
    path: str
    change: Literal["created", "edited", "deleted"]
    tool_id: str | None = None


class PlanItem(TolerantModel):
    """One line of the agent's own plan."""

    text: str
    status: str


class PlanUpdateEvent(EventBase):
    """The agent's plan as it stands."""

    type: Literal["plan_update"] = "plan_update"
    items: tuple[PlanItem, ...]


class PermissionEvent(EventBase):
    """A tool needs a person's word, or got it."""

    type: Literal["permission"] = "permission"
    id: str
    tool: str
    input: JsonObject = Field(default_factory=dict)
    state: Literal["asked", "allowed", "denied", "withdrawn"]
    message: str | None = None


class UsageEvent(EventBase):
    """Tokens and money so far, over all attempts."""

    type: Literal["usage"] = "usage"
    usage: Usage
    cost_usd: float
    turns: int


class ProgressEvent(EventBase):
    """Something worth a line: a sub-agent's step, a retry of the model, a resumed session, a message delivered."""

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
    """Something went wrong and the run goes on, or is about to fail."""

    type: Literal["error"] = "error"
    message: str


class DoneEvent(EventBase):
    """Terminal: the run succeeded."""

    type: Literal["done"] = "done"
    text: str = ""
    structured: JsonValue = None
    stop_reason: str | None = None
    stop_report: StopReport | None = None
    """Of a run that a person ended with its turn."""


class CancelledEvent(EventBase):
    """Terminal: the run was cancelled, or its workflow was terminated."""

    type: Literal["cancelled"] = "cancelled"
    stop_report: StopReport | None = None
    terminated: bool = False
    """Temporal ended the workflow without asking it; the host stopped the agent then."""
    reason: str | None = None
    """In the words of whoever did it."""
    by: str | None = None
    """Of a terminated run: the identity of the client that did it, as the server has it."""


class FailedEvent(EventBase):
    """Terminal: the run failed."""

    type: Literal["failed"] = "failed"
    error: ErrorType
    message: str
    code: str | None = None
    """What a program can tell it by; "interrupted": a person had ended the run."""
    stop_report: StopReport | None = None
    """Where the agent was stopped, e.g. by a limit."""


TerminalEvent = DoneEvent | CancelledEvent | FailedEvent

AgentEvent = Annotated[
    InitEvent
    | MessageEvent
    | ToolUseEvent
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

EVENT: TypeAdapter[AgentEvent] = TypeAdapter(AgentEvent)
TERMINAL_TYPES: Final = frozenset({"done", "cancelled", "failed"})


def is_terminal(event: EventBase) -> TypeGuard[TerminalEvent]:
    """Whether nothing can follow this event."""
    return isinstance(event, DoneEvent | CancelledEvent | FailedEvent)
