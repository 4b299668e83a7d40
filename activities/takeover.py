"""Gives the activities of a fallen worker of this host back to the server, so that another attempt begins at once.

Temporal itself would wait for the heartbeat timeout. What is done follows from what the server says of each run, not
from what was done before: an activity that a fallen worker is said to be at is failed, until the server knows of a
living one. So it does not matter who died in the middle of what. The shim's epoch tells two sessions on one run apart.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueKind
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest, ShutdownWorkerRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.registry import Peer, Registry
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import ActivityErrorType

log = logging.getLogger("steersman.takeover")

LOOK_S = 0.1
PULSE_S = 0.5
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.0
"""How long until a run is asked for again that nobody leads yet."""
SCAN_S = 2.0
"""How often, and how long after a death, it is looked for runs that the worker was handed and has not entered."""
ENTRY_S = 10.0
"""How long a worker that was handed a run may take until it has entered it."""
LAST_POLL_S = 70.0
"""A process that is frozen may be handed tasks for as long as its last polls stand."""
CLAIM_S = 3.0
AT_ONCE = 16
"""Requests to the server under way."""
MOST_UNENTERED = 1000
UNENTERED = f'WorkflowType="{names.RUN_WORKFLOW}" AND ExecutionStatus="Running" AND {names.RUN_PHASE}="queued"'
OURS = frozenset({names.RUN_AGENT, names.STOP_AGENT, names.FINALIZE_RUN, names.DELIVER_MESSAGES})
AT_WORK = frozenset(
    {
        PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
        PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
        PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED,
    }
)
LOOKED_BACK = 50
"""Events of a history in which the name of a worker's sticky queue is looked for."""
LOOKED_AT = 10
"""Runs whose histories are."""


@dataclass
class Fallen:
    """A worker that does not do what it was given. `until`: when the server can have given it no more tasks."""

    peer: Peer
    until: float
    over: bool = False


