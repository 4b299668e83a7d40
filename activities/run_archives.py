"""Sessions of a run on another machine whose agent keeps them in a database: written out and taken in by its programs.

    runs/<run>/<execution>/archives.json         where its programs are run, here and at the place
                          /archives-<part>.json  those of a further agent, by its first part of the run
                          /sessions-back.json    what became of them, as of sessions that are files

At the place the run's processes have a database alone (SessionArchives.database). A session goes there whole; what is
more in it at the end is added to the one on the leader, or is kept under an id of its own where somebody else has gone
on with that. Twice is once. A copy on this machine has the leader's own database: nothing is carried.

The sessions of its sub-agents go along, as far as the newest go; back come those that the run has begun or gone on
with. A session is taken in after those of its sub-agents, so that one that was killed in between is gone on with.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from pydantic import BaseModel

from activities.ports.agent import Agent
from activities.ports.archives import Archive, ArchivingAgent, SessionArchives
from activities.ports.machine import Machine
from activities.ports.runtime import Runtime
from activities.returned_sessions import AgentEnvironments, Back, SessionTransfer, log_left, note_begun, record, records
from activities.shim.client import MachineGone, MachineUnusable
from activities.store import disk
from activities.store.held_sessions import note_held
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.notes import note, noted
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.store.session_locks import SessionLocks
from activities.subagent_archives import SubagentSearch, WrittenOut
from activities.workspaces.carry.archives import MAX_ARCHIVE, ArchivePlace, NoProgram
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.carry.session_program import MAX_SESSIONS
from activities.workspaces.carry.sessions import SessionsFailed
from activities.workspaces.printable_text import printable
from steersman.contracts.errors import InvalidRequest

log = logging.getLogger("steersman.running")

CLOCKS_S = 1.0
"""A machine's clock may be this many seconds behind: a process of an agent takes longer to begin."""

MAX_ALONG = 20
"""So many sessions of sub-agents go along, or into a backup: each takes the agent's program a second here and there."""

CopyAt = Callable[[CopyLocation], Awaitable[WorkspaceCopy]]
"""Makes what speaks of the copy there. Raises MachineUnreachable."""


class HeldArchives(BaseModel):
    """Where the sessions of one of a run's agents are. `here`, `there`: the environment of its programs on the leader
    and at the place. `workspace`, `directory`: the workspace on the leader, its copy. `session`: the one that was
    brought there. `forked`: the run works in a fork of that one. `had`: the messages that it had then. `subagents`: the
    sessions of its sub-agents that were brought there, too.
    """

    agent: str
    here: dict[str, str]
    there: dict[str, str]
    workspace: str
    directory: str
    session: str | None = None
    forked: bool = False
    had: int = 0
    subagents: tuple[str, ...] = ()

    def brought(self, found: Mapping[str, Archive], before: "HeldArchives | None") -> "HeldArchives":
        """The same, with these sessions of the leader there. `before`: as it was written down of a place before."""
        had = [before.had] if before else [len(each.ids) for session, each in found.items() if session == self.session]
        subagents = {*(before.subagents if before else ()), *found}.difference([self.session])
        return self.model_copy(update={"had": sum(had), "subagents": tuple(sorted(subagents))})

    def begins_after(self, session: str) -> int:
        """With how many messages the session was brought to the place."""
        return self.had if session == self.session else 0

    @property
    def parents(self) -> tuple[str, ...]:
        """Whose sub-agents' sessions a fork goes on with, besides its own."""
        return (self.session,) if self.session and self.forked else ()


@dataclass(frozen=True)
class _Source:
    """Sessions of one of a run's agents that come back. `written_out`: writes one out."""

    held: HeldArchives
    archives: SessionArchives
    written_out: WrittenOut


