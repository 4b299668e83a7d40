"""Sessions of a run on another machine whose agent keeps them in a database: written out and taken in by its programs.

    runs/<run>/<execution>/archives.json         where its programs are run, here and at the place
                          /archives-<part>.json  those of a further agent, by its first part of the run
                          /sessions-back.json    what became of them, as of sessions that are files

At the place the run's processes have a database alone (SessionArchives.database). A session goes there whole; what is
more in it at the end is added to the one on the leader, or is kept under an id of its own where somebody else has gone
on with that. Twice is once. A copy on this machine has the leader's own database: nothing is carried.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePath

from pydantic import BaseModel

from activities.ports.agent import Agent
from activities.ports.archives import Archive, ArchivingAgent, SessionArchives
from activities.ports.machine import Machine
from activities.ports.runtime import Runtime
from activities.returned_sessions import AgentEnvironments, Back, SessionTransfer, note_begun, record, records
from activities.shim.client import MachineGone, MachineUnusable
from activities.store import disk
from activities.store.held_sessions import note_held
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.notes import note, noted
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.store.session_locks import SessionLocks
from activities.workspaces.carry.archives import MAX_ARCHIVE, ArchivePlace, NoProgram
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.carry.session_program import MAX_SESSIONS
from activities.workspaces.carry.sessions import SessionsFailed
from activities.workspaces.printable_text import printable
from steersman.contracts.errors import InvalidRequest

log = logging.getLogger("steersman.running")

CLOCKS_S = 1.0
"""A machine's clock may be this many seconds behind: a process of an agent takes longer to begin."""

CopyAt = Callable[[CopyLocation], Awaitable[WorkspaceCopy]]
"""Makes what speaks of the copy there. Raises MachineUnreachable."""


class HeldArchives(BaseModel):
    """Where the sessions of one of a run's agents are. `here`, `there`: the environment of its programs on the leader
    and at the place. `workspace`, `directory`: the workspace on the leader, its copy. `session`: the one that was
    brought there. `forked`: the run works in a fork of that one.
    """

    agent: str
    here: dict[str, str]
    there: dict[str, str]
    workspace: str
    directory: str
    session: str | None = None
    forked: bool = False


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
        data = {session: each for session, each in stored.items() if archives.is_id(session)}
        if request.session and request.session not in data:
            data[request.session] = await self._written_out(held, archives, request.session)
        written = record(directory, "archives", environments.parts[0])
        await asyncio.to_thread(note, written, held)
        try:
            await self._bring(await self._place(directory, held, archives), data, held.directory)
        except NoProgram:  # the agent says so that is to be started there, and another one may follow
            written.unlink(missing_ok=True)

    async def _bring(self, place: ArchivePlace, data: Mapping[str, bytes], directory: str) -> None:
        for session, each in data.items():
            archive = _archive(place.archives, each, session)
            if (behind := archive.newest_s - await place.time_s()) > CLOCKS_S:
                why = "the next message would come before it"
                raise SessionsFailed(f"the clock there is {behind:.0f} s behind the session's newest message: {why}")
            await place.take_in(archive.data(), directory)

    async def _written_out(self, held: HeldArchives, archives: SessionArchives, session: str) -> bytes:
        found = await self._ours(held, archives).written_out(session) if archives.is_id(session) else None
        if found is None:
            raise InvalidRequest(f"session: no conversation {session} is kept by {held.agent} on this host")
        return found

    async def back_up(self, directory: RunDirectory, into: Path) -> None:
        """Have the run's sessions below this directory, as they are at the place now.

        Raises SessionsFailed, MachineUnusable, MachineGone, MachineUnreachable, OSError.
        """
        for held, archives in await asyncio.to_thread(self._held, directory):
            place = await self._place(directory, held, archives)
            await asyncio.to_thread(into.mkdir, mode=0o700, parents=True, exist_ok=True)
            for session in await asyncio.to_thread(self._sessions, directory, held, archives):
                if (data := await place.written_out(session)) is not None:
                    whole = _archive(archives, data, session).whole()
                    await asyncio.to_thread(disk.write_new, into / f"{session}.archive", whole.data().decode())

    async def carried(self, directory: RunDirectory, *, keep: bool) -> list[SessionTransfer]:
        """Those of each agent, for `take_back`. `keep`: they stay at the place."""
        held = await asyncio.to_thread(self._held, directory)
        return [self._carried(directory, *each, keep=keep) for each in held]

    def _carried(
        self, directory: RunDirectory, held: HeldArchives, archives: SessionArchives, *, keep: bool
    ) -> SessionTransfer:
        async def bring(kept: dict[str, str]) -> None:
            place = await self._place(directory, held, archives)
            for session in await asyncio.to_thread(self._sessions, directory, held, archives):
                if (data := await place.written_out(session)) is not None:
                    archive = _archive(archives, data, session)
                    came = archive.whole() if keep else archive
                    kept |= _moved(session, await self._take(directory, held, archives, session, came))

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
                for session, data in (await asyncio.to_thread(_stored, backup)).items():
                    if archives.is_id(session) and not (held.forked and session == held.session):
                        archive = _archive(archives, data, session)
                        kept |= _moved(session, await self._take(directory, held, archives, session, archive))
        except (SessionsFailed, MachineUnusable, MachineGone) as failure:
            error = printable(str(failure))[:1000]
        return Back(kept=kept, error=error, removed=error is None)

    async def _take(
        self, directory: RunDirectory, held: HeldArchives, archives: SessionArchives, session: str, came: Archive
    ) -> str:
        """Add what is more in the session than on the leader, and return the id that it has there.

        Under an id of the agent's choice only where no session had that here: it could be one of another workspace.
        """
        ours = self._ours(held, archives)
        has = await self._known(ours, archives, session)
        mine = {held.session, *await asyncio.to_thread(note_begun, directory, session, is_here=has is not None)}
        kept = archives.kept(directory.agent_key, session)
        for name in (session, kept) if session in mine else (kept,):
            known = has if name == session else await self._known(ours, archives, name)
            its = came.renamed(name, known)
            if known and not _begins(its, known):
                if _begins(known, its):
                    return name
                continue
            if known is None:
                await asyncio.to_thread(note_held, self._store.state, held.agent, name, held.workspace)
            if more := its.beyond(known):
                await ours.take_in(more.data(), held.workspace)
            return name
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


def _moved(session: str, name: str) -> dict[str, str]:
    return {} if session == name else {session: name}
