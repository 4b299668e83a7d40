"""What a host does for its runs beside leading them: claims, stops, ends, reading of events, sweeping, pruning."""

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities import disk, run_log
from activities.closings import Closings
from activities.completion import complete
from activities.conduct import beating, refusing
from activities.eventlog import Cursor, end_log, ended_at, is_ended, read, terminal_event
from activities.identity import StoreGone
from activities.loops.places import LoopStore
from activities.policy import Policy
from activities.ports import HURRIED, Agent, Ladder, Runtime
from activities.schemas import admit_schema
from activities.session_locks import SessionLocked, SessionLocks
from activities.standing import epoch, epoch_of
from activities.store import RunDirectory, RunGone, RunStore
from steersman.contracts import names
from steersman.contracts.activities import (
    Claim,
    EndRun,
    EventPage,
    FinalizeInput,
    PruneInput,
    ReadEvents,
    RunEnd,
    RunKey,
    StopInput,
    Swept,
)
from steersman.contracts.errors import ActivityErrorType, AgentFailed, RunError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import StopReport

log = logging.getLogger("steersman.hosting")

POLL_S = 0.02
MAX_WAIT_S = 60.0
CURSORS = 1000
CLOSED = "the run had closed"
MAX_PAGE = 2_000_000
"""Bytes of a page of events, whatever its reader asks for: Temporal takes 2 MiB."""
SETTLED_S = 1.0
"""What a session that is still there gets, after the time that the workflow has given it."""
LOOK_AGAIN_S = 5.0
"""How long shims get to stop agents whose directories are gone, before a sweep does."""
ALL_GONE = 1 << 30
"""More processes than any directory tells of: what is found there is of another run, or cannot be read."""
SWEEP_LADDER = Ladder(0.25, 1.5)


@dataclass(frozen=True)
class Keeping:
    """For how long the state of what has closed is kept, and where that of loops is."""

    days: float
    loops: LoopStore


