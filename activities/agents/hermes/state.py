"""The state of a transcript of Hermes, and its snapshots. What leads to it must not live here (see transcript).

A snapshot is read from a file that the agent's user can write, so it is checked against what a journal can lead to.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from activities.agents.snapshot_fields import ErrorField, Name
from activities.agents.snapshots import Snapshot
from activities.ports.agent import MAX_STRUCTURED, Progress
from activities.untrusted_json import MAX_NAME
from steersman.contracts.activities import Settlement
from steersman.contracts.events import MAX_TEXT
from steersman.contracts.run import Usage

MAX_ASKED = 100
"""This many questions of the agent may be open at one time; further ones are dropped."""
MAX_OPEN_TOOLS = 200
"""This many calls may be open; the end of an older one is shown without its beginning."""
MAX_UNSAVED = 200_000
"""Characters."""


@dataclass
class HermesState(Snapshot):
    """All that feeding a transcript changes. The fields' names are the JSON's, too."""

    progress: Progress = field(default_factory=Progress)
    live: Name = ""
    """The gateway's own name of the session; empty until it is there."""
    resumed: bool = False
    """The session is an older one, which has to be told its directory."""
    placed: bool = False
    """It was told."""
    directory: str = ""
    """Where the agent works."""
    preamble: str = ""
    """What the first prompt begins with."""
    session_error: ErrorField = None
    turn: Literal["", "open", "ending"] = ""
    """`ending`: the turn's end was told, and the gateway still has to let go of it."""
    current: str = ""
    """The command whose text the turn began with; empty for a turn that Hermes began by itself."""
    status: Name = ""
    """How the turn that is ending ended."""
    exhausted: bool = False
    """The turn has reached Hermes's own limit of calls: what it ends with is no answer."""
    answered: bool = False
    """A turn has come to its own end."""
    failure: ErrorField = None
    """Why the last turn failed."""
    parked: bool = False
    """The last turn was interrupted, and no text followed."""
    over: bool = False
    """A person ended the run, and its turn has ended."""
    written: set[str] = field(default_factory=set)
    """Ids of the commands in the journal's input."""
    owed: list[str] = field(default_factory=list)
    """Commands whose text has begun no turn yet."""
    steers: dict[str, Literal["written", "taken", "attached"]] = field(default_factory=dict)
    """Messages that are to steer: taken by the gateway, attached to a tool's result that the model will be given."""
    texts: dict[str, str] = field(default_factory=dict)
    """The texts of messages that were not read yet, by message id."""
    unsaved: list[str] = field(default_factory=list)
    """What results of tools have carried: Hermes writes a result into its session before it attaches that."""
    late: list[str] = field(default_factory=list)
    """Ids of messages that no result of a tool followed: they are to be written as prompts."""
    interrupting: list[str] = field(default_factory=list)
    """Interrupts and ends that no turn's end has answered."""
    settled: dict[str, Settlement] = field(default_factory=dict)
    asking: Annotated[dict[Name, Name], Field(max_length=MAX_ASKED)] = field(default_factory=dict)
    """Unanswered questions of the agent: id -> kind."""
    tools: Annotated[dict[Name, Name], Field(max_length=MAX_OPEN_TOOLS)] = field(default_factory=dict)
    """Open tool calls: id -> name."""
    results: int = 0
    """Tool calls that have ended."""
    thought: str = ""
    """The reasoning that is being told."""
    doubt: bool = False
    """At a gateway, a run of it may be at work that nobody knows the name of, or whose end nobody has seen."""
    own: Usage = field(default_factory=Usage)
    own_calls: int = 0
    children: Usage = field(default_factory=Usage)
    """What sub-agents have used."""
    child_calls: int = 0
    format: Literal[2] = 2
    """Changes with any change after which a transcript would continue wrongly from an older snapshot."""

    def checks(self) -> Iterator[bool]:
        """The checks of what a journal can have led to, each True if it holds."""
        progress = self.progress
        yield max(len(progress.text), len(progress.said), len(self.thought)) <= MAX_TEXT
        yield sum(map(len, self.unsaved)) <= MAX_UNSAVED
        yield len(progress.session_id or "") <= MAX_NAME and len(progress.stop_reason or "") <= MAX_NAME
        yield len(json.dumps(progress.structured)) <= 2 * MAX_STRUCTURED
        usage = (progress.usage, self.own, self.children)
        counts = [each for one in usage for each in one.model_dump().values()]
        counts += [progress.turns, self.results, self.own_calls, self.child_calls]
        yield all(0 <= each < 1 << 62 for each in counts) and progress.cost_usd == 0
        yield all(len(each.how or "") <= MAX_NAME and len(each.id) <= MAX_NAME for each in self.settled.values())
