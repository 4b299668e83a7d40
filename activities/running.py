"""run_agent and deliver_messages: the sessions that this worker process holds."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities import disk, run_log
from activities.begun import Begun
from activities.closings import Closings
from activities.conduct import beating, uncancelled
from activities.eventlog import is_ended
from activities.identity import StoreGone
from activities.policy import Policy
from activities.ports import HURRIED, Admission, Agent, Fenced, Incompatible, Ladder, Runtime
from activities.registry import Registry
from activities.schemas import admit_schema
from activities.session import CANCELLED, Session
from activities.standing import epoch, is_current, until_closed
from activities.store import RunDirectory, RunGone, RunStore
from steersman.contracts import names
from steersman.contracts.activities import (
    ApprovalAsked,
    Delivered,
    DeliverInput,
    MessagesSettled,
    Progressed,
    RunAgentInput,
    RunKey,
    RunOutcome,
    SessionStarted,
    Settlement,
)
from steersman.contracts.errors import ActivityErrorType, AgentFailed, RunError, WorkspaceError
from steersman.contracts.messages import PAUSED
from steersman.contracts.request import RunRequest
from steersman.contracts.run import FINAL_STATES, Handle, RunState

log = logging.getLogger("steersman.running")

LockSession = Callable[[str, str, RunDirectory], Awaitable[None]]
"""HostActivities.lock_session."""
HEARTBEAT_S = 60.0
"""Each is billed. A worker's death is noticed by the others of its host, not by them."""
HEARTBEATS = 5
"""How many the heartbeat timeout must take at least: runs of older versions have a short one."""
CLOSED_LADDER = Ladder(0.25, 1.5)
"""For what a closed run has left behind."""
RELEASE_TRIES = 60
"""How often it is looked, 50 ms apart, whether the shims of a closed run have gone."""
QUERY_TIMEOUT = timedelta(seconds=5)
UNANSWERED = (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError, ValueError)
"""What a query of a run's state may raise."""
RETRY_DELAY = timedelta(seconds=5)
"""Between attempts to lead a run whose state is out of reach."""
MAX_FAILURES = 3
"""So often leading a run may fail in a way that nothing foresaw."""
MAX_LEFT = 10_000
"""Runs that this worker let go, of which it knows why."""


@dataclass(frozen=True)
class Shared:
    """What a worker has in common with the others of its host: who leads which run, and which has which session."""

    registry: Registry
    lock_session: LockSession


