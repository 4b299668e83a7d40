"""Which session a conversation is of, by its file's name and its first line; with which others it begins.

How sessions are carried must not live here.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePath

from activities.ports.sessions import AgentSessions, SessionFiles
from activities.workspaces.carry.session_program import MAX_SESSIONS, Failed, filled
from activities.workspaces.carry.sessions import MAX_FIRST_LINE, SentSession, session_at


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


def named(
    sent: SentSession, was: tuple[str, SessionFiles], name: tuple[str, SessionFiles], sources: Collection[str]
) -> SentSession:
    """A session that was sent, under another id or the same. `was` and `name`: ids, and the files of them.

    `sources`: those that it may begin with. Another one would go to each place that this one is brought to. Raises
    Failed, OSError.
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
    except ValueError as error:
        raise Failed(f"session {was[0]}: {error}") from error
    if source is not None and source not in sources:
        raise Failed(f"session {was[0]}: it says that it begins with {source}, which the run did not have")
    return sent.headed(renamed, line, at)
