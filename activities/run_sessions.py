"""The agent's sessions of a run that works in a copy: carried to where the agent looks for them there, and back.

    runs/<run>/<execution>/sessions.json         where those of its first agent are, here and at the place
                          /sessions-<part>.json  those of a further agent, by its first part of the run
                          /sessions-back.json    what became of them

A session belongs to the leader, under the workspace's own directory; at the place it is under the copy's. What came
back continues the leader's, or is kept under an id of its own: see workspaces.carry.session_program. Twice is once.

An agent that keeps sessions by their ids alone has one file for both where the place sees the leader's own home, as a
copy on this machine does: such a session is not carried, and never removed.

Sessions of sub-agents that are files of their own are carried with the session that names them: a conversation that
came says which those at the place are, and each of them says whose it is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
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
    log_left,
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
from activities.workspaces.carry.session_names import (
    MAX_SUBAGENTS,
    is_anywhere,
    named_in,
    sources_of,
    subagents_of,
    too_many,
)
from activities.workspaces.carry.session_program import MAX_SESSIONS, Failed
from activities.workspaces.carry.sessions import (
    HeldFiles,
    SentSession,
    SessionPlace,
    SessionsFailed,
    session_at,
    stored,
)
from activities.workspaces.printable_text import printable
from steersman.contracts.activities import CarriedBack
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import RunRequest

log = logging.getLogger("steersman.running")


@dataclass(frozen=True)
class _Coming:
    """A session as it came from the place. `parent`: whose sub-agent's it is, by its id there; None if nobody's."""

    session: str
    files: SessionFiles
    sent: SentSession
    parent: str | None


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
            if len(sources) >= MAX_SESSIONS:
                raise WorkspaceError(f"session: it was forked more than {MAX_SESSIONS} times")
            along = await asyncio.to_thread(subagents_of, sessions, request.session, Path(home), workspace)
            log_left(directory.key.run, along.why_not_all)
            subagents = tuple(along.parents)[: MAX_SESSIONS - 1 - len(sources)]
            left = tuple(sorted(along.named.difference(subagents)))
            held = held.model_copy(update={"sources": sources, "subagents": subagents, "left": left})
        with _brought(OSError):
            carried = await self._apart(directory, held, sessions, _given(held, sessions))
        await asyncio.to_thread(note, record(directory, "sessions", environments.parts[0]), held)
        restored = await self._restore(directory, held, sessions, backup) if backup else set()
        wanted = [session for session in carried if session not in restored]
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
            found = await asyncio.to_thread(self._found, directory, held, sessions)
            async with aclosing(self._coming(directory, held, sessions, found, whys := list[str]())) as coming:
                async for each in coming:
                    kept = session_at(str(into), each.files, each.sent.at)
                    await asyncio.to_thread(each.sent.write_whole_lines, kept)
            log_left(directory.key.run, "; ".join(whys))

    async def _restore(
        self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions, backup: Path
    ) -> set[str]:
        """Bring what was backed up to the place, and return the ids. Raises WorkspaceError, MachineUnreachable."""
        restored = set()
        place = await self._place(directory, held)
        found, _ = await asyncio.to_thread(self._backed_up, directory, held, sessions, backup)
        for session, files in found.items():
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
            await self._carry_back(directory, held, sessions, apart, there, kept)

        async def remove() -> None:
            place = await self._place(directory, held)
            marked = await asyncio.to_thread(self._marked, directory, held, sessions, there)
            await place.remove(list(reversed(marked.values())))  # a sub-agent's asks for its parent's mark

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
            found, parents = await asyncio.to_thread(self._backed_up, directory, held, sessions, backup)
            for session, files in found.items():
                if held.forked and session == held.session:
                    continue
                if sent := await asyncio.to_thread(stored, backup, files):
                    parent = parents.get(session)
                    coming = _Coming(session, files, sent, parent)
                    await self._take(directory, held, sessions, coming, kept)
        await asyncio.to_thread(note, directory.path / "sessions-back.json", back.model_copy(update={"kept": kept}))

    async def told(self, directory: RunDirectory, back: CarriedBack) -> CarriedBack:
        """What became of the copy, with what became of the sessions."""
        known = await asyncio.to_thread(noted, directory.path / "sessions-back.json", Back)
        if known is None:
            return back
        told = {"sessions": known.kept, "session_error": known.error}
        return back.model_copy(update={"finalize": back.finalize.model_copy(update=told)})

    async def _carry_back(
        self,
        directory: RunDirectory,
        held: HeldSessions,
        sessions: AgentSessions,
        found: Mapping[str, SessionFiles],
        there: dict[str, SessionFiles],
        kept: dict[str, str],
    ) -> None:
        """Bring these sessions back, and those of their sub-agents, which are added to those `there`; add to `kept`."""
        wanted = {each: files for each, files in found.items() if not (held.forked and each == held.session)}
        async with aclosing(self._coming(directory, held, sessions, wanted, whys := list[str]())) as coming:
            async for each in coming:
                await self._take(directory, held, sessions, each, kept)
                there[each.session] = each.files
        if whys:
            raise SessionsFailed("; ".join(whys))

    async def _take(
        self,
        directory: RunDirectory,
        held: HeldSessions,
        sessions: AgentSessions,
        coming: _Coming,
        kept: dict[str, str],
    ) -> None:
        session = coming.session
        parent = coming.parent and kept.get(coming.parent, coming.parent)
        taken = await asyncio.to_thread(self._returned.take, directory, held, sessions, session, coming.sent, parent)
        if taken != session:
            kept[session] = taken
            facts = {"run": directory.key.run, "session": session, "kept": taken}
            log.info("a session is kept under another id", extra={"action": "session_kept", "facts": facts})

    async def _coming(
        self,
        directory: RunDirectory,
        held: HeldSessions,
        sessions: AgentSessions,
        wanted: Mapping[str, SessionFiles],
        whys: list[str],
    ) -> AsyncGenerator[_Coming, None]:
        """These sessions as they are at the place, and then those of their sub-agents there, and of these. `whys`: gets
        why some of these are left, in the end.
        """
        place = await self._place(directory, held)
        asked, left = {*wanted, *held.subagents, *held.left, held.session}, MAX_SUBAGENTS
        parents: dict[str, str] = {}
        while wanted:
            names, further = list(wanted), dict[str, str]()
            async with place.sent(list(wanted.values()), directory.path) as sent:
                for each in sent:
                    coming = _Coming(
                        names[each.number], wanted[names[each.number]], each, parents.get(names[each.number])
                    )
                    if not await asyncio.to_thread(_says_so, coming):
                        continue
                    yield coming
                    named = await asyncio.to_thread(_subagents, coming)
                    new = [name for name in named if name not in asked]
                    asked |= {*new}
                    if len(new) > left:
                        whys.append(too_many(coming.session))
                    further |= dict.fromkeys(new[:left], coming.session)
                    left -= min(len(new), left)
            files = {name: sessions.files(name, PurePath(held.directory)) for name in further}
            wanted, parents = {name: its for name, its in files.items() if its}, further

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
        own = self._found(directory, held, sessions)
        parent = given.get(held.session or "")
        return {
            session: HeldFiles(files, run, session not in given, None if session in {**given, **own} else parent)
            if is_anywhere(sessions, session)
            else HeldFiles(files)
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

    def _backed_up(
        self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions, backup: Path
    ) -> tuple[dict[str, SessionFiles], dict[str, str]]:
        """Those that a backup may have, parents before sub-agents', and whose these are."""
        found, parents = self._found(directory, held, sessions), dict[str, str]()
        at = PurePath(held.directory)
        for session in tuple(found):
            parents |= subagents_of(sessions, session, backup, at).parents
        files = {session: sessions.files(session, at) for session in parents if session not in found}
        return found | {session: its for session, its in files.items() if its}, parents

    async def _place(self, directory: RunDirectory, held: HeldSessions) -> SessionPlace:
        copy = await self._copy_at(await asyncio.to_thread(self._copies.location, directory))
        return SessionPlace(copy.machine, held.there, copy.python)


def _says_so(coming: _Coming) -> bool:
    """Whether what came is of a sub-agent of the session that named it, if of any. Raises Failed, OSError."""
    if coming.parent is None or coming.files.subagents is None:
        return coming.parent is None
    try:
        return coming.files.subagents.parent(coming.sent.first_line() or b"", coming.session) == coming.parent
    except ValueError:
        return False


def _subagents(coming: _Coming) -> list[str]:
    if coming.files.subagents is None:
        return []
    with coming.sent.conversation().open("rb") as file:
        return named_in(file, coming.files.subagents)


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
    """The files at the place of the session that the run was given, after those that it begins with, and those of its
    sub-agents.
    """
    given = (*held.sources, *held.subagents, held.session) if held.session else ()
    found = {session: sessions.files(session, PurePath(held.directory)) for session in given}
    return {session: files for session, files in found.items() if files}
