"""Which session a conversation is of, by its file's name and its first line; with which others it begins, and which
those of its sub-agents are.

How sessions are carried must not live here.
"""

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import BinaryIO

from activities.ports.sessions import AgentSessions, SessionFiles, Subagents
from activities.workspaces.carry.session_program import CHUNK, MAX_SESSIONS, Failed, filled
from activities.workspaces.carry.sessions import MAX_FIRST_LINE, SentSession, session_at

MAX_SUBAGENTS = 50
"""So many sessions of a session's sub-agents are carried with it."""
MAX_SUBAGENT_BYTES = 512 * 1024 * 1024
"""And they have so many bytes together."""
_MAX_NAMING = 1000
"""A conversation names one within so many bytes."""


def is_anywhere(sessions: AgentSessions, session: str) -> bool:
    """Whether the agent keeps it by its id alone, in whichever directory it is held."""
    one, other = (sessions.files(session, PurePath(directory)) for directory in ("/one", "/other"))
    return one is not None and other is not None and _names(one) == _names(other)


def _names(files: SessionFiles) -> tuple[object, ...]:
    return files.conversation, files.folder, files.chosen


def sources_of(sessions: AgentSessions, session: str, home: Path, workspace: Path) -> tuple[str, ...]:
    """The sessions that it begins with, as far as they are in this home of the agent: the first one first. Blocks.

    At most MAX_SESSIONS are looked at.
    """
    found = [session]
    while len(found) <= MAX_SESSIONS:
        source = _source(sessions, found[-1], home, workspace)
        if source is None or source in found:
            break
        found.append(source)
    return tuple(reversed(found[1:]))


def _source(sessions: AgentSessions, session: str, home: Path, workspace: Path) -> str | None:
    files = sessions.files(session, workspace)
    if files is None or files.first_line is None:
        return None
    with suppress(Failed, OSError, ValueError):  # what is wrong with it, the agent says that is to go on with it
        with session_at(str(home), files).read("")[0] as file:
            source = files.first_line.source(file.readline(MAX_FIRST_LINE), session)
        its = sessions.files(source, workspace) if source else None
        if its and session_at(str(home), its).exists():
            return source
    return None


@dataclass
class SubagentSessions:
    """Those of sub-agents that were found. `parents`: whose each is, by their ids. `named`: all that were named, those
    that are not there among them. `why_not_all`: None if all that are there were found.
    """

    parents: dict[str, str] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    why_not_all: str | None = None


def subagents_of(sessions: AgentSessions, session: str, home: Path, directory: PurePath) -> SubagentSessions:
    """Those of a session, and of these, which are in this home of the agent, the newest of each first. Blocks.

    One counts where the other names it, and it says that it is the other's.
    """
    found = SubagentSessions()
    size, waiting = 0, deque([session])
    while waiting:
        parent = waiting.popleft()
        new = [each for each in _named_by(sessions, parent, home, directory) if each not in {session, *found.named}]
        found.named |= {*new}
        for each in new:
            its = _subagent(sessions, each, home, directory)
            if its is None or its[0] != parent:
                continue
            size += its[1]
            if len(found.parents) == MAX_SUBAGENTS or size > MAX_SUBAGENT_BYTES:
                found.why_not_all = too_many(session)
                return found
            found.parents[each] = parent
            waiting.append(each)
    return found


def too_many(session: str) -> str:
    """Why not all sessions of its sub-agents are carried with a session."""
    most = f"{MAX_SUBAGENTS} of sub-agents, or they have more than {MAX_SUBAGENT_BYTES >> 20} MiB"
    return f"session {session} has more than {most}: the newest are carried"


def named_in(file: BinaryIO, subagents: Subagents) -> list[str]:
    """The sessions that a conversation names as its sub-agents', the newest first; as many as may be carried, and one.

    Blocks. Raises OSError.
    """
    newest: dict[str, None] = {}
    before = b""
    while chunk := file.read(CHUNK):
        for match in subagents.named.finditer(before + chunk):
            session = match[1].decode(errors="replace")
            newest.pop(session, None)
            newest[session] = None
            if len(newest) > MAX_SUBAGENTS + 1:
                del newest[next(iter(newest))]
        before = (before + chunk)[-_MAX_NAMING:]
    return list(reversed(newest))


def _named_by(sessions: AgentSessions, session: str, home: Path, directory: PurePath) -> list[str]:
    files = sessions.files(session, directory)
    if files is not None and files.subagents is not None:
        with suppress(Failed, OSError), session_at(str(home), files).read("")[0] as file:
            return named_in(file, files.subagents)
    return []


def _subagent(sessions: AgentSessions, session: str, home: Path, directory: PurePath) -> tuple[str | None, int] | None:
    """Whose a session is, and how many bytes it has; None where it is not there."""
    files = sessions.files(session, directory)
    if files is not None and files.subagents is not None:
        with suppress(Failed, OSError, ValueError):
            file, size = session_at(str(home), files).read("")
            with file:
                return files.subagents.parent(file.readline(MAX_FIRST_LINE), session), size
    return None


def named(
    sent: SentSession,
    was: tuple[str, SessionFiles],
    name: tuple[str, SessionFiles],
    sources: Collection[str],
    parent: str | None = None,
) -> SentSession:
    """A session that was sent, under another id or the same. `was` and `name`: ids, and the files of them.

    `sources`: those that it may begin with. Another one would go to each place that this one is brought to. `parent`:
    the id that the session has here whose sub-agent's this one is. Raises Failed, OSError.
    """
    at = None if sent.at is None else filled(name[1].conversation, sent.at, was[1].conversation)
    if (lines := was[1].every_line) is not None:
        try:
            return sent.renamed(lambda line, is_first: lines.renamed(line, was[0], name[0], is_first=is_first), at)
        except ValueError as error:
            raise Failed(f"session {was[0]}: {error}") from error
    line = sent.first_line() if was[1].first_line else None
    if line is None or was[1].first_line is None:
        return sent.headed(b"", b"", at)
    try:
        source = was[1].first_line.source(line, was[0])
        renamed = was[1].first_line.renamed(line, was[0], name[0])
        if parent is not None and was[1].subagents is not None:
            renamed = was[1].subagents.adopted(renamed, name[0], parent)
    except ValueError as error:
        raise Failed(f"session {was[0]}: {error}") from error
    if source is not None and source not in sources:
        raise Failed(f"session {was[0]}: it says that it begins with {source}, which the run did not have")
    return sent.headed(renamed, line, at)