class AgentActivities:
    """Holds the sessions of this worker. `polls` is a client for calls that wait: one for each session."""

    def __init__(
        self,
        client: Client,
        agents: Mapping[str, Agent],
        runtime: Runtime,
        store: RunStore,
        policy: Policy,
        shared: Shared,
        polls: Client,
    ) -> None:
        self._client, self._agents, self._runtime = client, agents, runtime
        self._store, self._policy, self._polls = store, policy, polls
        self._registry, self._lock_session = shared.registry, shared.lock_session
        self._closings = Closings(client, runtime)
        self._sessions: dict[RunKey, Session] = {}
        self._left: OrderedDict[RunKey, str] = OrderedDict()

    @activity.defn(name=names.RUN_AGENT)
    async def run_agent(self, run: RunAgentInput) -> RunOutcome:
        """Lead the agent until it ends, or until another worker is to go on."""
        with self._registry.leading(run.key):
            return await self._lead(run)

    async def _lead(self, run: RunAgentInput) -> RunOutcome:
        info = activity.info()
        workflow = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        asks = run.request.permissions.mode == "ask"
        notifier = WorkflowNotifier(workflow, self._registry.queue, asks=asks)
        before = Begun.of(info.heartbeat_details, run)
        try:
            async with beating(before.model_dump()):
                before = await self._begun(run, before)
                session = await self._prepare(run, before, notifier)
        except RunError as error:
            return await self._refuse(run.key, error)
        except (RunGone, StoreGone, OSError) as error:
            return await self._not_led(run.key, before, error)
        return await self._held(run, session, before)

    async def _held(self, run: RunAgentInput, session: Session, before: Begun) -> RunOutcome:
        """What the session comes to, or what becomes of the run when it is taken from it."""
        self._sessions[run.key] = session
        self._left.pop(run.key, None)
        work = asyncio.create_task(session.run())
        pulse = asyncio.create_task(_pulse(session, before))
        closed = asyncio.create_task(until_closed(self._polls))
        try:
            return await _first(work, closed)
        except asyncio.CancelledError:
            return await self._let_go(run.key, session, work)
        except _WorkflowClosed:
            # The server may tell the activity, too, and that must not break the stop off.
            return await uncancelled(self._let_go(run.key, session, work))
        except Fenced as error:
            # Twice: the server's clock may have stepped back between two attempts, and the next one is newer again.
            if await is_current(self._client) and self._store.count_failure(run.key) > 1:
                return await self._seized(run.key, session, error)
            raise ApplicationError(f"a newer worker has taken over: {error}", type=ActivityErrorType.FENCED) from error
        except Incompatible as error:
            # Visible as the activity's last failure; an older worker, if one is left, can go on with the agent.
            raise ApplicationError(
                str(error), type=ActivityErrorType.INCOMPATIBLE_SHIM, next_retry_delay=timedelta(seconds=30)
            ) from error
        except Exception as error:  # noqa: BLE001 - raised again, unless the run is to end
            return await self._not_led(run.key, before.having(session.attempts), error)
        finally:
            work.cancel()
            closed.cancel()
            await asyncio.gather(work, closed, return_exceptions=True)
            pulse.cancel()
            if self._sessions.get(run.key) is session:
                del self._sessions[run.key]

    @activity.defn(name=names.DELIVER_MESSAGES)
    async def deliver_messages(self, parcel: DeliverInput) -> Delivered:
        """Hand messages to the session, if this worker holds it."""
        session = self._sessions.get(parcel.key)
        if session is not None:
            return await session.deliver(parcel)
        holder = await asyncio.to_thread(self._registry.holder, parcel.key)
        queue = None if holder == self._registry.queue else holder  # it is about to lead the run, or was
        return Delivered(here=False, queue=queue, why=None if queue else self._left.get(parcel.key))

    async def _not_led(self, key: RunKey, begun: Begun, error: Exception) -> RunOutcome:
        """Leading a run failed in a way that is none of the agent's. The run's end, or raises for another try."""
        try:
            await asyncio.to_thread(self._store.check, begun.store)
            await asyncio.to_thread(self._store.directory(key).require, begun.attempt)
        except StoreGone as gone:
            raise _later(ActivityErrorType.STORE_GONE, str(gone)) from error
        except RunGone as gone:
            return await self._lost(key, begun, gone)
        except OSError as unseen:
            raise _later(ActivityErrorType.STATE_UNWRITABLE, f"state directory: {unseen}") from error
        if isinstance(error, StoreGone | RunGone):
            raise _later(ActivityErrorType.STORE_GONE, f"{error}; it is back by now") from error
        if disk.is_unwritable(error):
            text = f"state directory: {error}; free some space, or make it writable"
            if begun.attempt == 0 and self._runtime.attempts(key) == 0:
                return _refused(AgentFailed(text))
            raise _later(ActivityErrorType.STATE_UNWRITABLE, f"{text}; until then nobody leads the agent") from error
        if await asyncio.to_thread(self._store.count_failure, key) < MAX_FAILURES:
            raise error
        # What fails again and again will not mend itself: end the run rather than try for ever.
        await self._runtime.stop(key, CLOSED_LADDER, "Steersman failed", known=begun.attempt)
        return _refused(AgentFailed(f"the agent could not be led: {type(error).__name__}: {error}"[:2000]))

    async def _lost(self, key: RunKey, begun: Begun, gone: RunGone) -> RunOutcome:
        """What was written down of the run is gone, and a second agent must not begin its work anew."""
        report = await self._runtime.stop(key, CLOSED_LADDER, "its directory is gone", known=begun.attempt)
        message = f"{gone}; its agent was stopped ({report.outcome})"
        log.error(message, extra={"action": "run_gone", "facts": {"run": key.run, "left": report.left}})
        outcome = _refused(AgentFailed(message))
        return outcome.model_copy(update={"attempts": begun.attempt, "stop_report": report})

    async def _begun(self, run: RunAgentInput, told: Begun) -> Begun:
        """How far the run had come before this attempt of the activity. Raises StoreGone."""
        info = activity.info()
        await asyncio.to_thread(self._store.check, told.store)
        first = info.attempt == 1 and info.workflow_run_id == run.key.execution
        if first or told.attempt or self._runtime.attempts(run.key):
            return told
        # An earlier worker may have died before its heartbeat told of a process, and the directory be gone since.
        if self._store.directory(run.key).tag in await self._store.strays():
            return told.having(1)
        return told.having(await self._attempts_told()) if info.attempt > 1 else told

    async def _attempts_told(self) -> int:
        """How many processes the workflow has been told of. Raises ApplicationError where it cannot be asked now."""
        workflow = self._client.get_workflow_handle(activity.info().workflow_id or "")
        try:
            return (await _state_of(workflow)).attempt
        except UNANSWERED as error:
            raise _later(
                ActivityErrorType.STATE_UNKNOWN, f"nobody says whether the run has begun already: {error}"
            ) from error

    async def _clear_closed(self, key: RunKey) -> None:
        """Stop what a closed run left at work, and let its shims go. Raises WorkspaceError where one stays."""
        report = await self._runtime.stop(key, CLOSED_LADDER, "the run had closed")
        await self._runtime.release(key)
        for _ in range(RELEASE_TRIES):
            if not self._runtime.has_living(key):
                return
            await asyncio.sleep(0.05)
        raise WorkspaceError(f"workspace: processes of the closed run are still there: {report.left}")

    async def _refuse(self, key: RunKey, error: RunError) -> RunOutcome:
        """The run may not go on here. An agent of it that an earlier worker left at work is stopped with it."""
        outcome = _refused(error)
        if self._runtime.attempts(key) == 0:
            return outcome
        stop = self._runtime.stop(key, CLOSED_LADDER, "refused")
        report = await run_log.clearing(self._store.directory(key), "refused", stop)
        message = f"{error.message}; its agent was stopped ({report.outcome})"
        return outcome.model_copy(update={"message": message, "stop_report": report})

    async def _prepare(self, run: RunAgentInput, before: Begun, notifier: "WorkflowNotifier") -> Session:
        await asyncio.to_thread(self._store.directory(run.key).require, before.attempt)
        # Checked here too: the run may have waited long in the queue, or another operator's worker claimed it.
        request = self._policy.caps.held(run.request)
        run = run.model_copy(update={"request": request})
        agent = self._agents[request.agent]
        await asyncio.to_thread(self._policy.check, request, agent)
        await admit_schema(request)
        directory = self._store.create(run.key)
        if await asyncio.to_thread(is_ended, directory.events):
            # A closed run was reset: it begins anew, and what was is kept beside it until it is pruned. Nothing of it
            # may be left at work: in a directory of another name nobody would find it. Without a reset this attempt is
            # one that came too late, as after a reset of the activity: the server counts on it no more.
            if not await is_current(self._client):
                raise ApplicationError(
                    "the run has ended", type=ActivityErrorType.DETACHED, category=ApplicationErrorCategory.BENIGN
                )
            await self._clear_closed(run.key)
            if await asyncio.to_thread(is_ended, directory.events):  # a worker that thaws here finds the new beginning
                self._store.set_aside(directory)
            directory = self._store.create(run.key)
        if request.session and not request.fork_session and self._runtime.attempts(run.key) == 0:
            await self._lock_session(request.agent, request.session, directory)
        return Session(
            run=run,
            agent=agent,
            runtime=self._runtime,
            directory=directory,
            host=LocalHost(self._policy, agent, request, directory, self._lock_session),
            notifier=notifier,
            epoch=notifier.epoch,
        )

    async def _let_go(self, key: RunKey, session: Session, work: "asyncio.Task[RunOutcome]") -> RunOutcome:
        """Only a cancel of the run, or its end behind our back, stops the agent; all else is a detach."""
        details = activity.cancellation_details()  # None where the workflow execution has closed
        if details is None or details.cancel_requested or details.not_found:
            # A reset takes the activity back too: its new execution goes on with the agent.
            standing = await self._standing()
            if standing == "open" and details and details.cancel_requested:
                await session.stop(CANCELLED)
                return await work
            if standing == "closed":
                await self._end_closed(key, session, work)
        if details and details.paused:
            self._left[key] = PAUSED
            while len(self._left) > MAX_LEFT:
                self._left.popitem(last=False)
        why = "the worker shuts down" if details and details.worker_shutdown else "the activity was taken back"
        raise ApplicationError(
            f"{why}; the agent works on",
            type=ActivityErrorType.DETACHED,
            next_retry_delay=timedelta(milliseconds=50),
            category=ApplicationErrorCategory.BENIGN,
        )

    async def _end_closed(self, key: RunKey, session: Session, work: "asyncio.Task[RunOutcome]") -> None:
        """The run's workflow has closed behind its agent's back: stop the agent, and let the log say so."""
        report = await session.stop("the run was terminated", HURRIED)
        await asyncio.wait({work})  # the agent's last words come before the end
        closing = await self._closings.of(key)
        if closing is not None:  # else the server does not answer now: the next sweep asks it
            await self._closings.end(self._store.directory(key), closing, report)

    async def _seized(self, key: RunKey, session: Session, error: Fenced) -> RunOutcome:
        """Temporal knows of no other worker that fenced us off, so nobody holds the run's limits any more."""
        report = await session.stop("seized")
        message = (
            "something on this host that is no worker took hold of the run, by the agent's shim or the event log "
            f"({error}); the agent was stopped ({report.outcome})"
        )
        facts = {"run": key.run, "outcome": report.outcome, "left": report.left}
        log.error(message, extra={"action": "run_seized", "facts": facts})
        return session.failed(AgentFailed(message))

    async def _standing(self) -> Literal["open", "closed", "replaced", "unknown"]:
        """How this activity's own workflow execution stands."""
        info = activity.info()
        try:
            found = await self._client.get_workflow_handle(info.workflow_id or "").describe()
        except RPCError as error:
            return "closed" if error.status == RPCStatusCode.NOT_FOUND else "unknown"
        if found.status != WorkflowExecutionStatus.RUNNING:
            return "closed"
        return "open" if found.run_id == info.workflow_run_id else "replaced"


