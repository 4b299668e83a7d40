"""The agent's sessions of a run that works in a copy: carried to where the agent looks for them there, and back.

    runs/<run>/<execution>/sessions.json         where those of its first agent are, here and at the place
                          /sessions-<part>.json  those of a further agent, by its first part of the run
                          /sessions-back.json    what became of them

A session belongs to the leader, under the workspace's own directory; at the place it is under the copy's. What came
back continues the leader's, or is kept under an id of its own: see workspaces.carry.session_program. Twice is once.

An agent that keeps sessions by their ids alone has one file for both where the place sees the leader's own home, as a
copy on this machine does: such a session is not carried, and never removed.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath

from activities.ports.agent import Agent
from activities.ports.archives import ArchivingAgent
from activities.ports.runtime import Runtime
from activities.ports.sessions import AgentSessions, SessionFiles
from activities.returned_sessions import (
    AgentEnvironments,
    Back,
    HeldSessions,
    ReturnedSessions,
    SessionTransfer,
    here_of,
    put_away,
    record,
    records,
    take_back,
)
from activities.run_archives import CopyAt, RunArchives
from activities.shim.client import MachineUnusable
from activities.store.kept_copies import KeptCopies
from activities.store.notes import note, noted
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.store.session_locks import SessionLocks
from activities.workspaces.carry.session_names import is_anywhere, sources_of
from activities.workspaces.carry.session_program import MAX_SESSIONS, Failed
from activities.workspaces.carry.sessions import HeldFiles, SessionPlace, SessionsFailed, session_at, stored
from activities.workspaces.printable_text import printable
from steersman.contracts.activities import CarriedBack
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import RunRequest

log = logging.getLogger("steersman.running")


class RunSessions:
    """`copies`: where the copies of runs are. `archives`: those of agents that keep sessions in a database."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        copies: KeptCopies,
        copy_at: CopyAt,
        store: RunStore,
        runtime: Runtime,
        archives: RunArchives | None = None,
    ) -> None:
        self._agents, self._copies, self._copy_at = agents, copies, copy_at
        self._store, self._runtime = store, runtime
        self._locks = SessionLocks(store, runtime)
        self._returned = ReturnedSessions(agents, store, runtime)
        self._archives = archives

    def check(self, request: RunRequest, workspace: Path, environment: Mapping[str, str]) -> None:
        """Raises InvalidRequest for a session that this host does not have for the workspace (resolved)."""
        sessions = self._agents[request.agent].sessions
        if sessions is None or request.session is None:
            return
        home, files = sessions.home(environment), sessions.files(request.session, workspace)
        if home is None:
            raise InvalidRequest(f"session: where {request.agent} keeps its sessions is not known (HOME is not set)")
        anywhere = is_anywhere(sessions, request.session)
        if anywhere and request.runtime.kind == "local":
            return  # it is not carried: the agent finds it, or does not
        try:
            if files is not None and session_at(home, files).exists():
                return
            if files is not None and (away := put_away(home, files)):
                where = f"{request.agent} has put {request.session} away, at {home}/{away}"
                raise InvalidRequest(f"session: {where}: have it bring that back")
        except (Failed, OSError) as error:
            raise InvalidRequest(f"session: {request.session} cannot be read: {error}") from error
        where = f"is kept by {request.agent} on this host" if anywhere else "was held in this workspace"
        raise InvalidRequest(f"session: no conversation {request.session} {where}")

    async def out(
        self,
        directory: RunDirectory,
        environments: AgentEnvironments,
        workspace: Path,
        copy: str,
        backup: Path | None = None,
    ) -> None:
        """Before the run's first process: bring the agent's session to the copy of the workspace (resolved), and record
        where its sessions will be. `backup`: where there are sessions as the run had them at a place that was lost.

        Raises InvalidRequest, WorkspaceError, MachineUnreachable, OSError.
        """
        request, here, there = environments.request, environments.here, environments.there
        agent = self._agents[request.agent]
        if isinstance(agent, ArchivingAgent) and self._archives:
            with _brought():
                return await self._archives.out(directory, environments, workspace, copy, backup)
        sessions = agent.sessions
        if sessions is None:
            return None
        await asyncio.to_thread(self.check, request, workspace, here)
        home, other = sessions.home(here), sessions.home(there)
        if home is None or other is None:
            return None
        held = HeldSessions(
            agent=request.agent,
            here=home,
            there=other,
            workspace=str(workspace),
            directory=copy,
            session=request.session,
            forked=request.fork_session,
            parts=environments.parts,
        )
        if request.session:
            sources = await asyncio.to_thread(sources_of, sessions, request.session, Path(home), workspace)
            held = held.model_copy(update={"sources": sources})
        with _brought(OSError):
            carried = await self._apart(directory, held, sessions, _given(held, sessions))
        await asyncio.to_thread(note, record(directory, "sessions", environments.parts[0]), held)
        restored = await self._restore(directory, held, sessions, backup) if backup else set()
        wanted = [session for session in carried if session not in restored]
        if len(wanted) > MAX_SESSIONS:
            raise WorkspaceError(f"session: it was forked more than {MAX_SESSIONS} times")
        with _brought():
            if wanted:
                place = await self._place(directory, held)
                marked = self._marked(directory, held, sessions, {each: carried[each] for each in wanted})
                await place.receive([(here_of(held, sessions, each), files) for each, files in marked.items()])
        return None

    async def back_up(self, directory: RunDirectory, into: Path) -> None:
        """Have the run's sessions below this directory, as they are at the place now.

        Raises SessionsFailed, Failed, MachineUnusable, MachineGone, MachineUnreachable, OSError.
        """
        if self._archives:
            await self._archives.back_up(directory, into)
        for held, sessions in await asyncio.to_thread(self._held, directory):
            found = list((await asyncio.to_thread(self._found, directory, held, sessions)).values())
            place = await self._place(directory, held)
            async with place.sent(found, directory.path) as sent:
                for each in sent:
                    await asyncio.to_thread(each.write_whole_lines, session_at(str(into), found[each.number], each.at))

    async def _restore(
        self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions, backup: Path
    ) -> set[str]:
        """Bring what was backed up to the place, and return the ids. Raises WorkspaceError, MachineUnreachable."""
        restored = set()
        place = await self._place(directory, held)
        for session, files in (await asyncio.to_thread(self._found, directory, held, sessions)).items():
            kept = session_at(str(backup), files)
            with _brought(Failed, OSError):
                if await asyncio.to_thread(kept.exists):
                    marked = self._marked(directory, held, sessions, {session: files})
                    await place.receive([(kept, marked[session])])
                    restored.add(session)
        return restored

    async def back(self, directory: RunDirectory, *, keep: bool) -> None:
        """After the run's last process: bring its sessions back, and record what became of them.

        `keep`: they stay at the place, too. Raises MachineUnreachable, OSError.
        """
        carried = await self._archives.carried(directory, keep=keep) if self._archives else []
        for held, sessions in await asyncio.to_thread(self._held, directory):
            carried.append(await self._carried(directory, held, sessions))
        await take_back(directory, self._store, carried, keep=keep)

    async def _carried(self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions) -> SessionTransfer:
        found = await asyncio.to_thread(self._found, directory, held, sessions)
        there: dict[str, SessionFiles] = {}

        async def bring(kept: dict[str, str]) -> None:
            there.update(await self._apart(directory, held, sessions, {**_given(held, sessions), **found}))
            await asyncio.to_thread(self._returned.note_shared, held, [each for each in found if each not in there])
            apart = {session: files for session, files in found.items() if session in there}
            kept |= await self._carry_back(directory, held, sessions, apart)

        async def remove() -> None:
            place = await self._place(directory, held)
            await place.remove(list(self._marked(directory, held, sessions, there).values()))

        return SessionTransfer(bring, remove)

    async def back_from(self, directory: RunDirectory, backup: Path) -> None:
        """The place was lost for good: bring back what was backed up of its sessions, and record what became of them.

        Raises Failed, OSError.
        """
        archived = await self._archives.back_from(directory, backup) if self._archives else None
        written = await asyncio.to_thread(self._held, directory)
        if not written and archived is None:
            return
        back = archived or Back(removed=True)
        kept = dict(back.kept)
        for held, sessions in written:
            for session, files in (await asyncio.to_thread(self._found, directory, held, sessions)).items():
                if held.forked and session == held.session:
                    continue
                if sent := await asyncio.to_thread(stored, backup, files):
                    taken = await asyncio.to_thread(self._returned.take, directory, held, sessions, session, sent)
                    kept |= {session: taken} if taken != session else {}
        await asyncio.to_thread(note, directory.path / "sessions-back.json", back.model_copy(update={"kept": kept}))

    async def told(self, directory: RunDirectory, back: CarriedBack) -> CarriedBack:
        """What became of the copy, with what became of the sessions."""
        known = await asyncio.to_thread(noted, directory.path / "sessions-back.json", Back)
        if known is None:
            return back
        told = {"sessions": known.kept, "session_error": known.error}
        return back.model_copy(update={"finalize": back.finalize.model_copy(update=told)})

    async def _carry_back(
        self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions, found: Mapping[str, SessionFiles]
    ) -> dict[str, str]:
        kept: dict[str, str] = {}
        names = [session for session in found if not (held.forked and session == held.session)]
        place = await self._place(directory, held)
        async with place.sent([found[each] for each in names], directory.path) as sent:
            for each in sent:
                session = names[each.number]
                taken = await asyncio.to_thread(self._returned.take, directory, held, sessions, session, each)
                if taken != session:
                    kept[session] = taken
                    facts = {"run": directory.key.run, "session": session, "kept": taken}
                    log.info("a session is kept under another id", extra={"action": "session_kept", "facts": facts})
        return kept

    async def _apart(
        self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions, found: Mapping[str, SessionFiles]
    ) -> dict[str, SessionFiles]:
        """Those of the sessions whose files at the place are not the leader's own. Raises SessionsFailed,
        MachineUnusable, MachineUnreachable, OSError.
        """
        anywhere = [session for session in found if is_anywhere(sessions, session)]
        if not anywhere:
            return dict(found)
        copy = await self._copy_at(await asyncio.to_thread(self._copies.location, directory))
        place = SessionPlace(copy.machine, held.there, copy.python)
        shared = copy.is_here and await asyncio.to_thread(_is_same, held.here, held.there)
        if shared or await place.is_ours(Path(held.here)):
            return {session: files for session, files in found.items() if session not in anywhere}
        return dict(found)

    def _marked(
        self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions, found: Mapping[str, SessionFiles]
    ) -> dict[str, HeldFiles]:
        """The sessions as the run has them at the place."""
        run, given = directory.id, _given(held, sessions)
        return {
            session: HeldFiles(files, run, session not in given) if is_anywhere(sessions, session) else HeldFiles(files)
            for session, files in found.items()
        }

    def _held(self, directory: RunDirectory) -> list[tuple[HeldSessions, AgentSessions]]:
        """What is written down of the sessions of each of the run's agents."""
        found = []
        for each in records(directory, "sessions"):
            held = noted(each, HeldSessions)
            agent = self._agents.get(held.agent) if held else None
            if held and agent and agent.sessions:
                found.append((held, agent.sessions))
        return found

    def _found(self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions) -> dict[str, SessionFiles]:
        """The sessions that the run's processes may have at the place."""
        found: dict[str, SessionFiles] = {}
        told = self._locks.held_by(held.agent, directory)
        for session in (*self._returned.own(directory, held, sessions), *told):
            files = sessions.files(session, PurePath(held.directory))
            if files is not None and len(found) < MAX_SESSIONS:
                found[session] = files
        return found

    async def _place(self, directory: RunDirectory, held: HeldSessions) -> SessionPlace:
        copy = await self._copy_at(await asyncio.to_thread(self._copies.location, directory))
        return SessionPlace(copy.machine, held.there, copy.python)


@contextmanager
def _brought(*also: type[Exception]) -> Iterator[None]:
    """`also`: what else says that a session cannot be brought to the copy."""
    failures: tuple[type[Exception], ...] = (SessionsFailed, MachineUnusable, *also)
    try:
        yield
    except failures as error:
        raise WorkspaceError(f"session: it cannot be brought to the copy: {printable(str(error))}") from error


def _is_same(directory: str, other: str) -> bool:
    return Path(directory).resolve() == Path(other).resolve()


def _given(held: HeldSessions, sessions: AgentSessions) -> dict[str, SessionFiles]:
    """The files at the place of the session that the run was given, after those that it begins with."""
    given = (*held.sources, held.session) if held.session else ()
    found = {session: sessions.files(session, PurePath(held.directory)) for session in given}
    return {session: files for session, files in found.items() if files}
