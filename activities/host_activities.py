"""The activities of a host beside leading runs: claims, stops, ends, reading of events, sweeping, pruning."""

import asyncio
import logging
import math
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.activity_helpers import as_application_error, git_errors, heartbeating
from activities.admission.schemas import admit_schema
from activities.agent_checks import check_agents
from activities.context import ActivityContext
from activities.host_sweep import (
    CLOSED,
    Retention,
    closed_runs_of,
    end_all_closed,
    end_closed,
    kill_here,
    prune,
    stop_strays,
)
from activities.ports.runtime import CLEANUP, HURRIED, StopTimes
from activities.run_elsewhere import with_elsewhere
from activities.run_preparation import admitted_place, directory_of_run
from activities.running import run_log
from activities.running.completion import complete
from activities.running.launch import stop_times
from activities.stop_retries import StopRetries
from activities.store import disk
from activities.store.event_pages import EventPages
from activities.store.event_reader import consumption, is_ended, terminal_event
from activities.store.eventlog import end_log
from activities.store.identity import StoreGone
from activities.store.notes import note, noted
from activities.store.run_directory import RunDirectory, RunGone
from activities.store.session_locks import SessionLocked, SessionLocks
from activities.temporal.callers import is_closed
from activities.temporal.execution import epoch
from activities.temporal.loop_points import fork_point
from activities.workspace_holds import WorkspaceHolds
from steersman.contracts import names
from steersman.contracts.activities import (
    AgentChecks,
    CheckAgents,
    Claim,
    EndRun,
    Finalized,
    FinalizeInput,
    PruneInput,
    ReadEvents,
    RunEnd,
    RunKey,
    StopInput,
    Swept,
)
from steersman.contracts.agents import Capabilities
from steersman.contracts.errors import ActivityErrorType, AgentFailed, InvalidRequest, RunError, WorkspaceError
from steersman.contracts.events import TerminalEvent
from steersman.contracts.notices import NoticeKind
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Changes, RunProgress, StopReport, Worktree
from steersman.contracts.workspace import Diff, LoopStep, RunDiffInput, UndoInput, Undone

log = logging.getLogger("steersman.hosting")

MAX_FENCED = 5
"""So many attempts to end a log find one to lead the run that began later; after them the server's clock has stepped
back, and the log is ended as it is.
"""
LAST_WORDS_S = 1.0
"""Ending a log waits this many seconds for a worker that still writes it, after the time that the workflow gave it."""
ALL_GONE = 1 << 30
"""More processes than any directory tells of: what is found there is of another run, or cannot be read."""
_PROGRESS = "progress.json"
"""How far the run had come by its journals: in its directory, for an attempt of finalize_run that finds it ended."""