@dataclass(frozen=True)
class LocalHost:
    """This host; see ports.RunHost."""

    policy: Policy
    agent: Agent
    request: RunRequest
    directory: RunDirectory
    lock_session: LockSession

    def admit(self) -> Admission:
        """What the request gets, if it may run here. Raises RunError."""
        return self.policy.admit(self.request, self.agent)

    async def lock(self, session: str) -> None:
        """Best effort: the run is at work, and what its agent says of its sessions is the agent's claim."""
        try:
            await self.lock_session(self.agent.name, session, self.directory)
        except (RunError, OSError) as error:
            facts = {"run": self.directory.key.run, "session": session, "error": f"{type(error).__name__}: {error}"}
            log.warning("a session could not be locked", extra={"action": "session_unlocked", "facts": facts})


class WorkflowNotifier:
    """The run's workflow by signals; see ports.Notifier. Waits out a server that does not answer."""

    def __init__(self, handle: WorkflowHandle[Any, Any], queue: str, *, asks: bool) -> None:
        self._handle, self._queue, self._asks = handle, queue, asks
        self.epoch = epoch()
        # Both are the server's times.
        self.age_s = max(self.epoch / 1_000_000 - activity.info().scheduled_time.timestamp(), 0.0)

    async def preparing(self) -> None:
        """This worker has taken the run; no process exists yet."""
        await self._tell(names.SESSION_STARTED, SessionStarted(worker_queue=self._queue, epoch=self.epoch))

    async def started(self, handle: Handle, attempt: int, *, adopted: bool) -> None:
        if adopted and await self._is_known(handle, attempt):
            return
        located = handle.model_copy(update={"worker_queue": self._queue})
        started = SessionStarted(worker_queue=self._queue, handle=located, attempt=attempt, epoch=self.epoch)
        await self._tell(names.SESSION_STARTED, started)

    async def _is_known(self, handle: Handle, attempt: int) -> bool:
        """Whether the workflow need not be told: it knows the process, and has nothing to say to it.

        A query costs no history: a run that is handed over each hour for days stays as short as one that is not.
        """
        if self._asks:
            return False  # decisions that are to be remembered have to be told to each session
        try:
            state = await _state_of(self._handle)
        except UNANSWERED:
            return False
        same = state.handle is not None and _process(state.handle) == _process(handle) and state.attempt == attempt
        return same and all(each.state in FINAL_STATES for each in state.messages)

    async def progressed(self, progress: Progressed) -> None:
        await self._tell(names.PROGRESSED, progress)

    async def asked(self, asked: ApprovalAsked) -> None:
        await self._tell(names.APPROVAL_ASKED, asked)

    async def settled(self, settlements: list[Settlement]) -> None:
        await self._tell(names.MESSAGES_SETTLED, MessagesSettled(messages=tuple(settlements)))

    async def _tell(self, signal: str, news: Any) -> None:
        pause = 0.2
        while True:
            try:
                await self._handle.signal(signal, news)
            except RPCError as error:
                if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                    return  # the run has closed: nobody is left to tell
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10)
            else:
                return


