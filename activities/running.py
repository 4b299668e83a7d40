"""run_agent and deliver_messages: the sessions that this worker process holds."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.conduct import beating
from activities.eventlog import is_ended
from activities.policy import Policy
from activities.ports import HURRIED, Agent, Fenced, Incompatible, Ladder, Runtime
from activities.schemas import admit_schema
from activities.session import Session
from activities.standing import is_current
from activities.store import RunStore
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
from steersman.contracts.errors import AgentFailed, RunError, WorkspaceError
from steersman.contracts.run import Handle

log = logging.getLogger("steersman.running")

HEARTBEAT_S = 1.0
CLOSED_LADDER = Ladder(0.25, 1.5)
"""For what a closed run has left behind."""
RELEASE_TRIES = 60
"""How often it is looked, 50 ms apart, whether the shims of a closed run have gone."""
MAX_FAILURES = 3
"""So often leading a run may fail in a way that nothing foresaw."""


class AgentActivities:
    """Holds the sessions of this worker. `queue` is the worker's own task queue."""

    def __init__(
        self,
        client: Client,
        agents: Mapping[str, Agent],
        runtime: Runtime,
        store: RunStore,
        policy: Policy,
        queue: str,
    ) -> None:
        self._client, self._agents, self._runtime = client, agents, runtime
        self._store, self._policy, self._queue = store, policy, queue
        self._sessions: dict[RunKey, Session] = {}

    @activity.defn(name=names.RUN_AGENT)
    async def run_agent(self, run: RunAgentInput) -> RunOutcome:
        """Lead the agent until it ends, or until another worker is to go on."""
        info = activity.info()
        # The server's clock orders attempts, also those of a run that was reset.
        epoch = int(info.started_time.timestamp() * 1_000_000)
        workflow = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        notifier = WorkflowNotifier(workflow, self._queue, epoch)
        try:
            async with beating():
                session = await self._prepare(run, notifier, epoch)
        except RunError as error:
            return await self._refuse(run.key, error)
        self._sessions[run.key] = session
        work = asyncio.create_task(session.run())
        pulse = asyncio.create_task(_pulse(session))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            return await self._let_go(run.key, session, work)
        except Fenced as error:
            # Twice: the server's clock may have stepped back between two attempts, and the next one is newer again.
            if await is_current(self._client) and self._store.count_failure(run.key) > 1:
                return await self._seized(run.key, session, error)
            raise ApplicationError(f"a newer worker has taken over: {error}", type="Fenced") from error
        except Incompatible as error:
            # Visible as the activity's last failure; an older worker, if one is left, can go on with the agent.
            raise ApplicationError(
                str(error), type="IncompatibleShim", next_retry_delay=timedelta(seconds=30)
            ) from error
        except Exception as error:
            if self._store.count_failure(run.key) < MAX_FAILURES:
                raise
            # What fails again and again will not mend itself: end the run rather than try for ever.
            await session.stop("Steersman failed")
            return _refused(AgentFailed(f"the agent could not be led: {type(error).__name__}: {error}"[:2000]))
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            pulse.cancel()
            if self._sessions.get(run.key) is session:
                del self._sessions[run.key]

    @activity.defn(name=names.DELIVER_MESSAGES)
    async def deliver_messages(self, parcel: DeliverInput) -> Delivered:
        """Hand messages to the session, if this worker holds it."""
        session = self._sessions.get(parcel.key)
        return await session.deliver(parcel) if session else Delivered(here=False)

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
        report = await self._runtime.stop(key, CLOSED_LADDER, "refused")
        message = f"{error.message}; its agent was stopped ({report.outcome})"
        return outcome.model_copy(update={"message": message, "stop_report": report})

    async def _prepare(self, run: RunAgentInput, notifier: "WorkflowNotifier", epoch: int) -> Session:
        # Checked here too: the run may have waited long in the queue, or another operator's worker claimed it.
        request = self._policy.caps.held(run.request)
        run = run.model_copy(update={"request": request})
        agent = self._agents[request.agent]
        await asyncio.to_thread(self._policy.check, request, agent)
        await admit_schema(request)
        directory = self._store.create(run.key)
        if await asyncio.to_thread(is_ended, directory.events):
            # A closed run was reset: it begins anew, and what was is kept beside it until it is pruned. Nothing of it
            # may be left at work: in a directory of another name nobody would find it.
            await self._clear_closed(run.key)
            self._store.set_aside(directory)
            directory = self._store.create(run.key)
        return Session(
            run=run,
            agent=agent,
            runtime=self._runtime,
            directory=directory,
            admit=lambda: self._policy.admit(request, agent),
            notifier=notifier,
            epoch=epoch,
        )

    async def _let_go(self, key: RunKey, session: Session, work: "asyncio.Task[RunOutcome]") -> RunOutcome:
        """Only a cancel of the run, or its end behind our back, stops the agent; all else is a detach."""
        details = activity.cancellation_details()
        if details and (details.cancel_requested or details.not_found):
            # A reset takes the activity back too: its new execution goes on with the agent.
            standing = await self._standing()
            if standing == "open" and details.cancel_requested:
                await session.stop("cancelled")
                return await work
            if standing == "closed":
                await session.stop("the run was terminated", HURRIED)
        why = "the worker shuts down" if details and details.worker_shutdown else "the activity was taken back"
        raise ApplicationError(
            f"{why}; the agent works on",
            type="Detached",
            next_retry_delay=timedelta(milliseconds=50),
            category=ApplicationErrorCategory.BENIGN,
        )

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


class WorkflowNotifier:
    """The run's workflow by signals; see ports.Notifier. Waits out a server that does not answer."""

    def __init__(self, handle: WorkflowHandle[Any, Any], queue: str, epoch: int) -> None:
        self._handle, self._queue, self._epoch = handle, queue, epoch

    async def preparing(self) -> None:
        """This worker has taken the run; no process exists yet."""
        await self._tell(names.SESSION_STARTED, SessionStarted(worker_queue=self._queue, epoch=self._epoch))

    async def started(self, handle: Handle | None, attempt: int) -> None:
        located = handle.model_copy(update={"worker_queue": self._queue}) if handle else None
        started = SessionStarted(worker_queue=self._queue, handle=located, attempt=attempt, epoch=self._epoch)
        await self._tell(names.SESSION_STARTED, started)

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


async def _pulse(session: Session) -> None:
    """Heartbeats of their own, so that a session busy with a stop or a flood is not taken for dead."""
    while True:
        snapshot = session.snapshot()
        last = snapshot.last_event
        activity.heartbeat(
            {
                "last_event": f"{last.type}: {last.summary[:100]}" if last else None,
                "cost_usd": snapshot.cost_usd,
                "turns": snapshot.turns,
                "attempt": snapshot.attempt,
            }
        )
        await asyncio.sleep(HEARTBEAT_S)


def _refused(error: RunError) -> RunOutcome:
    return RunOutcome(status="failed", error=error.type, message=error.message, facts=error.facts)