class HostActivities:
    """Stateless but for readers' places in logs: any worker of the host can answer."""

    def __init__(
        self,
        client: Client,
        host: str,
        agents: Mapping[str, Agent],
        runtime: Runtime,
        store: RunStore,
        policy: Policy,
        keeping: Keeping,
    ) -> None:
        self._client, self._host, self._agents = client, host, agents
        self._runtime, self._store, self._policy, self._keeping = runtime, store, policy, keeping
        self._locks = SessionLocks(store, runtime)
        self._closings = Closings(client, runtime)
        self._cursors: OrderedDict[tuple[RunKey, int], Cursor] = OrderedDict()

    @activity.defn(name=names.CLAIM_HOST)
    async def claim_host(self, request: RunRequest) -> Claim:
        """Whether this host can carry the run. Fails with the RunError's type, at once, if the request is wrong."""
        if request.runtime.host not in (None, self._host):
            return Claim(host=self._host)  # another host is asked next
        with refusing():
            await asyncio.to_thread(self._policy.check, request, self._agents[request.agent])
            await admit_schema(request)
            try:
                store = await asyncio.to_thread(self._store.check)
            except StoreGone as error:
                raise AgentFailed(str(error)) from error
        return Claim(host=self._host, caps=self._policy.caps, store=store)

    @activity.defn(name=names.STOP_AGENT)
    async def stop_agent(self, stop: StopInput) -> StopReport:
        """Stop whatever of the run is on this host and prove it. Twice is fine."""
        ladder = self._agents[stop.request.agent].ladder(stop.request)
        if stop.hurried:
            ladder = HURRIED
        elif stop.asked_at:
            ladder = ladder.after(datetime.now(UTC) - stop.asked_at)
        with refusing():
            self._store.directory(stop.key)
        if activity.info().attempt == 1:  # a further one carries out what the first one was asked
            run_log.stop_asked(stop.key, stop.reason, hurried=stop.hurried)
        known = stop.attempts
        try:
            await asyncio.to_thread(self._store.check, stop.store)
        except StoreGone as error:
            log.warning("%s", error, extra={"action": "stop_without_state", "facts": {"run": stop.key.run}})
            known = ALL_GONE
        async with beating():
            report = await self._runtime.stop(stop.key, ladder, stop.reason, known=known)
        return report.model_copy(update={"phase": stop.phase})

    @activity.defn(name=names.FINALIZE_RUN)
    async def finalize_run(self, end: FinalizeInput) -> None:
        """Close the log with its terminal event; let the shims go.

        Fails at once where that cannot be written down: a sweep does it later, if ever it can be.
        """
        async with beating():
            try:
                with refusing():
                    directory = await asyncio.to_thread(self._directory_to_end, end)
                try:
                    if end.unseen and not await asyncio.to_thread(is_ended, directory.events):
                        await self._complete(end.request, directory, epoch())
                    if await asyncio.to_thread(end_log, directory.events, end.event, SETTLED_S):
                        run_log.run_closed(directory, end.event)
                finally:
                    await self._closings.release(directory)
            except (StoreGone, RunGone) as error:
                raise ApplicationError(str(error), type=ActivityErrorType.STATE_GONE, non_retryable=True) from error
            except OSError as error:
                if not (disk.is_unwritable(error) or disk.is_no_file(error)):
                    raise
                text = f"state directory: the run's end cannot be written down: {error}"
                raise ApplicationError(text, type=ActivityErrorType.STATE_UNWRITABLE, non_retryable=True) from error

    async def _complete(self, request: RunRequest, directory: RunDirectory, order: int) -> bool:
        return await complete(request, self._agents[request.agent], self._runtime, directory, order)

    def _directory_to_end(self, end: FinalizeInput) -> RunDirectory:
        """Made only for a run that never had one: an empty log in place of one that is gone would be a lie."""
        self._store.check(end.store)
        directory = self._store.directory(end.key)
        if end.attempts and not directory.path.exists():
            directory.require(end.attempts)
        return self._store.create(end.key)

    @activity.defn(name=names.END_RUN)
    async def end_run(self, asked: EndRun) -> RunEnd:
        """The run's terminal event. Of one whose workflow has closed without one, the agent is stopped and it is
        written first, as the next sweep would.
        """
        with refusing():
            directory = await asyncio.to_thread(self._store.readable, asked.key)
        if not await asyncio.to_thread(os.path.lexists, directory.path):
            return RunEnd(known=False)
        async with beating():
            with refusing():
                if not await asyncio.to_thread(is_ended, directory.events):
                    await self._sweep(directory)
        return RunEnd(event=await asyncio.to_thread(terminal_event, directory.events))

    @activity.defn(name=names.READ_EVENTS)
    async def read_events(self, wanted: ReadEvents) -> EventPage:
        """Events after a number; waits up to wait_s for the first of them."""
        with refusing():
            path = (await asyncio.to_thread(self._store.readable, wanted.key)).events
        try:
            await asyncio.to_thread(self._store.check, wanted.store)
        except StoreGone as error:
            raise ApplicationError(str(error), type=ActivityErrorType.STATE_GONE, non_retryable=True) from error
        async with beating():  # so that the death of this worker is noticed while a reader waits
            return await self._page(wanted, path)

    async def _page(self, wanted: ReadEvents, path: Path) -> EventPage:
        cursor = self._cursors.pop((wanted.key, wanted.after), None) or Cursor()
        until = time.monotonic() + min(wanted.wait_s, MAX_WAIT_S)
        size = -1
        while True:
            now = disk.length(path)
            if now != size:
                size = now
                if now >= 0:
                    size_wanted = min(wanted.max_bytes, MAX_PAGE)
                    events, ended = await asyncio.to_thread(read, path, cursor, wanted.after, size_wanted)
                    if events or ended:
                        self._remember(wanted.key, cursor)
                        return EventPage(events=tuple(events), ended=ended)
            if time.monotonic() >= until:
                return EventPage(events=(), ended=False, known=now >= 0)
            await asyncio.sleep(POLL_S)

    @activity.defn(name=names.SWEEP_HOST)
    async def sweep_host(self) -> Swept:
        """Stop agents of runs that closed behind their back, close their logs, prune what is old."""
        stopped = []
        for directory in await asyncio.to_thread(self._mine):
            with _whatever_lies_there("sweep_failed", directory):
                if await self._sweep(directory):
                    stopped.append(directory.key.run)
        await asyncio.to_thread(self._locks.sweep)
        await self._sweep_strays()
        pruned = await self.prune_host(PruneInput(keep_days=self._keeping.days))
        return Swept(stopped=tuple(stopped), pruned=pruned.pruned, bytes_freed=pruned.bytes_freed)

    async def lock_session(self, agent: str, session: str, directory: RunDirectory) -> None:
        """Make an agent's session this run's alone. Raises what SessionLocks.take does."""
        try:
            await self._locks.take(agent, session, directory)
        except SessionLocked as error:
            if error.holder is None:
                raise
            await self._sweep(error.holder)  # it may have closed behind its agent's back
            await self._locks.take(agent, session, directory)

    async def _sweep_strays(self) -> None:
        """Stop agents whose directories are gone: nobody can lead them, and no run would ever tell of them."""
        try:
            strays = await self._store.strays()
            if strays:
                await asyncio.sleep(LOOK_AGAIN_S)  # a directory may be on its way from one place to another
                strays &= await self._store.strays()
        except OSError as error:
            log.warning("strays cannot be told", extra={"action": "sweep_failed", "facts": {"error": str(error)}})
            return
        for tag in strays:
            cleared = await self._store.kill_strays(tag)
            facts = {"tag": tag, "processes": cleared.processes, "left": cleared.left}
            log.error("stopped an agent whose directory is gone", extra={"action": "stray_stopped", "facts": facts})

    async def _sweep(self, directory: RunDirectory) -> bool:
        """See to one run; whether something of it was stopped."""
        # A log that has ended says nothing of processes: a run may have been ended with some still alive.
        ended = await asyncio.to_thread(is_ended, directory.events)
        living = self._runtime.has_living(directory.key)
        if ended and not living:
            return False
        closing = await self._closings.of(directory.key)
        if closing is None:
            return False
        # Also of what lives no more: the report of the stop that ended it is the proof.
        stop = self._runtime.stop(directory.key, SWEEP_LADDER, CLOSED)
        report = await (run_log.clearing(directory, CLOSED, stop) if living else stop)
        request = None if ended else await self._closings.request(directory.key)
        if request and request.agent in self._agents:
            # After all attempts to lead the run, before those of a reset, which may have come meanwhile.
            ours = await self._complete(request, directory, epoch_of(closing.time))
            if not ours or await self._closings.of(directory.key) is None:
                return living
        await self._closings.end(directory, closing, report)
        return living

    @activity.defn(name=names.PRUNE_HOST)
    async def prune_host(self, prune: PruneInput) -> Swept:
        """Remove the state of runs and loops that closed longer ago than keep_days; of an open one never."""
        horizon = time.time() - prune.keep_days * 86400
        pruned, freed = [], 0
        for directory in await asyncio.to_thread(self._mine):
            ended = await asyncio.to_thread(ended_at, directory.events)
            if ended is None or ended > horizon:
                continue
            if self._runtime.has_living(directory.key):
                continue
            with _whatever_lies_there("prune_failed", directory):
                if prune.dry_run:
                    freed += await asyncio.to_thread(disk.size, directory.path)
                else:
                    freed += await asyncio.to_thread(self._store.remove, directory)
                pruned.append(directory.key.run)
        for loop in list(self._keeping.loops.mine()):
            # A loop leaves no end in its directory: one that nobody used since is asked for.
            if loop.used > horizon or not await self._closed_before(loop.loop, horizon):
                continue
            pruned.append(loop.loop)
            if prune.dry_run:
                freed += await asyncio.to_thread(disk.size, loop.path)
            else:
                freed += await asyncio.to_thread(self._keeping.loops.remove, loop)
        return Swept(pruned=tuple(pruned), bytes_freed=freed)

    async def _closed_before(self, workflow: str, horizon: float) -> bool:
        """Whether Temporal knows that it closed before then, or has forgotten it."""
        try:
            found = await self._client.get_workflow_handle(workflow).describe()
        except RPCError as error:
            return error.status == RPCStatusCode.NOT_FOUND
        return found.close_time is not None and found.close_time.timestamp() < horizon

    def _mine(self) -> list[RunDirectory]:
        """This owner's runs; not one that was set aside and whose place another owner has taken since."""
        found = []
        for directory in self._store.mine():
            with suppress(RunError):
                self._store.directory(directory.key)
                found.append(directory)
        return found

    def _remember(self, key: RunKey, cursor: Cursor) -> None:
        self._cursors[(key, cursor.seq)] = cursor
        while len(self._cursors) > CURSORS:
            self._cursors.popitem(last=False)


@contextmanager
def _whatever_lies_there(action: str, directory: RunDirectory) -> Iterator[None]:
    """One run's directory may hold anything: it must not keep the others from being seen to."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an agent may have written there
        facts = {"run": directory.key.run, "error": f"{type(error).__name__}: {error}"}
        log.warning("a run's directory could not be seen to", extra={"action": action, "facts": facts})