async def _state_of(workflow: WorkflowHandle[Any, Any]) -> RunState:
    """What the run's workflow knows; costs no history. Raises one of UNANSWERED."""
    state: RunState = await workflow.query(names.STATE_QUERY, result_type=RunState, rpc_timeout=QUERY_TIMEOUT)
    return state


class _WorkflowClosed(Exception):
    """Behind the session's back."""


async def _first(work: "asyncio.Task[RunOutcome]", closed: "asyncio.Task[None]") -> RunOutcome:
    """What the session came to. Raises what it raised, and _WorkflowClosed; a cancel leaves it at work."""
    await asyncio.wait({work, closed}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        raise _WorkflowClosed
    return work.result()


async def _pulse(session: Session, before: Begun) -> None:
    """Heartbeats of their own, so that a session busy with a stop or a flood is not taken for dead."""
    timeout = activity.info().heartbeat_timeout
    pause = min(HEARTBEAT_S, timeout.total_seconds() / HEARTBEATS) if timeout else HEARTBEAT_S
    while True:
        await asyncio.sleep(pause)
        snapshot = session.snapshot()
        last = snapshot.last_event
        activity.heartbeat(
            {
                "last_event": f"{last.type}: {last.summary[:100]}" if last else None,
                "cost_usd": snapshot.cost_usd,
                "turns": snapshot.turns,
                **before.having(snapshot.attempt).model_dump(),
            }
        )


def _process(handle: Handle) -> tuple[str, int, int]:
    return handle.boot_id, handle.pid, handle.start_time


def _later(kind: str, message: str) -> ApplicationError:
    """Nothing is lost by waiting: the run is tried again until somebody has seen to it, or cancels."""
    log.error(message, extra={"action": "not_led", "facts": {"run": activity.info().workflow_id}})
    return ApplicationError(message, type=kind, next_retry_delay=RETRY_DELAY)


def _refused(error: RunError) -> RunOutcome:
    return RunOutcome(status="failed", error=error.type, message=error.message, facts=error.facts)
