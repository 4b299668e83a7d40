"""Snapshots: the state of a transcript as JSON, restored in place of reading a journal of gigabytes.

One is read from a file that the agent's user can write, so it is checked against what a journal can lead to. What the
parts of the state mean must not live here.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from activities.agents.claude.frames import is_control_frame
from activities.agents.claude.messages import Messages
from activities.agents.claude.plan import Plan
from activities.agents.claude.rate_limits import Refusals
from activities.agents.claude.sessions import is_id
from activities.agents.claude.usage import UsageMeter, is_counted
from activities.agents.frames import Frame
from activities.agents.snapshot_fields import ErrorField, Name
from activities.agents.snapshots import Snapshot
from activities.ports.agent import MAX_STRUCTURED, Progress
from activities.untrusted_json import MAX_NAME
from steersman.contracts.events import MAX_TEXT

VERSION: Final = 2
"""Must change with any change after which a transcript would continue wrongly from an older snapshot."""
MAX_ASKED = 100
"""This many requests of the agent may be open at one time: with a further one it fails."""
TOO_MANY = f"the agent asks more than {MAX_ASKED} things at once"
MAX_OPEN_TOOLS = 200
"""This many tool calls may await their results; the result of an older one is shown without the tool's name."""
MAX_TASKS = 1_000
"""This many delegated tasks, and this many withdrawn approvals, are remembered."""


@dataclass
class ClaudeSnapshot(Snapshot):
    """The attributes of a ClaudeTranscript that feeding it changes, under their own names, which are the JSON's too."""

    progress: Progress
    hopeless: ErrorField
    pending: Annotated[dict[str, Frame], Field(max_length=MAX_ASKED)]
    withdrawn: Annotated[set[Name], Field(max_length=MAX_TASKS)]
    parked: bool
    messages: Messages
    _meter: UsageMeter
    _refusals: Refusals
    _state: str
    _begun: bool
    _turn_open: bool
    _answered_once: bool
    _over: bool
    _error: ErrorField
    _tools: Annotated[dict[Name, Frame], Field(max_length=MAX_OPEN_TOOLS)]
    _tasks: Annotated[set[Name], Field(max_length=MAX_TASKS)]
    _background: set[str]
    _plan: Plan
    version: Literal[2] = VERSION

    @classmethod
    def names(cls) -> Iterator[str]:
        """The names of the attributes."""
        return (each.name for each in fields(cls) if each.name != "version")

    def frames(self) -> Iterable[Any]:
        """See Snapshot."""
        return (self.pending, self._tools, vars(self._refusals))

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
