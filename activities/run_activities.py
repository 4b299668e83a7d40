"""run_agent and deliver_messages, with the runs that this worker process leads.

What is done before a run is led, and with one that cannot be led, must not live here: see run_preparation and
run_failures.
"""

import asyncio
from collections import OrderedDict
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.activity_helpers import heartbeating, uncancelled
from activities.admission.control import LockSession
from activities.context import ActivityContext
from activities.host_sweep import closed_runs_of
from activities.ports.runtime import HURRIED, Fenced, Incompatible, Unreachable
from activities.run_failures import end_or_retry, fail_seized, refuse, retry_if_exhausted, retry_later
from activities.run_preparation import end_before, prepare, progress_before
from activities.running.completion import outcome_before
from activities.running.controller import CANCELLED, RunController
from activities.running.heartbeat import HeartbeatDetails
from activities.store.eventlog import end_log
from activities.store.identity import StoreGone
from activities.store.run_directory import RunGone
from activities.takeover.detachment import detached
from activities.takeover.priority import prefer
from activities.takeover.registry import Registry
from activities.takeover.run_slots import RunSlots
from activities.temporal.execution import is_current, is_wanted, standing, until_closed
from activities.temporal.notifier import WorkflowNotifier
from steersman.contracts import names
from steersman.contracts.activities import Delivered, DeliverInput, RunAgentInput, RunKey, RunOutcome
from steersman.contracts.errors import ActivityErrorType, RunError
from steersman.contracts.events import CancelledEvent, TerminalEvent
from steersman.contracts.messages import PAUSED

HEARTBEAT_S = 60.0
"""Seconds between heartbeats of run_agent: each is billed, and other workers of the host notice a death sooner."""
HEARTBEATS = 5
"""The heartbeat timeout has room for at least this many heartbeats: runs of older versions have a short one."""
MAX_LET_GO = 10_000
"""This worker keeps the reason for at most this many runs that it has let go."""


