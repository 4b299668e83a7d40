"""Snapshots of ACP transcripts, read as hostile input: see ports.Transcript. What the parts mean must not live here."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from activities.agents.acp.frames import is_request, key_of
from activities.agents.acp.messages import Messages
from activities.agents.acp.session_start import Start
from activities.agents.acp.tools import MAX_OPEN
from activities.agents.acp.usage import UsageMeter
from activities.agents.frames import Frame
from activities.agents.snapshot_fields import ErrorField, Name
from activities.agents.snapshots import Snapshot
from activities.agents.tool_output import ToolOutputs
from activities.ports.agent import MAX_STRUCTURED, Progress
from steersman.contracts.events import MAX_TEXT

VERSION: Final = 1
"""Must change with any change after which a transcript would continue wrongly from an older snapshot."""
MAX_ASKED: Final = 100
"""This many requests of the agent may be open at one time; further ones are dropped."""
MAX_WITHDRAWN: Final = 1_000
MAX_TOLD: Final = 100
"""This many texts are told again to a session that has lost them; of more the newest, and the first."""
_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")


def is_session(text: str) -> bool:
    """Whether it can be a request's `session`."""
    return _SESSION.fullmatch(text) is not None


@dataclass
class AcpSnapshot(Snapshot):
    """The attributes of an AcpTranscript that feeding it changes, under their own names, which are the JSON's too."""

    progress: Progress
    hopeless: ErrorField
    pending: Annotated[dict[str, Frame], Field(max_length=MAX_ASKED)]
    withdrawn: Annotated[set[Name], Field(max_length=MAX_WITHDRAWN)]
    parked: bool
    messages: Messages
    start: Start
    abilities: Frame
    opened: Frame | None
    steered: dict[Name, list[Frame]]
    set_up: set[Name]
    _meter: UsageMeter
    _calls: Annotated[dict[Name, Frame], Field(max_length=MAX_OPEN + 1)]
    _buffer: Annotated[list[str], Field(max_length=1_000)]
    _buffer_size: int
    _buffer_kind: Literal["", "text", "thinking"]
    _buffer_id: Name
    _buffer_cut: bool
    _spoken: Annotated[str, Field(max_length=MAX_TEXT)]
    _begun: bool
    _answered_once: bool
    _over: bool
    _no_session: bool
    _denied: Name
    _broken: bool
    _error: ErrorField
    version: Literal[1] = VERSION
    _outputs: ToolOutputs = field(default_factory=ToolOutputs)
    told: Annotated[list[str], Field(max_length=MAX_TOLD + 1)] = field(default_factory=list)

    @classmethod
    def names(cls) -> Iterator[str]:
        """The names of the attributes."""
        return (each.name for each in fields(cls) if each.name != "version")

    def frames(self) -> Iterable[Any]:
        """See Snapshot."""
        return (self.pending, self._calls, self.abilities, self.opened, self.steered, self.told)

    def counts(self) -> bool:
        """Whether the progress has what was metered."""
        progress = self.progress
        return (progress.turns, progress.cost_usd, progress.usage) == (0, 0, self._meter.usage)

    def checks(self) -> Iterator[bool]:
        """The checks of what a journal can have led to, each True if it holds."""
        progress = self.progress
        yield self._meter.is_sound() and self.messages.is_sound()
        yield progress.session_id is None or is_session(progress.session_id)
        yield max(len(progress.text), len(progress.said)) <= MAX_TEXT
        yield len(progress.stop_reason or "") <= 100 and len(json.dumps(progress.structured)) <= 2 * MAX_STRUCTURED
        yield self.counts()
        yield self._buffer_size == sum(map(len, self._buffer)) <= MAX_TEXT
        for key, frame in self.pending.items():
            yield is_request(frame) and key_of(frame.get("id")) == key
        for call in self._calls.values():
            yield isinstance(call.get("input"), dict) and isinstance(call.get("name"), str)
            yield isinstance(call.get("shown"), bool) and isinstance(call.get("ended"), bool)
