"""Sessions that a run's agent held elsewhere, back on the leader: written where they belong, under which id.

    runs/<run>/<execution>/sessions-begun/       an empty file for each of the agent's own ids that is the run's
                          /sessions-back.json    what became of them

How they come must not live here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from pydantic import BaseModel

from activities.ports.agent import Agent
from activities.ports.runtime import Runtime
from activities.ports.sessions import AgentSessions, SessionFiles
from activities.shim.client import MachineGone, MachineUnusable
from activities.store import disk
from activities.store.held_sessions import note_held
from activities.store.notes import note, noted
from activities.store.run_directory import RunDirectory, key_of_part
from activities.store.runs import RunStore
from activities.workspaces.carry.session_names import named
from activities.workspaces.carry.session_program import Failed, Session
from activities.workspaces.carry.sessions import SentSession, SessionsFailed, session_at
from activities.workspaces.printable_text import printable
from steersman.contracts.request import MAX_FALLBACK, RunRequest

log = logging.getLogger("steersman.running")


@dataclass(frozen=True)
class AgentEnvironments:
    """One of a run's agents, before its sessions are at the place. `parts`: those of the run that it has (see
    RunRequest.of_part), `request` that of the first. `here`, `there`: its environment on the leader and at the place.
    """

    request: RunRequest
    here: Mapping[str, str]
    there: Mapping[str, str]
    parts: tuple[int, ...] = (0,)


class HeldSessions(BaseModel):
    """Where the sessions of one of a run's agents are. `here` and `there`: the agent's own directory on the leader, and
    at the place. `directory`: the workspace there. `session`: the one that was carried out. `forked`: the run works in
    a copy of that one. `sources`: the sessions that it begins with. `subagents`: those of its sub-agents that were
    brought there, too; `left`: others that it names, mostly because they are not here any more. `parts`: see
    RunRequest.of_part.
    """

    agent: str
    here: str
    there: str
    workspace: str
    directory: str
    session: str | None = None
    forked: bool = False
    sources: tuple[str, ...] = ()
    subagents: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    parts: tuple[int, ...] = (0,)


class Back(BaseModel):
    """What became of a run's sessions. `kept`: as Finalize.sessions. `removed`: nothing of them is at the place any
    more.
    """

    kept: dict[str, str] = {}
    error: str | None = None
    removed: bool = False


@dataclass(frozen=True)
class SessionTransfer:
    """The sessions of one of a run's agents at the place. `bring` adds to what became of them; `remove` follows it."""

    bring: Callable[[dict[str, str]], Awaitable[None]]
    remove: Callable[[], Awaitable[None]]


def records(directory: RunDirectory, name: str) -> list[Path]:
    """What is written down by `record`, of each agent that the run has."""
    found = [record(directory, name, part) for part in range(MAX_FALLBACK + 1)]
    return [each for each in found if each.exists()]


def record(directory: RunDirectory, name: str, part: int) -> Path:
    """Where it is written down of the agent whose first part of the run is this."""
    return directory.path / (f"{name}-{part}.json" if part else f"{name}.json")


def note_begun(directory: RunDirectory, session: str, *, is_here: bool) -> set[str]:
    """The sessions of the agent's own ids that are the run's: this one, too, if none of its id is here. Raises
    OSError.
    """
    begun = directory.path / "sessions-begun"
    begun.mkdir(mode=0o700, exist_ok=True)
    if not is_here:
        (begun / session).touch(mode=0o600)
    return set(disk.names(begun))


async def take_back(
    directory: RunDirectory,
    store: RunStore,
    carried: Sequence[SessionTransfer],
    *,
    keep: bool,
) -> None:
    """Have a run's sessions brought from the place, and then removed there; record what became of them. Twice is once.

    `keep`: they stay at the place, too. Raises MachineUnreachable, OSError.
    """
    if not carried:
        return
    became = directory.path / "sessions-back.json"
    known = await asyncio.to_thread(noted, became, Back)
    if known and known.removed:
        return
    if store.directory(directory.key).path != directory.path:
        return  # set aside by a reset: what is at the place is of the new beginning
    kept = dict(known.kept) if known else {}  # of a worker that was killed after it had removed them
    errors = []
    for each in carried:
        try:
            await each.bring(kept)
        except (SessionsFailed, Failed, MachineUnusable, MachineGone, OSError) as error:
            errors.append(printable(str(error))[:1000])
            facts = {"run": directory.key.run, "error": errors[-1]}
            log.warning("sessions could not be brought back", extra={"action": "sessions_not_carried", "facts": facts})
    back = Back(kept=kept, error="; ".join(errors)[:1000] or None)
    await asyncio.to_thread(note, became, back)
    if keep or back.error:
        return
    with suppress(SessionsFailed, MachineUnusable, MachineGone):
        for each in carried:
            await each.remove()
        await asyncio.to_thread(note, became, back.model_copy(update={"removed": True}))


