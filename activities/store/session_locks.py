"""One open run at a time on an agent's session: which run has each session, kept beside the runs.

sessions/<agent>@<session>.json    the run that has it: its owner, key and beginning

A lock needs no release: it counts as long as its run is open, which the run's own directory says. Agents run as the
same user and may forge a lock; all that it does is to refuse a session by the name of a run, or of a file.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from activities.ports.runtime import Runtime
from activities.store import disk
from activities.store.event_reader import is_ended
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest

PATIENCE_S = 3.0
"""A lock that nobody can judge yet is tried for this many seconds: a run that has just ended still has its shims."""
PAUSE_S = 0.05
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")


class SessionLocked(InvalidRequest):
    """Another run is at work on the session. `holder`: its directory; None where it is another owner's."""

    def __init__(self, message: str, holder: RunDirectory | None) -> None:
        super().__init__(message)
        self.holder = holder


class _Wait(Exception):
    """Whether the lock counts cannot be told yet. The message is the refusal, should it stay so."""


@dataclass(frozen=True)
class _Holder:
    owner: Ownership
    key: RunKey
    beginning: str

    def to_json(self) -> str:
        return json.dumps({**asdict(self.owner), **self.key.model_dump(), "beginning": self.beginning})

    @classmethod
    def of_json(cls, text: str) -> "_Holder":
        """Raises ValueError."""
        facts = json.loads(text)
        names = ("cluster", "namespace", "run", "execution", "beginning")
        if not isinstance(facts, dict) or not all(isinstance(facts.get(name), str) for name in names):
            raise ValueError("it names no run")
        cluster, namespace, run, execution, beginning = (facts[name] for name in names)
        return cls(Ownership(cluster, namespace), RunKey(run=run, execution=execution), beginning)


class SessionLocks:
    """All locks of this host, of whichever owner."""

    def __init__(self, store: RunStore, runtime: Runtime) -> None:
        self._store, self._runtime = store, runtime
        self._place = store.state / "sessions"

    async def take(self, agent: str, session: str, directory: RunDirectory) -> None:
        """Lock the session for this run, which may have it already.

        Raises SessionLocked, InvalidRequest where a file that lies here keeps it from being told; OSError for a disk
        that takes nothing.
        """
        if not _SESSION.fullmatch(session):
            raise InvalidRequest("session: that is no id of a session")
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await asyncio.to_thread(self._try_take, self._place / f"{agent}@{session}.json", directory)
            except _Wait as error:
                if time.monotonic() >= until:
                    raise InvalidRequest(str(error)) from error
            await asyncio.sleep(PAUSE_S)

    def held_by(self, agent: str, directory: RunDirectory) -> list[str]:
        """The agent's sessions that are locked for this run, sorted."""
        mine = _Holder(self._store.owner, directory.key, directory.beginning)
        found = []
        for name in disk.names(self._place):
            of, _, session = name.removesuffix(".json").partition("@")
            with suppress(InvalidRequest, OSError):
                if of == agent and _SESSION.fullmatch(session) and self._read(self._place / name) == mine:
                    found.append(session)
        return found

    def sweep(self) -> None:
        """Remove the locks that count no more."""
        for name in disk.names(self._place):
            with suppress(OSError, _Wait), self._exclusively():
                try:
                    holder = self._read(self._place / name)
                except InvalidRequest:
                    holder = None
                if holder is None or self._open_in(holder) is None:
                    (self._place / name).unlink()

    def _try_take(self, path: Path, directory: RunDirectory) -> None:
        mine = _Holder(self._store.owner, directory.key, directory.beginning)
        try:
            with self._exclusively():
                holder = self._read(path)
                if holder == mine:
                    return
                if holder is not None and (holder.owner, holder.key) != (mine.owner, mine.key):
                    self._refuse_open(path, holder)
                temporary = self._place / ".new"
                disk.write_new(temporary, mine.to_json())
                temporary.replace(path)
        except OSError as error:
            if disk.is_unwritable(error):
                raise
            raise InvalidRequest(f"session: {path} cannot be used: {error.strerror}; remove it") from error

    def _refuse_open(self, path: Path, holder: _Holder) -> None:
        """Raises SessionLocked, or _Wait for what is left of a run that has ended; returns where nothing is."""
        held = self._open_in(holder)
        if held is None:
            return
        known = holder.owner == self._store.owner
        run = holder.key.run[:200].encode("utf-8", "replace").decode()
        name = f"run {run}" if known else "a run of another Temporal namespace"
        session = path.name.removesuffix(".json").partition("@")[2]
        if is_ended(held.events):
            raise _Wait(f"session: {name} has ended, and processes of it are still at work on {session}")
        raise SessionLocked(
            f"session: {name} is at work on {session}: wait for its end, or go on with a copy (fork_session: true)",
            held if known else None,
        )

    def _open_in(self, holder: _Holder) -> RunDirectory | None:
        """The directory of the holder, if that run is open or something of it lives."""
        try:
            directory = RunStore(self._store.state, holder.owner).directory(holder.key)
        except InvalidRequest:
            return None  # it names a run that is somebody else's
        if holder.owner.recorded(directory.path / "run.json") is None or directory.beginning != holder.beginning:
            return None
        own = holder.owner == self._store.owner
        lives = not is_ended(directory.events) or (own and self._runtime.has_living(holder.key))
        return directory if lives else None

    def _read(self, path: Path) -> _Holder | None:
        """Raises InvalidRequest where what is there names no run, OSError."""
        try:
            return _Holder.of_json(disk.read_text(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, OSError) and not disk.is_no_file(error):
                raise
            raise InvalidRequest(f"session: {path} does not say which run has it; remove it") from error

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Alone among the workers of this host. Raises _Wait, OSError."""
        try:
            with disk.locked(self._place):
                yield
        except BlockingIOError as error:
            raise _Wait(f"session: something keeps {self._place} locked") from error
