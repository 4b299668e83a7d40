"""Snapshots: the state of a transcript as JSON, restored in place of reading a journal of gigabytes.

One is read from a file that the agent's user can write, so it is checked against what a journal can lead to. What the
parts of the state mean must not live here.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter

from activities.agents.claude.frames import is_control_frame
from activities.agents.claude.messages import Messages
from activities.agents.claude.plan import Plan
from activities.agents.claude.rate_limits import Refusals
from activities.agents.claude.sessions import is_id
from activities.agents.claude.usage import UsageMeter, is_counted
from activities.agents.frames import Frame
from activities.ports.agent import MAX_SNAPSHOT, Progress
from activities.untrusted_json import MAX_NAME
from steersman.contracts.errors import ERRORS, ErrorType, RunError
from steersman.contracts.events import MAX_TEXT

VERSION: Final = 1
"""Must change with any change after which a transcript would continue wrongly from an older snapshot."""
MAX_STRUCTURED = 512 * 1024
"""A structured answer may have this many characters of JSON."""
MAX_ASKED = 100
"""This many requests of the agent may be open at one time; further ones are dropped."""
MAX_OPEN_TOOLS = 200
"""This many tool calls may await their results; the result of an older one is shown without the tool's name."""
MAX_TASKS = 1_000
"""This many delegated tasks, and this many withdrawn approvals, are remembered."""
_MAX_MESSAGE = 8_000
_MAX_FACTS = 64 * 1024


def _error_from(value: Any) -> RunError | None:
    if value is None or isinstance(value, RunError):
        return value
    kind, message, facts = value
    if not isinstance(message, str) or not isinstance(facts, dict) or len(message) > _MAX_MESSAGE:
        raise ValueError("that is no error")
    if len(json.dumps(facts)) > _MAX_FACTS:
        raise ValueError("an error has too many facts")
    error = ERRORS[ErrorType(kind)](message)
    error.facts = facts
    return error


def _error_to(error: RunError | None) -> list[Any] | None:
    return [error.type, error.message, error.facts] if error else None


_Error = Annotated[RunError | None, PlainValidator(_error_from), PlainSerializer(_error_to)]
_Name = Annotated[str, Field(max_length=MAX_NAME)]


@dataclass
class ClaudeSnapshot:
    """The attributes of a ClaudeTranscript that feeding it changes, under their own names, which are the JSON's too."""

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    progress: Progress
    hopeless: _Error
    pending: Annotated[dict[str, Frame], Field(max_length=MAX_ASKED)]
    withdrawn: Annotated[set[_Name], Field(max_length=MAX_TASKS)]
    parked: bool
    messages: Messages
    _meter: UsageMeter
    _refusals: Refusals
    _state: str
    _begun: bool
    _turn_open: bool
    _answered_once: bool
    _over: bool
    _error: _Error
    _tools: Annotated[dict[_Name, Frame], Field(max_length=MAX_OPEN_TOOLS)]
    _tasks: Annotated[set[_Name], Field(max_length=MAX_TASKS)]
    _background: set[str]
    _plan: Plan
    version: Literal[1] = VERSION

    @classmethod
    def names(cls) -> Iterator[str]:
        """The names of the attributes."""
        return (each.name for each in fields(cls) if each.name != "version")

    def to_json(self) -> bytes | None:
        """None if it would be larger than MAX_SNAPSHOT, which only the agent's requests can make it."""
        if _estimated_size([self.pending, self._tools, self._refusals], MAX_SNAPSHOT) >= MAX_SNAPSHOT:
            return None
        try:
            written = _STATE.dump_json(self)
        except ValueError:  # nested deeper than pydantic writes
            return None
        return written if len(written) <= MAX_SNAPSHOT else None

    @classmethod
    def from_json(cls, data: bytes) -> "ClaudeSnapshot":
        """Raises ValueError."""
        try:
            state = _STATE.validate_json(data)
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"that is no snapshot: {error!r}") from error
        if not all(state.checks()):
            raise ValueError("a snapshot says what no journal could have")
        return state

    def checks(self) -> Iterator[bool]:
        """The checks of what a journal can have led to, each True if it holds."""
        progress = self.progress
        yield self._meter.is_sound() and self._plan.is_sound() and self.messages.is_sound()
        yield progress.session_id is None or is_id(progress.session_id)
        yield max(len(progress.text), len(progress.said)) <= MAX_TEXT
        yield len(progress.stop_reason or "") <= 100 and len(json.dumps(progress.structured)) <= MAX_STRUCTURED
        yield is_counted(progress.turns, progress.cost_usd, progress.usage)
        for key, frame in self.pending.items():
            yield is_control_frame(frame) and frame["type"] == "control_request" and frame["request_id"] == key
        for tool in self._tools.values():
            yield isinstance(tool.get("input"), dict) and isinstance(tool.get("name"), str)
            yield len(str(tool.get("name"))) <= MAX_NAME


_STATE: TypeAdapter[ClaudeSnapshot] = TypeAdapter(ClaudeSnapshot)


def _estimated_size(value: list[Any], limit: int) -> int:
    """About how many characters the value has as JSON, counted no further than `limit`."""
    rest: list[Any] = [value]
    size = 0
    while rest and size < limit:
        each = rest.pop()
        each = vars(each) if isinstance(each, Refusals) else each
        size += len(each) if isinstance(each, str) else 4
        if isinstance(each, dict):
            rest += each.values()
            size += sum(map(len, each))
        elif isinstance(each, list):
            rest += each
    return size
