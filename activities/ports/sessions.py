"""The seam to an agent's sessions as files: where the agent keeps them. How they are carried must not live here."""

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


@dataclass(frozen=True)
class SessionFiles:
    """The files of one session, relative to the agent's own directory; names of `A-Z a-z 0-9 . _ -` alone.

    `conversation` is what it cannot be without, and only grows; in its name `#` stands for any digit. `folder`: all
    files below it belong to it, too. `first_line`: None where the conversation is found by its name alone. `put_away`:
    further names under which the agent may keep the conversation, and does not go on with it.
    """

    conversation: str
    folder: str | None = None
    first_line: FirstLine | None = None
    put_away: tuple[str, ...] = ()


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
