"""What a host sees to beside its open runs: runs that closed unseen are ended, strays stopped, old state pruned.

Functions over one context: the activities are in host_activities.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.context import ActivityContext
from activities.loops.loop_store import LoopStore
from activities.ports.runtime import CLEANUP
from activities.running import run_log
from activities.running.completion import complete
from activities.shim import client as shim
from activities.shim.client import MachineUnreachable
from activities.store import disk
from activities.store.event_reader import ended_at, is_ended
from activities.store.held_sessions import prune_held
from activities.store.kept_copies import CopyLocation
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.temporal.closed_runs import ClosedRuns, clear_files
from activities.temporal.execution import epoch_of
from activities.workspaces.git.repository import COMMIT
from steersman.contracts.activities import CarriedBack, PruneInput, Swept
from steersman.contracts.errors import RunError
from steersman.contracts.run import Changes, RunState

log = logging.getLogger("steersman.hosting")

CLOSED = "the run had closed"
AT_ONCE = 16
"""A sweep sees to this many runs at once: some may wait for machines that do not answer."""
LOST_S = 30 * 86400.0
"""So much longer the state of a run is kept that may have something left on a machine which cannot be reached."""
SECOND_LOOK_S = 5.0
"""A sweep leaves shims this many seconds to stop agents whose directories are gone, before it does so itself."""


@dataclass(frozen=True)
class Retention:
    """The state of what closed more than `days` days ago is pruned; `loops` holds that of loops."""

    days: float
    loops: LoopStore


def closed_runs_of(context: ActivityContext) -> ClosedRuns:
    """The runs of this host that closed unseen."""
    carry_back, keep_end = partial(_carry_back, context), partial(_keep_end, context)
    return ClosedRuns(context.client, context.runtime, context.store, carry_back, keep_end)


async def _carry_back(
    context: ActivityContext, directory: RunDirectory, known: CarriedBack | None
) -> CarriedBack | None:
    """See closed_runs.CarryBack. What is on a machine that did not answer the stop waits there: nobody would ever hear
    of the run's end where the machine is lost.
    """
    reached = not context.runtime.is_silent(directory.key)
    return await context.carry.finish(directory, reached=reached, known=known)


async def _keep_end(context: ActivityContext, directory: RunDirectory, state: RunState | None) -> Changes | None:
    """See closed_runs.KeepEnd. What the workflow knows counts; baseline.json, in which an agent can write, where nobody
    can be asked.
    """
    recorded = directory.baseline
    before = state.baseline if state else recorded.get("commit")
    if before is None or not COMMIT.fullmatch(before):
        return None
    where = (state.workspace if state else None) or recorded.get("workspace", "")
    if state and state.worktree:
        where = state.worktree.directory
    try:
        workspace = await asyncio.to_thread(context.kept_directory, where, "workspace.path")
    except RunError as error:
        return Changes(before=before, error=error.message)
    return await context.changes.finish(directory, workspace, before)


async def end_closed(
    context: ActivityContext, closed_runs: ClosedRuns, directory: RunDirectory, *, patient: bool = True
) -> bool:
    """End one run whose workflow has closed unseen; whether something of it was stopped.

    `patient`: as of `Runtime.stop`; what could not be stopped is tried again soon.
    """
    # A log that has ended says nothing of processes: a run may have been ended with some still alive.
    ended = await asyncio.to_thread(is_ended, directory.events)
    living = context.runtime.has_living(directory.key)
    if ended and not living:
        return False
    close = await closed_runs.close_of(directory.key)
    if close is None:
        return False
    # Also of what lives no more: the report of the stop that ended it is the proof.
    stop = context.runtime.stop(directory.key, CLEANUP, CLOSED, patient=patient)
    report = await (run_log.logged_stop(directory, CLOSED, stop) if living else stop)
    if patient and report.outcome == "unverified":
        context.left.put_nowait(directory)
    request = None if ended else await closed_runs.request_of(directory.key)
    if request and request.agent in context.agents:
        # After all attempts to lead the run, before those of a reset, which may have come meanwhile.
        epoch = epoch_of(close.time)
        completed = await complete(request, context.agents, context.runtime, directory, epoch)
        if completed is None or await closed_runs.close_of(directory.key) is None:
            return living
    await closed_runs.end_log(directory, close, report)
    await _settle(context, directory)
    return living


async def _settle(context: ActivityContext, directory: RunDirectory) -> None:
    """See to the copy of a run whose log has ended, if nothing of it lives any more and its machine can be reached."""
    if not context.runtime.has_living(directory.key):
        with logged("copy_left", directory), suppress(MachineUnreachable):
            await context.carry.settle(directory)


async def sweep_run(context: ActivityContext, closed_runs: ClosedRuns, directory: RunDirectory) -> bool:
    """End one run if it closed unseen, and see to its copy; whether something of it was stopped."""
    stopped = False
    with logged("sweep_failed", directory):
        stopped = await end_closed(context, closed_runs, directory, patient=False)
        if await asyncio.to_thread(is_ended, directory.events):
            await asyncio.to_thread(_clear_left, context, directory)
            await _settle(context, directory)
    return stopped


def _clear_left(context: ActivityContext, directory: RunDirectory) -> None:
    """A worker that was killed after the end of the log has not removed the agent's private files."""
    if not context.runtime.has_living(directory.key):
        clear_files(directory)


