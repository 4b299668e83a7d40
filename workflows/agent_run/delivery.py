"""Delivers messages and decisions to the worker that leads the run, until the agent has them.

Holds the run's mailbox and approvals. Each message is settled once; a new leader gets everything unsettled again.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError

from steersman.contracts.activities import (
    ApprovalAsked,
    Delivered,
    DeliverInput,
    MessagesSettled,
    SessionStarted,
    Settlement,
)
from steersman.contracts.agents import Capabilities, cannot, cannot_see
from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt
from steersman.contracts.names import host_queue
from steersman.contracts.run import MessageKind
from workflows.agent_run.activities import deliver_locally, deliver_through, run_key
from workflows.agent_run.approvals import Approvals
from workflows.agent_run.messages import Mailbox
from workflows.agent_run.visibility import RunVisibility
from workflows.waiting import MIN_TIMER, wait_condition, within

ANSWER_TIMEOUT = timedelta(seconds=4.5)
"""How long an update waits for its message to be settled before it answers why the message waits."""
RESEND_INTERVAL = timedelta(seconds=30)
"""When a message is delivered again that the leading worker took and did not confirm. Doubled each time."""
RETRY_INTERVAL = timedelta(seconds=1)
"""When a delivery that no worker took is tried again. Doubled each time, and ended by what is new."""
MAX_RESEND_INTERVAL = timedelta(minutes=10)
HEARD_LATE = "heard-late"
"""The patch of runs in which a question that comes late has its time from then on."""
DELIVERY_ENDS = "delivery-ends"
"""The patch of runs whose delivery ends with them, and waits no longer than it has to for what is new."""
UNANSWERED = "it is on its way to the worker that holds the agent's session, which has not answered yet"
NO_LEADER = "no worker holds the agent's session at the moment: the message waits for one"


class MessageDelivery:
    """Takes messages and decisions from the handlers, delivers them to the leading worker. `bounded`: see Mailbox."""

    def __init__(self, visibility: RunVisibility, *, bounded: bool = True) -> None:
        self.mailbox = Mailbox(bounded=bounded)
        self.approvals = Approvals(bounded=bounded)
        self.approval_timeout: timedelta | None = None
        """How long an approval waits before it is denied; None: for ever."""
        self.leader: SessionStarted | None = None
        self._bounded = bounded
        self._leaders = 0
        self._try_own_queue = True
        """Whether a worker of the workflow's own queue may know which worker leads the run."""
        self._given = 0
        """How many messages and decisions clients have sent."""
        self._visibility = visibility
        self._obstacle: str | None = None
        """Why the last delivery failed."""

    def publish(self) -> None:
        """Copy messages and approvals into RunState."""
        waits = self._obstacle if self.mailbox.has_unsent else None
        self._visibility.update(messages=self.mailbox.records, messages_wait=waits, approvals=self.approvals.open)
        self._visibility.update_waiting()

    # What clients send.

    async def accept_and_wait(self, kind: MessageKind, message: Message, update_id: str) -> MessageReceipt:
        """Accept a message and wait until it is settled, or until it is known why it waits."""
        # A message without an id is known by its update's id: an update that is answered in a workflow task which the
        # server loses comes again, perhaps in another order, and must be the same message.
        message_id = self.accept(kind, message, update_id if self._bounded else None)
        # A steer may be read much later, at the next tool boundary; an interrupt is answered at once or not at all.
        pending = {"queued"} if kind == "steer" else {"queued", "delivered"}

        def settled() -> bool:
            return self.mailbox[message_id].state not in pending

        obstacle = await self._wait_until(settled, message_id)
        record = self.mailbox[message_id]
        latency = workflow.now() - record.received_at
        return MessageReceipt(
            id=message_id,
            state=record.state,
            how=obstacle or record.how,
            latency_ms=round(latency / timedelta(milliseconds=1)),
        )

    async def _wait_until(self, settled: Callable[[], bool], message_id: str) -> str | None:
        """None once the message is settled; else, within 5 s, why it waits: the timer depends on nothing else."""
        if not self._bounded:
            await workflow.wait_condition(settled)
            return None
        if not settled():  # a message that is sent again is settled, mostly, and needs no timer
            await within(ANSWER_TIMEOUT, lambda: settled() or self._obstacle is not None, "answer that it waits")
        if settled():
            return None
        if self._obstacle is not None:
            return self._obstacle
        if not self._reachable:
            queued = self._visibility.in_phase("queued")
            return "no worker has taken the run yet" if queued else "the agent has not been started yet"
        return "the agent has it and has not answered yet" if self.mailbox.was_sent(message_id) else UNANSWERED

    def accept(self, kind: MessageKind, message: Message, default_id: str | None = None) -> str:
        """Accept a message; return its id."""
        message_id = self.mailbox.accept(kind, message, workflow.now(), default_id)
        self._given += 1
        self.publish()
        return message_id

    def on_claimed(self, agent: str, can: Capabilities) -> None:
        """A host has claimed the run: reject what was accepted before and the run, as that host has it, cannot take."""
        kinds: tuple[MessageKind, ...] = ("steer", "interrupt")
        refusals = {kind: why for kind in kinds if (why := cannot(agent, can, kind))}
        if self.mailbox.refuse(refusals, workflow.now(), cannot_see(agent, can)):
            self.publish()

    def decide(self, decision: Decision) -> DecisionReceipt:
        """Accept a decision that `approvals.refusal` does not refuse."""
        approval = self.approvals.decide(decision)
        self._given += 1
        self.publish()
        return DecisionReceipt(id=decision.id, decision=decision.decision, tool=approval.tool, input=approval.input)

    async def deny_overdue_approvals(self, timeout: timedelta) -> None:
        """Deny the approvals that nobody answers in time, until cancelled.

        The timer says that an approval is overdue, not the workflow's clock: a workflow that is queried while events
        wait for it takes them with its clock standing still, and its replay does not (temporalio 1.35.0, seen once in
        3,000 faults).
        """
        least = MIN_TIMER if self._bounded else timedelta()
        while True:
            await workflow.wait_condition(lambda: bool(self.approvals.open))
            due = self.approvals.due(timeout)
            assert due is not None
            try:
                await wait_condition(
                    lambda d=due: self.approvals.due(timeout) != d,  # type: ignore[misc]
                    max(due - workflow.now(), least),
                    "deny what nobody has answered",
                )
            except TimeoutError:
                for denial in self.approvals.overdue(due if self._bounded else workflow.now(), timeout):
                    self.decide(denial)

    # What the leader reports.

    def on_session_started(self, leader: SessionStarted) -> bool:
        """A worker leads the run now. False if its epoch is older than the known one."""
        if self.leader and leader.epoch < self.leader.epoch:
            return False
        before, self.leader = self.leader, leader
        self._leaders += 1
        self._try_own_queue = True
        self._obstacle = None
        self.mailbox.resend()
        process = leader.handle.process if leader.handle else None
        asked_by = before.handle.process if before and before.handle else None
        self.approvals.resend(same_process=process is not None and process == asked_by)
        self._visibility.update(awaits_message=False)  # which this leader tells anew
        self.publish()
        return True

    def on_approval_asked(self, asked: ApprovalAsked) -> None:
        """The agent asks for an approval, or withdraws its question."""
        if self._is_heard_too_late(asked) and workflow.patched(HEARD_LATE):
            approval = asked.approval.model_copy(update={"since": workflow.now()})
            asked = asked.model_copy(update={"approval": approval})
        self.approvals.on_asked(asked, self.approval_timeout, workflow.now())
        self.publish()

    def _is_heard_too_late(self, asked: ApprovalAsked) -> bool:
        """Whether a new question would be denied before anybody can have seen it: its host's clock is slow, or the
        server was away.
        """
        since, timeout = asked.approval.since, self.approval_timeout
        if timeout is None or since.tzinfo is None or self.approvals.has_heard_of(asked.approval.id):
            return False
        return not asked.withdrawn and workflow.now() - since >= timeout

    def on_messages_settled(self, settled: MessagesSettled) -> None:
        """The agent has taken messages that had been delivered before."""
        self.mailbox.settle(settled.messages, workflow.now())
        self.publish()

    def close(self, settlements: tuple[Settlement, ...], *, interrupted: bool, journal_read: bool) -> None:
        """Settle everything: the run is over. See Mailbox.close."""
        self.mailbox.settle(settlements, workflow.now())
        self.mailbox.close(workflow.now(), interrupted=interrupted, journal_read=journal_read)
        self.approvals.close()
        self._visibility.update(awaits_message=False)
        self.publish()

    # Between the two.

    async def run(self) -> None:
        """Deliver messages and decisions, until cancelled. A new leader is tried at once after a failed delivery."""
        retry, resend = RETRY_INTERVAL, RESEND_INTERVAL
        while True:
            await workflow.wait_condition(lambda: self._has_work() or self._unconfirmed)
            if not self._has_work():
                if not await within(resend, lambda: self._has_work() or not self._unconfirmed, "deliver it again"):
                    resend = min(resend * 2, MAX_RESEND_INTERVAL)
                    self.mailbox.resend(only_unconfirmed=True)
                elif resend > RESEND_INTERVAL and not self._unconfirmed and workflow.patched(DELIVERY_ENDS):
                    resend = RESEND_INTERVAL
                continue
            leaders, given = self._leaders, self._given
            if await self._deliver():
                retry = RETRY_INTERVAL
                continue
            wakes = workflow.patched(DELIVERY_ENDS)
            try:
                await wait_condition(
                    lambda n=leaders, g=given, w=wakes: self._leaders != n or (w and self._given != g),  # type: ignore[misc]
                    retry,
                    "deliver it again",
                )
            except TimeoutError:
                retry *= 2  # a new leader ends the wait anyway, and each try costs history

    @property
    def _unconfirmed(self) -> bool:
        return self._bounded and self._reachable and self.mailbox.unconfirmed

    @property
    def _reachable(self) -> bool:
        return self.leader is not None and self.leader.handle is not None

    def _has_work(self) -> bool:
        return self._reachable and (self.mailbox.has_unsent or bool(self.approvals.unsent()))

    async def _deliver(self) -> bool:
        """Deliver what goes into one delivery; whether a worker that leads the run took it."""
        leaders = self._leaders
        delivery = DeliverInput(key=run_key(), messages=self.mailbox.unsent(), decisions=self.approvals.unsent())
        self.mailbox.mark_tried(delivery.messages)
        try:
            delivered = await self._send(delivery)
        except FailureError as error:
            _end_with_task(error)
            delivered = Delivered(here=False)
        self._obstacle = None if delivered.here else delivered.why or NO_LEADER
        if delivered.here and leaders == self._leaders:
            self.mailbox.mark_sent(delivery.messages)
            self.approvals.mark_sent(delivery.decisions)
        self.mailbox.settle(delivered.messages, workflow.now())
        self.publish()
        return delivered.here

    async def _send(self, delivery: DeliverInput) -> Delivered:
        """Find the leading worker and deliver. Raises FailureError if the last worker that was asked did not answer."""
        assert self.leader is not None
        if not self._bounded:
            # What a local activity answers beside updates and signals may be recorded in another order than the
            # workflow saw it in: such a history does not replay, and its run is lost with the memory of the worker.
            delivered = await deliver_locally(delivery)
            return delivered if delivered.here else await deliver_through(self.leader.worker_queue, delivery)
        delivered = Delivered(here=False)
        if self._try_own_queue:
            # The deciding worker is mostly of that host. The server hands activities of the workflow's own task queue
            # to it at once, with the answer to the workflow task.
            self._try_own_queue = False
            if answer := await _answer(workflow.info().task_queue, delivery):
                delivered = answer
                self._try_own_queue = delivered.here or delivered.queue is not None
        # A worker that takes over tells the workflow only if it must: any other worker of the host knows which it is.
        for queue in (host_queue(self._visibility.state.host or ""), self.leader.worker_queue):
            if delivered.here:
                break
            if answer := await _answer(delivered.queue or queue, delivery):
                delivered = answer.model_copy(update={"why": answer.why or delivered.why})
        if delivered.here or not delivered.queue:
            return delivered
        return await deliver_through(delivered.queue, delivery)


async def _answer(queue: str, delivery: DeliverInput) -> Delivered | None:
    """What a worker of this queue answers; None where it does not."""
    try:
        return await deliver_through(queue, delivery)
    except FailureError as error:
        _end_with_task(error)
        return None


def _end_with_task(error: FailureError) -> None:
    """Raise CancelledError where an activity has failed because this task was cancelled: it is not to go on."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() and workflow.patched(DELIVERY_ENDS):
        raise asyncio.CancelledError from error