class HostActivities:
    """Stateless but for readers' positions in logs: any worker of the host can answer."""

    def __init__(self, context: ActivityContext, retention: Retention, notices: tuple[NoticeKind, ...] = ()) -> None:
        """`notices`: what the operator is told of all runs."""
        self._context, self._retention, self._notices = context, retention, notices
        self._host, self._agents, self._runtime = context.host, context.agents, context.runtime
        self._store, self._policy = context.store, context.policy
        self._locks = SessionLocks(context.store, context.runtime)
        self._closed_runs = closed_runs_of(context)
        self.stop_retries = StopRetries(context, self._closed_runs)
        self._holds = WorkspaceHolds(context)
        self._pages = EventPages()

    @activity.defn(name=names.CLAIM_HOST)
    async def claim_host(self, request: RunRequest) -> Claim:
        """Whether this host can carry the run. Fails with the RunError's type, at once, if the request is wrong."""
        if request.workspace.host not in (None, self._host):
            return Claim(host=self._host)  # another host is asked next
        with as_application_error():
            async with self._holds.calling(request) as calling:
                directory, worktree, capabilities = await asyncio.to_thread(self._admitted, request)
                await admit_schema(request)
                try:
                    store = await asyncio.to_thread(self._store.check)
                except StoreGone as error:
                    raise AgentFailed(str(error)) from error
                # Last: a claim that is refused leaves nothing.
                held_by = await self._holds.take(request, directory, calling)
        return Claim(
            host=self._host,
            caps=self._policy.caps,
            store=store,
            capabilities=capabilities,
            agent_variables=tuple(sorted(self._agent_variables(request))),
            workspace_held_by=held_by,
            worktree=worktree,
            notices=self._notices,
        )

    def _admitted(self, request: RunRequest) -> tuple[Path, Worktree | None, Capabilities]:
        """Where the run is to work, and what its agent can do. Raises RunError."""
        worktree = admitted_place(self._context, request)
        works_in = Path(worktree.directory) if worktree else None
        workspace, _ = self._policy.check_all(request, self._agents, works_in)
        capabilities = self._policy.kinds[request.agent].capabilities(request)
        if request.session is not None and request.is_carried:
            self._context.carry.sessions.check(request, workspace, self._policy.environment(request))
        if request.workspace.on_gate == "reject":
            self._context.carry.check_gates(works_in or workspace)
        return works_in or workspace, worktree, capabilities

    def _agent_variables(self, request: RunRequest) -> set[str]:
        """The own ones of all of the request's agents."""
        agents = (request.agent, *(each.agent for each in request.fallback))
        return {name for agent in agents for name in self._policy.kinds[agent].variables}

    @activity.defn(name=names.STOP_AGENT)
    async def stop_agent(self, stop: StopInput) -> StopReport:
        """Stop all processes of the run on this host and prove it. Twice is fine."""
        times = self._stop_times(stop)
        with as_application_error():
            self._store.directory(stop.key)
        if activity.info().attempt == 1:  # a further one carries out what the first one was asked
            run_log.stop_asked(stop.key, stop.reason, hurried=stop.hurried)
        known = stop.attempts
        try:
            await asyncio.to_thread(self._store.check, stop.store)
        except StoreGone as error:
            log.warning("%s", error, extra={"action": "stop_without_state", "facts": {"run": stop.key.run}})
            known = ALL_GONE
        async with heartbeating():
            report = await self._runtime.stop(stop.key, times, stop.reason, known=known)
            report = await asyncio.to_thread(self._with_elsewhere, stop, report)
        return report.model_copy(update={"phase": stop.phase})

    def _with_elsewhere(self, stop: StopInput, report: StopReport) -> StopReport:
        directory = self._store.directory(stop.key)
        return with_elsewhere(report, self._policy.kinds, self._policy.environ, stop.request, directory)

    def _stop_times(self, stop: StopInput) -> StopTimes:
        if stop.hurried:
            return HURRIED
        parts = list(map(stop.request.of_part, range(len(stop.request.fallback) + 1)))
        if any(each.agent not in self._agents for each in parts):  # its package is not here any more
            return CLEANUP
        # Whichever of them is at work: the most patient times.
        times = max((stop_times(self._agents[each.agent], each) for each in parts), key=lambda each: each.kill_after_s)
        return times.after(datetime.now(UTC) - stop.asked_at) if stop.asked_at else times

    @activity.defn(name=names.FINALIZE_RUN)
    async def finalize_run(self, end: FinalizeInput) -> Finalized:
        """Close the log with its terminal event, which says what the run has changed; let the shims go.

        Fails at once where that cannot be written down: a sweep does it later, if ever it can be.
        """
        async with heartbeating():
            try:
                with as_application_error():
                    directory = await asyncio.to_thread(self._directory_to_end, end)
                finalized = await self._finalize(end, directory)
                if await asyncio.to_thread(self._runtime.has_living, end.key):
                    self._context.left.put_nowait(directory)
                return finalized
            except (StoreGone, RunGone) as error:
                raise ApplicationError(str(error), type=ActivityErrorType.STATE_GONE, non_retryable=True) from error
            except OSError as error:
                if not (disk.is_unwritable(error) or disk.is_no_file(error)):
                    raise
                await asyncio.to_thread(self._store.discard_unbegun, end.key)
                text = f"state directory: the run's end cannot be written down: {error}"
                raise ApplicationError(text, type=ActivityErrorType.STATE_UNWRITABLE, non_retryable=True) from error

    async def _finalize(self, end: FinalizeInput, directory: RunDirectory) -> Finalized:
        try:
            if await asyncio.to_thread(is_ended, directory.events):
                return await asyncio.to_thread(_finalized, directory)
            progress: RunProgress | None = None
            if end.unseen and end.request.agent in self._agents:
                progress = await complete(end.request, self._agents, self._runtime, directory, epoch())
                if progress is None and activity.info().attempt < MAX_FENCED:
                    why = "an attempt to lead the run that began later than this one has its log"
                    raise ApplicationError(why, type=ActivityErrorType.FENCED)
            event = await self._with_changes(end, directory)
            if progress:
                await asyncio.to_thread(note, directory.path / _PROGRESS, progress)
            if await asyncio.to_thread(end_log, directory.events, event, LAST_WORDS_S):
                run_log.run_closed(directory, event)
            return Finalized(changes=event.changes, progress=progress)
        finally:
            if await self._runtime.release(end.key):
                await self._stop_left(end, directory)
            await self._closed_runs.give_back(directory)

    async def _stop_left(self, end: FinalizeInput, directory: RunDirectory) -> None:
        """Stop an agent that would work on beside whoever has the workspace next. `run_agent` ends with none at work,
        unless somebody else completed it by hand. What no stop could prove is tried again later.
        """
        told = end.event.stop_report
        if told is None or told.outcome != "unverified":
            await run_log.logged_stop(directory, CLOSED, self._runtime.stop(end.key, CLEANUP, CLOSED, patient=False))
            await self._runtime.release(end.key)

    async def _with_changes(self, end: FinalizeInput, directory: RunDirectory) -> TerminalEvent:
        if back := end.carried_back:
            if back.finalize.status == "failed":  # perhaps because nobody could do it in time
                failed = await self._context.carry.fail(directory, back.finalize.error or "")
                back = await self._context.carry.sessions.told(directory, failed)
            return end.event.model_copy(update={"changes": back.changes, "finalize": back.finalize})
        if self._runtime.attempts(end.key):  # a reset has forgotten that the run had a copy
            if back := await self._context.carry.finish(directory):
                return end.event.model_copy(update={"changes": back.changes, "finalize": back.finalize})
        else:
            await self._context.carry.abandon(directory)  # one that was made for a run that nobody wanted any more
        return end.event.model_copy(update={"changes": await self._changes(end, directory)})

    async def _changes(self, end: FinalizeInput, directory: RunDirectory) -> Changes | None:
        if end.baseline is None:
            return None
        try:
            workspace = await asyncio.to_thread(directory_of_run, self._context, end.request, end.event.worktree)
        except RunError as error:
            return Changes(before=end.baseline, error=error.message)
        return await self._context.changes.finish(directory, workspace, end.baseline)

    def _directory_to_end(self, end: FinalizeInput) -> RunDirectory:
        """Made only for a run that never had one: an empty log in place of one that is gone would be a lie."""
        self._store.check(end.store)
        directory = self._store.directory(end.key)
        if end.attempts and not directory.path.exists():
            directory.require(end.attempts)
        return self._store.create(end.key, end.request.runtime.model_dump(mode="json"))

    @activity.defn(name=names.DIFF_RUN)
    async def diff_run(self, asked: RunDiffInput) -> Diff:
        """The difference between the two commits of a run's files, or between the first and the files as they are."""
        async with heartbeating():
            with as_application_error(), git_errors():
                _, covered = await self._places_of(asked)
                found = await self._context.changes.diff(covered, asked.before, asked.after, asked.max_bytes)
                return found.model_copy(update={"now": asked.after is None})

    @activity.defn(name=names.UNDO_RUN)
    async def undo_run(self, asked: UndoInput) -> Undone:
        """Take back what a run has changed. Twice is fine."""
        async with heartbeating():
            with as_application_error(), git_errors():
                if self._policy.max_permission == "read_only":
                    raise InvalidRequest("this worker allows nobody to change a workspace")
                workspace, covered = await self._places_of(asked)
                if (holder := await self._holds.in_the_way_of_undo(workspace)) is not None:
                    raise WorkspaceError(f"{self._holds.shown(holder).name} is at work in the workspace: stop it first")
                directory = self._store.directory(asked.key)
                undo = self._context.changes.undo
                return await undo(directory, workspace, asked.before, asked.after, covered=covered)

    async def _places_of(self, asked: RunDiffInput | UndoInput) -> tuple[Path, Path]:
        """The workspace of a run whose commits these are, and the directory that they cover, by what is written down of
        it here, or by what its loop's workflow says: who may not write there must not have files of any other commit
        put there, or see them.

        Raises RunError, ApplicationError where they are none of its, OSError, RPCError.
        """
        directory = await asyncio.to_thread(self._store.readable, asked.key)
        workspace = await asyncio.to_thread(self._context.kept_directory, asked.workspace, "workspace.path")
        covered = None
        if asked.step:
            is_kept = await self._is_step(asked, asked.step, workspace)
        else:
            covered = await asyncio.to_thread(self._context.carry.covered, directory)
            merged = await asyncio.to_thread(self._context.carry.changes, directory)
            is_kept = await asyncio.to_thread(_is_of_run, directory, asked, workspace, merged)
        if not is_kept:
            gone = "what this run changed is not kept on this host any more"
            raise ApplicationError(gone, type=ActivityErrorType.STATE_GONE, non_retryable=True)
        return workspace, covered or workspace

    async def _is_step(self, asked: RunDiffInput | UndoInput, step: LoopStep, workspace: Path) -> bool:
        client = self._context.client
        older = await fork_point(client, step.loop, step.older, "step.loop")
        if older.checkpoint.commit != asked.before or self._policy.within(older.workspace, "step.loop") != workspace:
            return False
        if step.newer is None:
            return asked.after is None
        newer = (await fork_point(client, step.loop, step.newer, "step.loop")).checkpoint
        return (newer.commit, newer.run, newer.number) == (asked.after, asked.key.run, step.older + 1)

    @activity.defn(name=names.END_RUN)
    async def end_run(self, asked: EndRun) -> RunEnd:
        """The run's terminal event. If its workflow has closed and its log has none, the agent is stopped and the event
        is written first, as the next sweep would do.
        """
        async with heartbeating():
            with as_application_error():
                if (directory := await self._ended(asked.key)) is None:
                    return RunEnd(known=False)
        return RunEnd(event=await asyncio.to_thread(terminal_event, directory.events))

    async def consumption(self, key: RunKey) -> RunProgress | None:
        """What a run whose workflow has closed has consumed, ended as `end_run` does; None where nothing says so.

        Raises RunError, OSError, RPCError.
        """
        directory = await self._ended(key)
        return await asyncio.to_thread(consumption, directory.events) if directory else None

    async def _ended(self, key: RunKey) -> RunDirectory | None:
        directory = await asyncio.to_thread(self._store.readable, key)
        if not await asyncio.to_thread(os.path.lexists, directory.path):
            return None
        if not await asyncio.to_thread(is_ended, directory.events):
            await end_closed(self._context, self._closed_runs, directory)
        return directory

    @activity.defn(name=names.READ_EVENTS)
    async def read_events(self, wanted: ReadEvents) -> RawValue:
        """Events after a number, an EventPage; waits up to wait_s for the first of them."""
        with as_application_error():
            path = (await asyncio.to_thread(self._store.readable, wanted.key)).events
        try:
            await asyncio.to_thread(self._store.check, wanted.store)
        except StoreGone as error:
            raise ApplicationError(str(error), type=ActivityErrorType.STATE_GONE, non_retryable=True) from error
        async with heartbeating():  # so that the death of this worker is noticed while a reader waits
            page = await self._pages.page(wanted, path)
        return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=page))

    @activity.defn(name=names.CHECK_AGENTS)
    async def check_agents(self, _asked: CheckAgents) -> AgentChecks:
        """The programs and keys of its agents, as this worker sees them."""
        allowed = {name: kind for name, kind in self._policy.kinds.items() if name in self._agents}
        async with heartbeating():
            return await asyncio.to_thread(check_agents, allowed, self._policy.environ)

    async def kill_agents_here(self) -> None:
        """The host is another machine now: nothing may work on here."""
        await kill_here(self._context)

    @activity.defn(name=names.SWEEP_HOST)
    async def sweep_host(self) -> Swept:
        """Stop agents of runs that closed behind their back, close their logs, prune what is old."""
        async with heartbeating():
            return await self.sweep()

    async def sweep(self) -> Swept:
        """What sweep_host does, outside of an activity."""
        stopped = await end_all_closed(self._context, self._closed_runs)
        await self._context.carry.remove_kept(partial(is_closed, self._context.client))
        await self._context.sweep_places()
        await asyncio.to_thread(self._locks.sweep)
        await self._holds.all()
        await stop_strays(self._store)
        pruned = await prune(self._context, self._retention, PruneInput(keep_days=self._retention.days))
        return Swept(stopped=stopped, pruned=pruned.pruned, bytes_freed=pruned.bytes_freed)

    @activity.defn(name=names.PRUNE_HOST)
    async def prune_host(self, asked: PruneInput) -> Swept:
        """Remove the state of runs and loops that closed longer ago than keep_days; of an open one never."""
        async with heartbeating():
            return await prune(self._context, self._retention, asked)

    async def lock_session(self, agent: str, session: str, directory: RunDirectory) -> None:
        """Make an agent's session this run's alone. Raises what SessionLocks.take does."""
        try:
            await self._locks.take(agent, session, directory)
        except SessionLocked as error:
            if error.holder is None:
                raise
            await end_closed(self._context, self._closed_runs, error.holder)  # it may have closed unseen
            await self._locks.take(agent, session, directory)


def _is_of_run(
    directory: RunDirectory, asked: RunDiffInput | UndoInput, workspace: Path, merged: Changes | None
) -> bool:
    """`merged`: what came of its copy, perhaps after its end."""
    kept = [each.after for each in (_finalized(directory).changes, merged) if each]
    known = directory.baseline
    is_known = (known.get("commit"), known.get("workspace")) == (asked.before, str(workspace))
    return is_known and (asked.after is None or asked.after in kept)


def _finalized(directory: RunDirectory) -> Finalized:
    """What an attempt of finalize_run wrote down whose answer was lost; nothing where a sweep has ended the log."""
    try:
        event = terminal_event(directory.events)
    except (OSError, ValueError):
        return Finalized()
    progress = noted(directory.path / _PROGRESS, RunProgress)
    if progress and not 0 <= progress.cost_usd < math.inf:
        progress = None  # an agent may have written there
    return Finalized(changes=event.changes if event else None, progress=progress)