class Takeover:
    """`run` watches over the other workers of this host."""

    def __init__(self, client: Client, registry: Registry) -> None:
        self._client, self._registry = client, registry
        self._identities: set[str] = set()
        """Of fallen workers, as the server knows them; also of those that nothing is left of."""
        self._fallen: dict[tuple[str, bool], Fallen] = {}
        self._next = self._next_scan = 0.0
        self._pause = FIRST_PAUSE_S
        self._unsticking: set[asyncio.Task[None]] = set()
        self._few = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Until cancelled."""
        beside = [asyncio.create_task(self._pulse()), asyncio.create_task(self._see_to())]
        try:
            while True:
                self._note(await asyncio.to_thread(self._registry.peers))
                await asyncio.sleep(LOOK_S)
        finally:
            for task in (*beside, *self._unsticking):
                task.cancel()
            await asyncio.gather(*beside, *self._unsticking, return_exceptions=True)

    async def _pulse(self) -> None:
        while True:
            await asyncio.to_thread(self._registry.pulse)
            await asyncio.sleep(PULSE_S)

    def _note(self, peers: list[Peer]) -> None:
        living = {peer.facts.identity for peer in peers if peer.state == "alive"} | {self._registry.identity}
        self._identities = (self._identities | {peer.facts.identity for peer in peers}) - living
        fallen = {(peer.path.name, peer.state == "dead"): peer for peer in peers if peer.facts.identity not in living}
        self._fallen = {how: known for how, known in self._fallen.items() if how in fallen}
        for how, peer in fallen.items():
            if how not in self._fallen:
                self._next = self._next_scan = 0.0
                self._pause = FIRST_PAUSE_S
                until = time.monotonic() + (SCAN_S if peer.state == "dead" else LAST_POLL_S)
                self._fallen[how] = Fallen(peer, until)
                _say("worker_fallen", "a worker of this host is gone; its runs are given back", peer)
                task = asyncio.create_task(self._unstick(peer))
                self._unsticking.add(task)
                task.add_done_callback(self._unsticking.discard)

    async def _see_to(self) -> None:
        while True:
            await asyncio.sleep(FIRST_PAUSE_S)
            fallen = [each for each in self._fallen.values() if not each.over]
            if not fallen or time.monotonic() < self._next:
                continue
            try:
                async with self._claim():
                    given = await self._give_back(fallen)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other workers are to be watched on
                told = f"{type(error).__name__}: {error}"
                _say(
                    "takeover_failed", "a fallen worker's runs could not be given back yet", fallen[0].peer, error=told
                )
                given = False
            self._pause = FIRST_PAUSE_S if given else min(self._pause * 2, LAST_PAUSE_S)
            self._next = time.monotonic() + self._pause

    @asynccontextmanager
    async def _claim(self) -> AsyncIterator[None]:
        """Two that see to one run could fail the attempt that has just begun. That costs no more than another attempt,
        so one that keeps the claim is not waited for: it may be frozen.
        """
        until = time.monotonic() + CLAIM_S
        while True:
            with self._registry.claim() as ours:
                if ours or time.monotonic() > until:
                    yield
                    return
            await asyncio.sleep(FIRST_PAUSE_S)

    async def _give_back(self, fallen: list[Fallen]) -> bool:
        """Whether something was. Raises RPCError."""
        led: dict[RunKey, list[Fallen]] = {}
        for each in fallen:
            for key in await asyncio.to_thread(each.peer.runs):
                led.setdefault(key, []).append(each)
        given = await _all(self._settle(key, leaders) for key, leaders in led.items())
        now = time.monotonic()
        if now >= self._next_scan and any(now <= each.until + SCAN_S for each in fallen):
            self._next_scan = now + SCAN_S
            given.append(await self._give_back_unentered())
        for each in fallen:
            if now > each.until and not await asyncio.to_thread(each.peer.runs):
                each.over = True
                if each.peer.state == "dead":
                    await asyncio.to_thread(each.peer.remove)
        return any(given)

    async def _settle(self, key: RunKey, leaders: list[Fallen]) -> bool:
        """One run's activities, as the server knows them now; whether something was given back. Raises RPCError."""
        pending = await self._pending(key.run)
        given = await self._give(key.run, pending)
        leading = [each for each in pending if each.activity_type.name == names.RUN_AGENT]
        waits = any(each.state not in AT_WORK for each in leading)
        # A worker that is handed the run names itself as soon as it enters it: until then, this is all that names it.
        # Not for long: another run may have the id by now, or another host the run.
        if leading and not waits and any(time.monotonic() <= each.until + ENTRY_S for each in leaders):
            waits = await asyncio.to_thread(self._registry.holder, key) is None
        if not given and not waits:
            for each in leaders:
                await asyncio.to_thread(each.peer.forget, key)
        return given

    async def _give_back_unentered(self) -> bool:
        """A worker that died between a task's arrival and its entry has left no other trace. Raises RPCError."""
        found = self._client.list_workflows(UNENTERED, limit=MOST_UNENTERED)
        runs = [each.id async for each in found]

        async def give(run: str) -> bool:
            return await self._give(run, await self._pending(run))

        return any(await _all(give(run) for run in runs))

    async def _pending(self, run: str) -> list[PendingActivityInfo]:
        """Nothing where the run has closed."""
        async with self._few:
            try:
                found = await self._client.get_workflow_handle(run).describe()
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    return []
                raise
        return list(found.raw_description.pending_activities) if found.status == WorkflowExecutionStatus.RUNNING else []

    async def _give(self, run: str, pending: Iterable[PendingActivityInfo]) -> bool:
        held = [
            each
            for each in pending
            if each.activity_type.name in OURS
            and each.state in AT_WORK
            and each.last_worker_identity in self._identities
        ]
        for each in held:
            async with self._few:
                await self._fail(run, each.activity_id)
        return bool(held)

    async def _fail(self, run: str, activity: str) -> None:
        handle = self._client.get_async_activity_handle(workflow_id=run, run_id=None, activity_id=activity)
        try:
            await handle.fail(
                ApplicationError(
                    "the worker that was at it is gone; the agent works on",
                    type=ActivityErrorType.DETACHED,
                    next_retry_delay=timedelta(milliseconds=50),
                    category=ApplicationErrorCategory.BENIGN,
                )
            )
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:  # else it was done meanwhile, or the run has closed
                raise

    async def _unstick(self, peer: Peer) -> None:
        """Tell the server that nobody polls its sticky queue: else queries, updates and cancels of the runs that it had
        in memory stand still for the sticky queue's timeout. Best effort.
        """
        try:
            for key in [*await asyncio.to_thread(peer.runs), *self._registry.leads()][:LOOKED_AT]:
                if queue := await self._sticky_queue(key.run, peer.facts.identity):
                    request = ShutdownWorkerRequest(
                        namespace=self._client.namespace,
                        sticky_task_queue=queue,
                        identity=peer.facts.identity,
                        reason="the worker has fallen",
                    )
                    await self._client.workflow_service.shutdown_worker(request)
                    return
        except RPCError as error:
            _say("takeover_slowed", "a fallen worker's sticky queue could not be closed", peer, error=error.message)

    async def _sticky_queue(self, run: str, identity: str) -> str | None:
        """The queue of its own on which that worker was handed a task of the run's workflow. Raises RPCError."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=run),
            maximum_page_size=LOOKED_BACK,
        )
        try:
            answer = await self._client.workflow_service.get_workflow_execution_history_reverse(request)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
        events = {event.event_id: event for event in answer.history.events}
        for event in answer.history.events:
            started = event.workflow_task_started_event_attributes
            scheduled = events.get(started.scheduled_event_id)
            if scheduled is None or started.identity != identity:
                continue
            queue = scheduled.workflow_task_scheduled_event_attributes.task_queue
            if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY:
                return str(queue.name)
        return None


async def _all(work: Iterable[Coroutine[Any, Any, bool]]) -> list[bool]:
    """What each came to. Raises the first failure, after all have ended."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _say(action: str, message: str, peer: Peer, **facts: object) -> None:
    about = {"worker": peer.facts.queue, "state": peer.state, **facts}
    log.warning(message, extra={"action": action, "facts": about})