class RunActivities:
    """Holds the controllers of the runs that this worker leads. `polls` is a client for calls that wait: one a run."""

    def __init__(
        self, context: ActivityContext, registry: Registry, lock_session: LockSession, polls: Client, slots: RunSlots
    ) -> None:
        self._context, self._registry, self._lock_session, self._polls = context, registry, lock_session, polls
        self._slots = slots
        self._closed_runs = closed_runs_of(context)
        self._controllers: dict[RunKey, RunController] = {}
        self._let_go: OrderedDict[RunKey, str] = OrderedDict()
        """Why this worker let a run go, the oldest first."""

    @activity.defn(name=names.RUN_AGENT)
    async def run_agent(self, run: RunAgentInput) -> RunOutcome:
        """Lead the agent until it ends, or until another worker is to go on."""
        try:
            if not self._has_begun(run):
                await self._slots.refuse_without_place(run.key)
        except OSError as error:
            retry_if_exhausted(error)
            raise
        with self._slots.leading(run.key), self._registry.leading(run.key):
            self._context.starts.note()
            return await self._lead(run)

    @activity.defn(name=names.DELIVER_MESSAGES)
    async def deliver_messages(self, delivery: DeliverInput) -> Delivered:
        """Hand messages to the agent, if this worker leads the run."""
        controller = self._controllers.get(delivery.key)
        if controller is not None:
            return await controller.deliver(delivery)
        holder = await asyncio.to_thread(self._registry.holder, delivery.key)
        queue = None if holder == self._registry.queue else holder  # it is about to lead the run, or was
        return Delivered(here=False, queue=queue, why=None if queue else self._let_go.get(delivery.key))

    def _has_begun(self, run: RunAgentInput) -> bool:
        told = HeartbeatDetails.of(activity.info().heartbeat_details, run)
        return bool(told.attempt or self._context.runtime.attempts(run.key))

    async def _lead(self, run: RunAgentInput) -> RunOutcome:
        info = activity.info()
        workflow = self._context.client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        approvals = run.request.permissions.mode == "ask"
        notifier = WorkflowNotifier(workflow, self._registry.queue, approvals=approvals)
        before = HeartbeatDetails.of(info.heartbeat_details, run)
        try:
            async with heartbeating(before.model_dump()):
                before = await progress_before(self._context, run, before)
                if (end := await end_before(self._context, run, before)) is not None:
                    return await self._outcome_before(run, end, notifier.epoch)
                controller = await prepare(self._context, self._lock_session, run, before, notifier)
        except RunError as error:
            return await refuse(self._context, run.key, error)
        except (RunGone, StoreGone, Unreachable, OSError) as error:
            return await end_or_retry(self._context, run.key, before, error)
        outcome = await self._control(run.key, controller, before)
        if outcome.status == "stopped" and info.workflow_run_id != run.key.execution and not before.anew:
            await uncancelled(self._begin_anew(run.key, before))
        return outcome

    async def _outcome_before(self, run: RunAgentInput, end: TerminalEvent, epoch: int) -> RunOutcome:
        directory = self._context.store.directory(run.key)
        try:
            return await outcome_before(end, run.request, self._context.agents, self._context.runtime, directory, epoch)
        except Fenced as error:
            raise _taken_over(error) from error

    async def _control(self, key: RunKey, controller: RunController, before: HeartbeatDetails) -> RunOutcome:
        """The run's outcome, or what becomes of the run when it is taken from this worker."""
        self._controllers[key] = controller
        self._let_go.pop(key, None)
        work = asyncio.create_task(controller.run())
        beat = asyncio.create_task(_heartbeat(controller, before))
        closed = asyncio.create_task(until_closed(self._polls))
        try:
            return await _first(work, closed)
        except asyncio.CancelledError:
            return await self._stop_or_detach(key, controller, work)
        except _WorkflowClosed:
            # The server may tell the activity, too, and that must not break the stop off.
            return await uncancelled(self._stop_or_detach(key, controller, work))
        except Fenced as error:
            # Twice: the server's clock may have stepped back between two attempts, and the next one is newer again.
            if await is_current(self._context.client) and self._context.store.count_failure(key) > 1:
                return await fail_seized(key, controller, error)
            raise _taken_over(error) from error
        except Incompatible as error:
            # Visible as the activity's last failure; an older worker, if one is left, can go on with the agent.
            raise ApplicationError(
                str(error), type=ActivityErrorType.INCOMPATIBLE_SHIM, next_retry_delay=timedelta(seconds=30)
            ) from error
        except Exception as error:  # noqa: BLE001 - raised again, unless the run is to end
            return await end_or_retry(self._context, key, before.with_attempts(controller.attempts), error)
        finally:
            work.cancel()
            closed.cancel()
            await asyncio.gather(work, closed, return_exceptions=True)
            beat.cancel()
            if self._controllers.get(key) is controller:
                del self._controllers[key]

    async def _begin_anew(self, key: RunKey, before: HeartbeatDetails) -> None:
        """Raises ApplicationError, for another attempt, where an execution that a reset has replaced had the agent
        stopped but did not come to the log's end: to whoever resets it that run has closed. Once an execution, as an
        agent can have its own shim stop it.
        """
        try:
            if not await is_wanted(self._context.client):
                return
        except RPCError as error:
            raise retry_later(ActivityErrorType.STATE_UNKNOWN, f"nobody says who stopped the agent: {error}") from error
        directory = self._context.store.directory(key)
        end = CancelledEvent(time=datetime.now(UTC), reason="stopped before the run was reset")
        await asyncio.to_thread(end_log, directory.events, end)
        activity.heartbeat(before.model_copy(update={"attempt": 0, "anew": True}).model_dump())
        raise detached("the agent was stopped before the run was reset; it begins anew")

    async def _stop_or_detach(
        self, key: RunKey, controller: RunController, work: "asyncio.Task[RunOutcome]"
    ) -> RunOutcome:
        """Only a cancel of the run, or its end behind our back, stops the agent; all else is a detach."""
        details = activity.cancellation_details()  # None where the workflow execution has closed
        if details is None or details.cancel_requested or details.not_found:
            # A reset takes the activity back too: its new execution goes on with the agent.
            found = await standing(self._context.client)
            if found == "open" and details and details.cancel_requested:
                await controller.stop(CANCELLED)
                return await work
            if found == "closed":
                await self._end_closed(key, controller, work)
        if details and details.paused:
            self._let_go[key] = PAUSED
            while len(self._let_go) > MAX_LET_GO:
                self._let_go.popitem(last=False)
        why = "the activity was taken back"
        if details and details.worker_shutdown:
            why, info = "the worker shuts down", activity.info()
            await uncancelled(prefer(self._context.client, info.workflow_id or "", info.activity_id))
        raise detached(f"{why}; the agent works on")

    async def _end_closed(self, key: RunKey, controller: RunController, work: "asyncio.Task[RunOutcome]") -> None:
        """The run's workflow has closed behind its agent's back: stop the agent, and write the end into the log."""
        report = await controller.stop("the run was terminated", HURRIED)
        await asyncio.wait({work})  # the agent's last words come before the end
        if work.cancelled() or work.exception() is not None:
            return  # they could not be written, for want of room perhaps: a sweep completes the log, and ends it
        close = await self._closed_runs.close_of(key)
        if close is not None:  # else the server does not answer now: the next sweep asks it
            await self._closed_runs.end_log(self._context.store.directory(key), close, report)


def _taken_over(error: Fenced) -> ApplicationError:
    return ApplicationError(f"a newer worker has taken over: {error}", type=ActivityErrorType.FENCED)


class _WorkflowClosed(Exception):
    """The run's workflow has closed while its agent is at work."""


async def _first(work: "asyncio.Task[RunOutcome]", closed: "asyncio.Task[None]") -> RunOutcome:
    """The outcome of `work`. Raises what it raised, and _WorkflowClosed; a cancel leaves it at work."""
    await asyncio.wait({work, closed}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        closed.result()
        raise _WorkflowClosed
    return work.result()


async def _heartbeat(controller: RunController, before: HeartbeatDetails) -> None:
    """Heartbeat beside the controller, so that one that is busy with a stop or a flood is not taken for dead."""
    timeout = activity.info().heartbeat_timeout
    pause = min(HEARTBEAT_S, timeout.total_seconds() / HEARTBEATS) if timeout else HEARTBEAT_S
    while True:
        await asyncio.sleep(pause)
        snapshot = controller.snapshot()
        last = snapshot.last_event
        activity.heartbeat(
            {
                "last_event": f"{last.type}: {last.summary[:100]}" if last else None,
                "cost_usd": snapshot.cost_usd,
                "turns": snapshot.turns,
                **before.with_attempts(snapshot.attempt).model_dump(),
            }
        )