async def end_all_closed(context: ActivityContext, closed_runs: ClosedRuns) -> tuple[str, ...]:
    """End all runs of this owner that closed unseen; the ids of those of which something was stopped."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def end(directory: RunDirectory) -> bool:
        async with slots:
            return await sweep_run(context, closed_runs, directory)

    directories = await asyncio.to_thread(own_runs, context.store)
    stopped = await asyncio.gather(*map(end, directories))
    return tuple(each.key.run for each, was_stopped in zip(directories, stopped, strict=True) if was_stopped)


async def kill_here(context: ActivityContext) -> None:
    """Kill every agent of this machine, and its shim: the host is another machine now, where its runs go on. Nothing is
    written down of it: that is the other machine's, too, if the directory is.
    """
    for directory in await asyncio.to_thread(own_runs, context.store):
        for attempt in directory.all_attempts():
            if not await shim.has_stray(attempt):
                continue
            with logged("sweep_failed", directory):
                killed = await shim.kill_unresponsive(attempt)
                facts = {"run": directory.key.run, "processes": killed.processes, "left": killed.left}
                why = "an agent was killed: its host is another machine now"
                log.warning(why, extra={"action": "agent_killed", "facts": facts})


async def stop_strays(store: RunStore) -> None:
    """Stop agents whose directories are gone: nobody can lead them, and no run would ever tell of them."""
    try:
        strays = await store.strays()
        if strays:
            await asyncio.sleep(SECOND_LOOK_S)  # a directory may be on its way from one place to another
            strays &= await store.strays()
    except OSError as error:
        log.warning("strays cannot be told", extra={"action": "sweep_failed", "facts": {"error": str(error)}})
        return
    for tag in strays:
        cleared = await store.kill_strays(tag)
        facts = {"tag": tag, "processes": cleared.processes, "left": cleared.left}
        log.error("stopped an agent whose directory is gone", extra={"action": "stray_stopped", "facts": facts})


async def prune(context: ActivityContext, retention: Retention, asked: PruneInput) -> Swept:
    """Remove the state of runs and loops that closed longer ago than keep_days; of an open one never."""
    horizon = time.time() - asked.keep_days * 86400
    runs, freed = await _prune_runs(context, horizon, dry_run=asked.dry_run)
    loops, freed_of_loops = await _prune_loops(context.client, retention.loops, horizon, dry_run=asked.dry_run)
    if not asked.dry_run:
        await asyncio.to_thread(context.changes.prune, horizon)
        await asyncio.to_thread(prune_held, context.store.state, horizon)
        with suppress(OSError):  # another time
            await context.prune_places(horizon)
    return Swept(pruned=(*runs, *loops), bytes_freed=freed + freed_of_loops)


async def _prune_runs(context: ActivityContext, horizon: float, *, dry_run: bool) -> tuple[list[str], int]:
    pruned, freed = [], 0
    for directory in await asyncio.to_thread(own_runs, context.store):
        ended = await asyncio.to_thread(ended_at, directory.events)
        if ended is None or ended > horizon:
            continue
        lost = context.runtime.has_living(directory.key)
        if lost and (directory.is_local or not (directory.is_given_up or ended < horizon - LOST_S)):
            continue
        if await asyncio.to_thread(context.carry.is_gate, directory):
            continue
        with logged("prune_failed", directory):
            if dry_run:
                freed += await asyncio.to_thread(disk.size, directory.path)
            else:
                if lost and not await _is_lost(context, directory):
                    continue  # the next sweep finds nothing left there, or cannot kill it
                await context.changes.forget(directory)
                await context.carry.forget(directory)
                if lost:
                    _tell_left(directory, await asyncio.to_thread(context.carry.where, directory))
                else:
                    await context.carry.remove(directory)
                freed += await asyncio.to_thread(context.store.remove, directory)
            pruned.append(directory.key.run)
    return pruned, freed


async def _is_lost(context: ActivityContext, directory: RunDirectory) -> bool:
    """Whether the machine of a run cannot be reached: it is tried once more."""
    await context.runtime.stop(directory.key, CLEANUP, CLOSED, patient=False)
    return context.runtime.is_silent(directory.key)


def _tell_left(directory: RunDirectory, copy: CopyLocation) -> None:
    facts = {"run": directory.key.run, "machine": directory.placement}
    facts["there"] = [f"places/{directory.tag}", f"copies/{copy.id}"]
    log.warning(
        "a run's machine is lost, and what is left there is not removed", extra={"action": "lost", "facts": facts}
    )


async def _prune_loops(client: Client, store: LoopStore, horizon: float, *, dry_run: bool) -> tuple[list[str], int]:
    pruned, freed = [], 0
    for loop in list(store.mine()):
        # A loop leaves no end in its directory: the server is asked for one that nobody used since.
        if loop.used > horizon or not await _closed_before(client, loop.loop, horizon):
            continue
        pruned.append(loop.loop)
        if dry_run:
            freed += await asyncio.to_thread(disk.size, loop.path)
        else:
            freed += await asyncio.to_thread(store.remove, loop)
    return pruned, freed


async def _closed_before(client: Client, workflow: str, horizon: float) -> bool:
    """Whether Temporal knows that the workflow closed before then, or has forgotten it."""
    try:
        found = await client.get_workflow_handle(workflow).describe()
    except RPCError as error:
        return error.status == RPCStatusCode.NOT_FOUND
    return found.close_time is not None and found.close_time.timestamp() < horizon


def own_runs(store: RunStore) -> list[RunDirectory]:
    """This owner's runs; not one that was set aside and whose place another owner has taken since."""
    found = []
    for directory in store.mine():
        with suppress(RunError):
            store.directory(directory.key)
            found.append(directory)
    return found


@contextmanager
def logged(action: str, directory: RunDirectory) -> Iterator[None]:
    """Log a failure within: one run's directory may hold anything, and must not keep the others from their turn."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an agent may have written there
        facts = {"run": directory.key.run, "error": f"{type(error).__name__}: {error}"}
        log.warning("a run's directory could not be seen to", extra={"action": action, "facts": facts})
