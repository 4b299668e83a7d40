"""Sessions that sub-agents have held, of an agent that keeps sessions in a database: found by what their parents say.

A session says which those of its sub-agents are, and each of those says whose it is. Either may be a lie of a machine
that a run had: one counts only where both say so.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from activities.ports.archives import Archive, SessionArchives
from activities.shim.client import MachineUnusable
from activities.workspaces.carry.archives import MAX_ARCHIVE
from activities.workspaces.carry.sessions import SessionsFailed
from activities.workspaces.printable_text import printable

WrittenOut = Callable[[str], Awaitable[bytes | None]]
"""Writes a session out, perhaps a hostile one; None where there is none. Raises SessionsFailed, MachineUnreachable."""


@dataclass
class SubagentSessions:
    """What was found. `sessions`: by their ids, parents before their own sub-agents'. `why_not_all`: None if all."""

    sessions: dict[str, Archive] = field(default_factory=dict)
    why_not_all: str | None = None


@dataclass(frozen=True)
class SubagentSearch:
    """How they are asked for. `most`: so many are asked for, the newest of each parent first."""

    archives: SessionArchives
    written_out: WrittenOut
    most: int

    async def below(
        self, session: str, archive: Archive, after: int = 0, parents: Collection[str] = ()
    ) -> SubagentSessions:
        """Those of a session, and of these, but for what its first `after` messages name. `parents`: others whose they
        may be. Raises MachineUnreachable.
        """
        found = SubagentSessions()
        asked, size = {session, *parents}, 0
        waiting = deque((each, {session, *parents}) for each in archive.subagents(after))
        while waiting:
            name, of = waiting.popleft()
            if name in asked:
                continue
            if len(asked) > self.most + len(parents):
                found.why_not_all = f"session {session} has more than {self.most} of sub-agents: the newest are carried"
                break
            asked.add(name)
            try:
                data = await self.written_out(name)
                its = None if data is None else self.archives.archive(data, name)
            except (SessionsFailed, MachineUnusable, ValueError) as error:
                found.why_not_all = printable(f"session {name} of a sub-agent: {error}")
                break
            if data is None or its is None or its.parent not in of:
                continue
            if (size := size + len(data)) > MAX_ARCHIVE:
                found.why_not_all = f"sessions of sub-agents of {session} have more than {MAX_ARCHIVE >> 20} MiB"
                break
            found.sessions[name] = its
            waiting.extend((each, {name}) for each in its.subagents())
        return found
