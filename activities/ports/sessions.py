"""The seam to an agent's sessions as files: where the agent keeps them. How they are carried must not live here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from steersman.contracts.activities import RunKey


class FirstLine(Protocol):
    """What the first line of a conversation says of its session, where it names it.

    Each method raises ValueError for a line that does not name the session. The line may be hostile.
    """

    def source(self, line: bytes, session: str) -> str | None:
        """The session whose conversation this one begins with, and cannot be without."""
        ...

    def renamed(self, line: bytes, session: str, name: str) -> bytes:
        """The line as it names this session instead."""
        ...


class EveryLine(Protocol):
    """What the lines of a conversation say of its session, where any of them may name it."""

    def renamed(self, line: bytes, session: str, name: str, *, is_first: bool) -> bytes:
        """The line as it names this session instead; one that names none as it is.

        Raises ValueError for a line that names another session, and for a first one that names none. The line may be
        hostile.
        """
        ...


class Subagents(Protocol):
    """What conversations say of sessions that an agent's sub-agents have held. All of it may be hostile."""

    @property
    def named(self) -> "re.Pattern[bytes]":
        """Where a conversation names one: the id is the first group, and a match has at most 1,000 bytes."""
        ...

    def parent(self, line: bytes, session: str) -> str | None:
        """The session whose sub-agent has held this one, as its first line says. Raises ValueError as FirstLine."""
        ...

    def adopted(self, line: bytes, session: str, parent: str) -> bytes:
        """The first line as it says this of its parent instead. Raises ValueError as FirstLine."""
        ...


@dataclass(frozen=True)
class ChosenDirectory:
    """A directory of the agent's for sessions that were held in one directory, by a name that the agent has chosen.

    `held_in`: where they were held. `roots`: directories that have one of that name each, the first of them that of the
    sessions. `mark`: the file in it that says where they were held. `record`: the file of JSON that has the name, at
    the path `projects`, `held_in`: it counts unless a mark says otherwise. `name`: the one that it is given where it
    has none, with a number if that is another one's.
    """

    held_in: str
    roots: tuple[str, ...]
    mark: str
    record: str
    name: str


@dataclass(frozen=True)
class SessionFiles:
    """The files of one session, relative to the agent's own directory; names of `A-Z a-z 0-9 . _ -` alone.

    `conversation` is what it cannot be without, and only grows; in its name `#` stands for any digit, and `*` for the
    name of the directory `chosen`. `folder`: all files below it belong to it, too. `first_line`, `every_line`: where
    the conversation itself names the session. `put_away`: further names under which the agent may keep the
    conversation, and does not go on with it. `begins`, `has`: ASCII at the beginning of the conversation, and within
    it, which further files of such a name have not. `brought`: the name that it gets where it is brought; None: the
    digits that it has. `subagents`: where it names those of sub-agents, which are carried with it.
    """

    conversation: str
    folder: str | None = None
    first_line: FirstLine | None = None
    put_away: tuple[str, ...] = ()
    every_line: EveryLine | None = None
    chosen: ChosenDirectory | None = None
    begins: str = ""
    has: str = ""
    brought: str | None = None
    subagents: Subagents | None = None


class AgentSessions(Protocol):
    """Where an agent keeps its sessions, and the ids that it lets others choose."""

    def home(self, environment: Mapping[str, str]) -> str | None:
        """The own directory of an agent that has this environment, absolute; None where that does not tell."""
        ...

    def files(self, session: str, directory: PurePath) -> SessionFiles | None:
        """The files of a session held in this directory (resolved, on its machine); None where that is no id."""
        ...

    def begun(self, key: RunKey, attempt: int) -> str | None:
        """The id of the session that the run's process of this number begins, where it begins one; None where the agent
        chooses its ids.
        """
        ...

    def kept(self, key: RunKey, session: str) -> str:
        """The id under which what a run made of a session is kept, where somebody else has gone on with it."""
        ...
