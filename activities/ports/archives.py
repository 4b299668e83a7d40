"""The seam to an agent's sessions in a database of its own: written out and taken in by the agent's own programs.

Where those programs are run, and which session is brought where, must not live here.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from steersman.contracts.activities import RunKey


class Archive(Protocol):
    """One session as it was written out: its messages, in their order."""

    @property
    def newest_s(self) -> float:
        """When its newest message was made, in seconds since 1970; 0 where it has none."""
        ...

    @property
    def ids(self) -> tuple[str, ...]:
        """Those of its messages."""
        ...

    @property
    def parent(self) -> str | None:
        """The session whose sub-agent has held it, as it says itself; None for one that no sub-agent has held."""
        ...

    def subagents(self, after: int = 0) -> tuple[str, ...]:
        """The sessions of its sub-agents that its messages name, but for so many at its beginning: the newest first."""
        ...

    def renamed(self, name: str, known: "Archive | None", parent: str | None = None) -> "Archive":
        """The same session under this id, as what comes from elsewhere may be: each message that `known` does not have
        gets an id that is made of its own and the name, and nothing of it acts by itself. Twice gives the same ids.

        `parent`: the session whose sub-agent has held it.
        """
        ...

    def naming(self, names: Mapping[str, str]) -> "Archive":
        """The same session with what it says of these sessions said of those."""
        ...

    def whole(self) -> "Archive":
        """Without the messages that were not whole yet, and those behind them."""
        ...

    def beyond(self, known: "Archive | None") -> "Archive | None":
        """What there is more than in `known`, of messages with new ids alone; None where that is nothing."""
        ...

    def data(self) -> bytes:
        """As it is taken in."""
        ...


class SessionArchives(Protocol):
    """What an agent's programs do with its sessions. Taking in adds messages, and changes and removes none."""

    def is_id(self, session: str) -> bool:
        """Whether this is an id of a session. A command line may have it then."""
        ...

    def database(self, directory: PurePath) -> dict[str, str]:
        """The variable by which processes that work in this directory of another machine have a database alone."""
        ...

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What the programs need of an agent's environment, and what keeps them from running anything of a workspace.
        Nothing in it is secret.
        """
        ...

    def written_out(self, session: str) -> tuple[str, ...]:
        """The command that writes the session on stdout, which is a file."""
        ...

    def taken_in(self) -> tuple[str, ...]:
        """The command that takes in a session, in the directory in which it is held from then on. The file follows."""
        ...

    def is_absent(self, said: str) -> bool:
        """Whether a command that failed with these words means that there is no such session."""
        ...

    def files(self, environment: Mapping[str, str], directory: PurePath) -> tuple[str, ...]:
        """The files of the database that is alone, absolute."""
        ...

    def archive(self, data: bytes, session: str) -> Archive:
        """A session as it was written out, perhaps by a hostile machine. Raises ValueError where it is not this one."""
        ...

    def kept(self, key: RunKey, session: str) -> str:
        """The id under which what a run made of a session is kept, where somebody else has gone on with it."""
        ...


@runtime_checkable
class ArchivingAgent(Protocol):
    """An agent that has such sessions."""

    archives: SessionArchives