class ReturnedSessions:
    """Those of all runs of this host."""

    def __init__(self, agents: Mapping[str, Agent], store: RunStore, runtime: Runtime) -> None:
        self._agents, self._store, self._runtime = agents, store, runtime

    def own(self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions) -> list[str]:
        """The session that the run was given, with its sub-agents', and those that its processes were told to begin."""
        attempts = range(1, self._runtime.attempts(directory.key) + 1)
        keys = [key_of_part(directory.agent_key, part) for part in held.parts]
        begun = [sessions.begun(key, attempt) for key in keys for attempt in attempts]
        return [each for each in (held.session, *held.subagents, *begun) if each is not None]

    def take(
        self,
        directory: RunDirectory,
        held: HeldSessions,
        sessions: AgentSessions,
        session: str,
        sent: SentSession,
        parent: str | None = None,
    ) -> str:
        """Write the session where it belongs, and return the id that it has there. `parent`: as for `named`.

        Under an id of the agent's choice only where no session had that here: it could be one of another workspace.
        Raises Failed, OSError.
        """
        of = sessions.files(session, PurePath(held.directory))
        assert of
        if (of.first_line or of.every_line) and sent.first_line() is None:
            return session  # it ended before there was anything in it
        kept = sessions.kept(directory.agent_key, session)
        own = self.own(directory, held, sessions)
        begun = self._begun(directory, held, sessions, session)
        for name in (session, kept) if session in {*own, *begun} else (kept,):
            files = sessions.files(name, PurePath(held.workspace))
            assert files
            its = named(sent, (session, of), (name, files), {*own, *begun, *held.sources}, parent)
            here = session_at(held.here, files, its.at)
            if its.fits(here):
                if not here.exists():
                    note_held(self._store.state, held.agent, name, held.workspace)
                its.write(here)
                return name
        raise Failed(f"session {session}: what is on the host, also under {kept}, is another one")

    def _begun(self, directory: RunDirectory, held: HeldSessions, sessions: AgentSessions, session: str) -> set[str]:
        """As `note_begun`, of an agent that chooses its ids. Raises Failed, OSError."""
        if sessions.begun(directory.agent_key, 1) is not None:
            return set()
        files = sessions.files(session, PurePath(held.workspace))
        assert files
        # Before it is asked whose that is: it may be coming.
        is_here = session_at(held.here, files).exists() or put_away(held.here, files) is not None
        return note_begun(directory, session, is_here=is_here)

    def note_shared(self, held: HeldSessions, sessions: list[str]) -> None:
        """To which workspace sessions belong that began in the copy, and were here all along. Raises OSError."""
        for session in sessions:
            if self._agents[held.agent].keeps(session, Path(held.directory)):
                note_held(self._store.state, held.agent, session, held.workspace)


def here_of(held: HeldSessions, sessions: AgentSessions, session: str) -> Session:
    """A session as it is on the leader."""
    files = sessions.files(session, PurePath(held.workspace))
    assert files
    return session_at(held.here, files)


def put_away(home: str, files: SessionFiles) -> str | None:
    """Where the agent has put the conversation away; None where it has not. Raises Failed, OSError."""
    for conversation in files.put_away:
        with suppress(FileNotFoundError):
            return Session(home, conversation, None).name()
    return None


def log_left(run: str, why: str | None) -> None:
    """Log why sessions of a run's sub-agents were left, if they were."""
    if why:
        facts = {"run": run, "error": why}
        log.warning("sessions of sub-agents were left", extra={"action": "subagents_not_carried", "facts": facts})
