"""The state of a transcript of Codex, and its snapshots. What leads to it must not live here (see transcript).

A snapshot is read from a file that the agent's user can write, so it is checked against what a journal can lead to.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from activities.agents.frames import Frame
from activities.agents.snapshot_fields import Name
from activities.agents.snapshots import Snapshot
from activities.agents.tool_output import ToolOutputs
from activities.ports.agent import Progress
from activities.untrusted_json import MAX_NAME
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import ERRORS, ErrorType, RunError
from steersman.contracts.events import MAX_TEXT
from steersman.contracts.run import Usage

MAX_ASKED = 100
"""This many requests of the agent may be open at one time: with a further one it fails."""
TOO_MANY = f"the agent asks more than {MAX_ASKED} things at once"
MAX_WITHDRAWN = 1_000
"""This many withdrawn approvals are remembered."""
MAX_OPEN_ITEMS = 200
"""This many items may be open; the end of an older one is shown without its beginning."""
MAX_THREADS = 200
"""Of this many threads it is known what they have used; of another one's next call, what that call has."""
Failure = tuple[ErrorType, Annotated[str, Field(max_length=8_000)], dict[str, Any]]
"""An error's type, message and facts."""


@dataclass
class CodexState(Snapshot):
    """All that feeding a transcript changes. The fields' names are the JSON's, too."""

    progress: Progress = field(default_factory=Progress)
    version: Name = ""
    begun: bool = False
    """The thread is there."""
    session_error: Failure | None = None
    turn: Name = ""
    """The turn that runs; empty for none."""
    spoken: bool = False
    """The model was given a text in this turn."""
    blocked: Annotated[str, Field(max_length=MAX_NAME)] = ""
    """Why a hook kept a text from the model, which has said nothing since; Codex ends the turn then."""
    answered: bool = False
    """A turn has come to its own end."""
    failure: Failure | None = None
    """Why the last turn failed."""
    goal: bool = False
    """The thread has a goal for which Codex begins turns by itself."""
    parked: bool = False
    """The last turn was interrupted, and no text followed."""
    over: bool = False
    """A person ended the run, and its turn has ended."""
    written: set[str] = field(default_factory=set)
    """Ids of the commands in the journal's input."""
    owed: dict[str, str] = field(default_factory=dict)
    """Texts that the model was not given yet: command id -> turn that has them, empty for none."""
    interrupting: dict[str, str] = field(default_factory=dict)
    """Interrupts and ends that no turn's end has answered: command id -> turn."""
    delegated: Annotated[dict[Name, Name], Field(max_length=MAX_THREADS)] = field(default_factory=dict)
    """Turns of sub-agents that run: turn -> thread. An interrupt ends the agent's own alone, as Codex has it."""
    begun_threads: Annotated[set[Name], Field(max_length=MAX_THREADS)] = field(default_factory=set)
    """Threads of sub-agents that were begun, and whose first turn was not told yet."""
    unclean: Annotated[dict[Name, Name], Field(max_length=2 * MAX_THREADS)] = field(default_factory=dict)
    """Interrupted turns whose commands may be at work: turn -> thread."""
    settled: dict[str, Settlement] = field(default_factory=dict)
    pending: Annotated[dict[str, Frame], Field(max_length=MAX_ASKED)] = field(default_factory=dict)
    """Unanswered requests of the agent, by request id."""
    withdrawn: Annotated[set[Name], Field(max_length=MAX_WITHDRAWN)] = field(default_factory=set)
    """Ids of approvals that the agent needs no more."""
    items: Annotated[dict[Name, Frame], Field(max_length=MAX_OPEN_ITEMS)] = field(default_factory=dict)
    """Open tool calls: item id -> name, input and thread."""
    parents: Annotated[dict[Name, Name], Field(max_length=MAX_THREADS)] = field(default_factory=dict)
    """Threads of sub-agents -> the call that began each, or began it anew."""
    closed: Annotated[set[Name], Field(max_length=MAX_OPEN_ITEMS)] = field(default_factory=set)
    """Calls that ended with their turn, of the last turns."""
    outputs: ToolOutputs = field(default_factory=ToolOutputs)
    """Of the open tool calls."""
    totals: Annotated[dict[Name, Usage], Field(max_length=MAX_THREADS)] = field(default_factory=dict)
    """What each thread, a sub-agent's too, has used in all its life, as it was told last."""
    format: Literal[2] = 2
    """Changes with any change after which a transcript would continue wrongly from an older snapshot."""

    def checks(self) -> Iterator[bool]:
        """The checks of what a journal can have led to, each True if it holds."""
        progress = self.progress
        yield max(len(progress.text), len(progress.said)) <= MAX_TEXT
        yield len(progress.session_id or "") <= MAX_NAME and len(progress.stop_reason or "") <= MAX_NAME
        used = (progress.usage, *self.totals.values())
        counts = [progress.turns, *(count for each in used for count in each.model_dump().values())]
        yield all(0 <= each < 1 << 62 for each in counts) and progress.cost_usd == 0
        yield all(key == str(frame.get("id")) for key, frame in self.pending.items())
        yield all(isinstance(each.get("name"), str) for each in self.items.values())
        yield all(len(each.how or "") <= MAX_NAME and len(each.id) <= MAX_NAME for each in self.settled.values())


def failure(error: RunError) -> Failure:
    """An error as the state has it."""
    return error.type, error.message, error.facts


def error_of(known: Failure | None) -> RunError | None:
    """The error that the state has."""
    if known is None:
        return None
    kind, message, facts = known
    error = ERRORS[kind](message)
    error.facts = facts
    return error
