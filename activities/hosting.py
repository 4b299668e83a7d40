"""What a host does for its runs beside leading them: claims, stops, ends, reading of events, sweeping, pruning."""

import asyncio
import logging
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities import disk
from activities.conduct import beating, refusing
from activities.eventlog import Cursor, EventLog, ended_at, is_ended, read
from activities.loops.places import LoopStore
from activities.policy import Policy
from activities.ports import HURRIED, Agent, Ladder, Runtime
from activities.schemas import admit_schema
from activities.store import RunDirectory, RunStore
from steersman.contracts import names
from steersman.contracts.activities import (
    Claim,
    EventPage,
    FinalizeInput,
    PruneInput,
    ReadEvents,
    RunKey,
    StopInput,
    Swept,
)
from steersman.contracts.errors import ErrorType, RunError
from steersman.contracts.events import CancelledEvent, FailedEvent, TerminalEvent
from steersman.contracts.request import RunRequest
from steersman.contracts.run import StopReport

log = logging.getLogger("steersman.hosting")

POLL_S = 0.02
MAX_WAIT_S = 60.0
CURSORS = 1000
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
        self._cursors: OrderedDict[tuple[RunKey, int], Cursor] = OrderedDict()

    @activity.defn(name=names.CLAIM_HOST)
    async def claim_host(self, request: RunRequest) -> Claim:
        """Whether this host can carry the run. Fails with the RunError's type, at once, if the request is wrong."""
        if request.runtime.host not in (None, self._host):
            return Claim(host=self._host)  # another host is asked next
        with refusing():
            await asyncio.to_thread(self._policy.check, request, self._agents[request.agent])
            await admit_schema(request)
        return Claim(host=self._host, caps=self._policy.caps)

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
        async with beating():
            report = await self._runtime.stop(stop.key, ladder, stop.reason)
        return report.model_copy(update={"phase": stop.phase})

    @activity.defn(name=names.FINALIZE_RUN)
    async def finalize_run(self, end: FinalizeInput) -> None:
        """Close the log with its terminal event; let the shims go."""
        with refusing():
            directory = self._store.create(end.key)
        async with beating():
            await asyncio.to_thread(_end_log, directory, end.event)
            await self._runtime.release(end.key)
            await asyncio.to_thread(_clear, directory)

    @activity.defn(name=names.READ_EVENTS)
    async def read_events(self, wanted: ReadEvents) -> EventPage:
        """Events after a number; waits up to wait_s for the first of them."""
        with refusing():
            path = (await asyncio.to_thread(self._store.readable, wanted.key)).events
        cursor = self._cursors.pop((wanted.key, wanted.after), None) or Cursor()
        until = time.monotonic() + min(wanted.wait_s, MAX_WAIT_S)
        size = -1
        while True:
            activity.heartbeat()  # so that the death of this worker is noticed while a reader waits
            now = path.stat().st_size if path.exists() else -1
            if now != size:
                size = now
                if now >= 0:
                    events, ended = await asyncio.to_thread(read, path, cursor, wanted.after, wanted.max_bytes)
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
        pruned = await self.prune_host(PruneInput(keep_days=self._keeping.days))
        return Swept(stopped=tuple(stopped), pruned=pruned.pruned, bytes_freed=pruned.bytes_freed)

    async def _sweep(self, directory: RunDirectory) -> bool:
        """See to one run; whether something of it was stopped."""
        # A log that has ended says nothing of processes: a run may have been ended with some still alive.
        ended = await asyncio.to_thread(is_ended, directory.events)
        living = self._runtime.has_living(directory.key)
        if ended and not living:
            return False
        closed = await self._closed_as(directory.key)
        if closed is None:
            return False
        if living:
            await self._runtime.stop(directory.key, SWEEP_LADDER, "the run had closed")
        try:
            await asyncio.to_thread(_end_log, directory, closed)
        finally:
            await self._runtime.release(directory.key)
            await asyncio.to_thread(_clear, directory)
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
            pruned.append(directory.key.run)
            if prune.dry_run:
                freed += await asyncio.to_thread(disk.size, directory.path)
            else:
                freed += await asyncio.to_thread(self._store.remove, directory)
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

    async def _closed_as(self, key: RunKey) -> TerminalEvent | None:
        """The terminal event of a run that the server knows as closed; None while it is open or cannot be asked."""
        try:
            found = await self._client.get_workflow_handle(key.run).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                return None
            return FailedEvent(
                time=datetime.now(UTC), error=ErrorType.AGENT_FAILED, message="Temporal has forgotten the run"
            )
        # The id may have been used again since: what counts is whether this run is the one that is open.
        same = await self._is_same(key, found.run_id)
        if same and found.status == WorkflowExecutionStatus.RUNNING:
            return None
        now = found.close_time or datetime.now(UTC)
        if found.status == WorkflowExecutionStatus.CANCELED:
            return CancelledEvent(time=now)
        how = found.status.name.lower() if found.status else "closed"
        return FailedEvent(time=now, error=ErrorType.AGENT_FAILED, message=f"the workflow was {how}")

    async def _is_same(self, key: RunKey, run_id: str) -> bool:
        if run_id == key.execution:
            return True
        handle = self._client.get_workflow_handle(key.run, run_id=run_id)
        async for event in handle.fetch_history_events(page_size=1):
            first = event.workflow_execution_started_event_attributes.first_execution_run_id
            return first == key.execution
        return False

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


def _end_log(directory: RunDirectory, event: TerminalEvent) -> None:
    log = EventLog(directory.events)
    try:
        log.end(event)
    finally:
        log.close()


def _clear(directory: RunDirectory) -> None:
    """Remove what only the agent's processes needed: it may hold secrets."""
    for name in disk.names(directory.scratch):
        path = directory.scratch / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _whatever_lies_there(action: str, directory: RunDirectory) -> Iterator[None]:
    """One run's directory may hold anything: it must not keep the others from being seen to."""
    try:
        yield
    except (OSError, ValueError, RunError) as error:
        facts = {"run": directory.key.run, "error": f"{type(error).__name__}: {error}"}
        log.warning("a run's directory could not be seen to", extra={"action": action, "facts": facts})