class RunArchives:
    """`here`: this machine. `copies`: where the copies of runs are."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        here: Machine,
        copies: KeptCopies,
        copy_at: CopyAt,
        store: RunStore,
        runtime: Runtime,
    ) -> None:
        self._agents, self._here, self._copies, self._copy_at = agents, here, copies, copy_at
        self._store, self._locks = store, SessionLocks(store, runtime)

    async def out(
        self,
        directory: RunDirectory,
        environments: AgentEnvironments,
        workspace: Path,
        copy: str,
        backup: Path | None,
    ) -> None:
        """As RunSessions.out. Raises InvalidRequest, SessionsFailed, MachineUnusable, MachineUnreachable, OSError."""
        request = environments.request
        agent = self._agents[request.agent]
        if request.runtime.kind == "local" or not isinstance(agent, ArchivingAgent):
            return
        archives = agent.archives
        held = HeldArchives(
            agent=request.agent,
            here=archives.environment(environments.here),
            there=archives.environment(environments.there) | archives.database(PurePath(copy)),
            workspace=str(workspace),
            directory=copy,
            session=request.session,
            forked=request.fork_session,
        )
        stored = await asyncio.to_thread(_stored, backup)
        written = record(directory, "archives", environments.parts[0])
        found: dict[str, Archive] = {}
        if request.session:
            found = await self._given(held, archives, directory.key.run)
            if not found and request.session not in stored:
                raise InvalidRequest(f"session: no conversation {request.session} is kept by {held.agent} on this host")
            held = held.brought(found, await asyncio.to_thread(noted, written, HeldArchives))
        found |= {each: _archive(archives, data, each) for each, data in stored.items() if archives.is_id(each)}
        await asyncio.to_thread(note, written, held)
        try:
            await self._bring(await self._place(directory, held, archives), found, held.directory)
        except NoProgram:  # the agent says so that is to be started there, and another one may follow
            written.unlink(missing_ok=True)

    async def _bring(self, place: ArchivePlace, found: Mapping[str, Archive], directory: str) -> None:
        if not found:
            return
        if (behind := max(each.newest_s for each in found.values()) - await place.time_s()) > CLOCKS_S:
            why = "the next message would come before it"
            raise SessionsFailed(f"the clock there is {behind:.0f} s behind the session's newest message: {why}")
        for archive in found.values():
            await place.take_in(archive.data(), directory)

    async def _given(self, held: HeldArchives, archives: SessionArchives, run: str) -> dict[str, Archive]:
        """The session that the run was given, as it is here, with those of its sub-agents; empty where it is not."""
        ours, session = self._ours(held, archives), held.session
        archive = await self._known(ours, archives, session) if session and archives.is_id(session) else None
        if session is None or archive is None:
            return {}
        search = SubagentSearch(archives, ours.written_out, MAX_ALONG)
        found = await search.below(session, archive)
        log_left(run, found.why_not_all)
        return {session: archive, **found.sessions}

    async def back_up(self, directory: RunDirectory, into: Path) -> None:
        """Have the run's sessions below this directory, as they are at the place now.

        Raises SessionsFailed, MachineUnusable, MachineGone, MachineUnreachable, OSError.
        """
        for held, archives in await asyncio.to_thread(self._held, directory):
            place = await self._place(directory, held, archives)
            await asyncio.to_thread(into.mkdir, mode=0o700, parents=True, exist_ok=True)
            search = SubagentSearch(archives, place.written_out, MAX_ALONG)
            for session in await asyncio.to_thread(self._sessions, directory, held, archives):
                if (archive := await self._known(place, archives, session)) is None:
                    continue
                found = await search.below(session, archive, held.begins_after(session), held.parents)
                log_left(directory.key.run, found.why_not_all)
                for each, its in {session: archive, **found.sessions}.items():
                    kept = into / f"{each}.archive"
                    if not await asyncio.to_thread(kept.exists):
                        await asyncio.to_thread(disk.write_new, kept, its.whole().data().decode())

    async def carried(self, directory: RunDirectory, *, keep: bool) -> list[SessionTransfer]:
        """Those of each agent, for `take_back`. `keep`: they stay at the place."""
        held = await asyncio.to_thread(self._held, directory)
        return [self._carried(directory, *each, keep=keep) for each in held]

    def _carried(
        self, directory: RunDirectory, held: HeldArchives, archives: SessionArchives, *, keep: bool
    ) -> SessionTransfer:
        async def bring(kept: dict[str, str]) -> None:
            place = await self._place(directory, held, archives)
            source = _Source(held, archives, place.written_out)
            sessions = await asyncio.to_thread(self._sessions, directory, held, archives)
            whys = [
                await self._take(directory, source, session, archive, kept, keep=keep)
                for session in sessions
                if (archive := await self._known(place, archives, session)) is not None
            ]
            _raise(whys)

        async def remove() -> None:
            place = await self._place(directory, held, archives)
            await place.remove(archives.files(held.there, PurePath(held.directory)))

        return SessionTransfer(bring, remove)

    async def back_from(self, directory: RunDirectory, backup: Path) -> Back | None:
        """The place was lost for good: bring back what was backed up. Returns what became of it; None where the run has
        no such agent. Raises OSError.
        """
        if not (written := await asyncio.to_thread(self._held, directory)):
            return None
        kept: dict[str, str] = {}
        error = None
        try:
            for held, archives in written:
                whys = []
                stored = await asyncio.to_thread(_stored, backup)
                source = _Source(held, archives, _from(stored))
                for session in await asyncio.to_thread(self._sessions, directory, held, archives):
                    if session in stored:
                        archive = _archive(archives, stored[session], session)
                        whys.append(await self._take(directory, source, session, archive, kept))
                _raise(whys)
        except (SessionsFailed, MachineUnusable, MachineGone) as failure:
            error = printable(str(failure))[:1000]
        return Back(kept=kept, error=error, removed=error is None)

    async def _take(
        self,
        directory: RunDirectory,
        source: _Source,
        session: str,
        came: Archive,
        kept: dict[str, str],
        *,
        keep: bool = False,
    ) -> str | None:
        """Add what is more in the session than on the leader, after what is more in those of its sub-agents; tell
        `kept` of those that have another id there. `keep`: processes may be at work on it. Returns why some of its
        sub-agents' were left; None where none was.
        """
        held, ours = source.held, self._ours(source.held, source.archives)
        search = SubagentSearch(source.archives, source.written_out, MAX_SESSIONS)
        found = await search.below(session, came, held.begins_after(session), held.parents)
        whys, more, names = [found.why_not_all], {}, dict[str | None, str]()
        for each, archive in {session: came, **found.sessions}.items():
            parent = names.get(archive.parent, names.get(session))
            its = archive.whole() if keep else archive
            try:
                names[each], more[each] = await self._fitted(directory, source, each, its, parent)
            except SessionsFailed as error:
                if each == session:
                    raise
                whys.append(str(error))
        moved = {each: name for each, name in names.items() if each and each != name}
        for each in reversed(more):
            if (added := more[each]) is not None:
                await ours.take_in(added.naming(moved).data(), held.workspace)
        kept |= moved
        return "; ".join(filter(None, whys)) or None

    async def _fitted(
        self, directory: RunDirectory, source: _Source, session: str, came: Archive, parent: str | None
    ) -> tuple[str, Archive | None]:
        """The id that the session has on the leader, and what is more in it than there; None where that is nothing.

        Under an id of the agent's choice only where no session had that here: it could be one of another workspace.
        """
        held, archives = source.held, source.archives
        ours = self._ours(held, archives)
        has = await self._known(ours, archives, session)
        begun = await asyncio.to_thread(note_begun, directory, session, is_here=has is not None)
        kept = archives.kept(directory.agent_key, session)
        for name in (session, kept) if session in {held.session, *held.subagents, *begun} else (kept,):
            known = has if name == session else await self._known(ours, archives, name)
            its = came.renamed(name, known, parent)
            if known and not _begins(its, known):
                if _begins(known, its):
                    return name, None
                continue
            if known is None:
                await asyncio.to_thread(note_held, self._store.state, held.agent, name, held.workspace)
            return name, its.beyond(known)
        raise SessionsFailed(f"session {session}: what is on the host, also under {kept}, is another one")

    async def _known(self, ours: ArchivePlace, archives: SessionArchives, session: str) -> Archive | None:
        data = await ours.written_out(session)
        return None if data is None else _archive(archives, data, session)

    def _sessions(self, directory: RunDirectory, held: HeldArchives, archives: SessionArchives) -> list[str]:
        """Those that the run's processes may have at the place, but for one that they only forked."""
        given = () if held.session is None or held.forked else (held.session,)
        told = self._locks.held_by(held.agent, directory)
        found = {each for each in (*given, *told) if archives.is_id(each) and (each != held.session or not held.forked)}
        return sorted(found)[:MAX_SESSIONS]

    def _held(self, directory: RunDirectory) -> list[tuple[HeldArchives, SessionArchives]]:
        """What is written down of the sessions of each of the run's agents."""
        found = []
        for each in records(directory, "archives"):
            held = noted(each, HeldArchives)
            agent: object = self._agents.get(held.agent) if held else None
            if held and isinstance(agent, ArchivingAgent):
                found.append((held, agent.archives))
        return found

    def _ours(self, held: HeldArchives, archives: SessionArchives) -> ArchivePlace:
        return ArchivePlace(self._here, archives, held.here)

    async def _place(self, directory: RunDirectory, held: HeldArchives, archives: SessionArchives) -> ArchivePlace:
        copy = await self._copy_at(await asyncio.to_thread(self._copies.location, directory))
        return ArchivePlace(copy.machine, archives, held.there)


def _archive(archives: SessionArchives, data: bytes, session: str) -> Archive:
    """Raises SessionsFailed."""
    if len(data) > MAX_ARCHIVE:
        raise SessionsFailed(f"session {session} has more than {MAX_ARCHIVE >> 20} MiB")
    try:
        return archives.archive(data, session)
    except ValueError as error:
        raise SessionsFailed(f"session {session}: {error}") from error


def _stored(backup: Path | None) -> dict[str, bytes]:
    """What a backup has, by the sessions' ids."""
    if backup is None:
        return {}
    return {path.stem: path.read_bytes() for path in sorted(backup.glob("*.archive"))}


def _begins(archive: Archive, known: Archive) -> bool:
    """Whether it begins with all messages of the known one."""
    return archive.ids[: len(known.ids)] == known.ids


def _from(stored: Mapping[str, bytes]) -> WrittenOut:
    async def written_out(session: str) -> bytes | None:
        return stored.get(session)

    return written_out


def _raise(whys: Sequence[str | None]) -> None:
    """Raises SessionsFailed where there is a reason."""
    if told := "; ".join(filter(None, whys)):
        raise SessionsFailed(told)
