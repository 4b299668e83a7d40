"""All that a transcript has come to, as JSON: to go on from, in place of a journal of gigabytes.

It is read from a file that the agent's user can write, so it is held to what a journal could have made of a transcript.
What must not live here: what the parts mean.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter

from activities.agents.claude_frames import MAX_NAME, Frame, is_sound
from activities.agents.claude_limits import Refusals
from activities.agents.claude_messages import Messages
from activities.agents.claude_meter import Meter, is_counted
from activities.agents.claude_plan import Plan
from activities.agents.claude_sessions import is_id
from activities.ports.agent import MAX_SNAPSHOT, Progress
from steersman.contracts.errors import ERRORS, ErrorType, RunError
from steersman.contracts.events import MAX_TEXT

VERSION: Final = 1
"""Another number where a transcript of this version would go on wrongly from an older one's snapshot."""
MAX_STRUCTURED = 512 * 1024
MAX_ASKED = 100
"""Requests that wait for an answer at one time; the agent's further ones are not heard."""
MAX_OPEN_TOOLS = 200
"""Tool calls whose results are waited for; of an older one the result is told without its name."""
MAX_TASKS = 1_000
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
class ClaudeState:
    """The attributes of a ClaudeTranscript under their own names: those that feeding it changes."""

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    progress: Progress
    hopeless: _Error
    pending: Annotated[dict[str, Frame], Field(max_length=MAX_ASKED)]
    withdrawn: Annotated[set[_Name], Field(max_length=MAX_TASKS)]
    parked: bool
    messages: Messages
    _meter: Meter
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
        """The attributes."""
        return (each.name for each in fields(cls) if each.name != "version")

    def to_json(self) -> bytes | None:
        """None where it would be larger than MAX_SNAPSHOT: only what the agent asks of people can be."""
        if _weight([self.pending, self._tools, self._refusals], MAX_SNAPSHOT) >= MAX_SNAPSHOT:
            return None
        try:
            written = _STATE.dump_json(self)
        except ValueError:  # nested deeper than anybody reads
            return None
        return written if len(written) <= MAX_SNAPSHOT else None

    @classmethod
    def from_json(cls, data: bytes) -> "ClaudeState":
        """Raises ValueError."""
        try:
            state = _STATE.validate_json(data)
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"that is no snapshot: {error!r}") from error
        if not all(state.sound()):
            raise ValueError("a snapshot says what no journal could have")
        return state

    def sound(self) -> Iterator[bool]:
        """True each, of what a journal can have made."""
        progress = self.progress
        yield self._meter.is_sound() and self._plan.is_sound() and self.messages.is_sound()
        yield progress.session_id is None or is_id(progress.session_id)
        yield max(len(progress.text), len(progress.said)) <= MAX_TEXT
        yield len(progress.stop_reason or "") <= 100 and len(json.dumps(progress.structured)) <= MAX_STRUCTURED
        yield is_counted(progress.turns, progress.cost_usd, progress.usage)
        for key, frame in self.pending.items():
            yield is_sound(frame) and frame["type"] == "control_request" and frame["request_id"] == key
        for tool in self._tools.values():
            yield isinstance(tool.get("input"), dict) and isinstance(tool.get("name"), str)
            yield len(str(tool.get("name"))) <= MAX_NAME


_STATE: TypeAdapter[ClaudeState] = TypeAdapter(ClaudeState)


def _weight(value: list[Any], limit: int) -> int:
    """About how many characters it has as JSON, looked at no further than the limit."""
    rest: list[Any] = [value]
    weight = 0
    while rest and weight < limit:
        each = rest.pop()
        each = vars(each) if isinstance(each, Refusals) else each
        weight += len(each) if isinstance(each, str) else 4
        if isinstance(each, dict):
            rest += each.values()
            weight += sum(map(len, each))
        elif isinstance(each, list):
            rest += each
    return weight
