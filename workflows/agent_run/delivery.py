"""Carries what people say to the session, whichever worker holds it, until the agent has it.

Keeps the run's messages and approvals. Each message is settled once; a new session hears everything unsettled again.
"""

import contextlib
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
from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt
from steersman.contracts.names import host_queue
from steersman.contracts.run import MessageKind
from workflows.agent_run.activities import deliver_here, deliver_there, run_key
from workflows.agent_run.approvals import Approvals
from workflows.agent_run.messages import Mailbox
from workflows.agent_run.visibility import Board
from workflows.waiting import within

ANSWER_PATIENCE = timedelta(seconds=4.5)
"""How long somebody who says something waits for what becomes of it."""
CONFIRMATION = timedelta(seconds=30)
"""After this a message that a session has taken, but not written, is handed to it again. Doubled each time."""
MOMENT = timedelta(milliseconds=1)
"""Waiting for no time at all would take no timer, and a replay has to see the same ones."""
LONGEST_PAUSE = timedelta(minutes=10)
UNDERWAY = "it is on its way to the worker that holds the agent's session, which has not answered yet"
NOBODY = "no worker holds the agent's session at the moment: the message waits for one"


class Courier:
    """Between people and the session; what it carries is shown on the board.

    `bounded`: see Mailbox.
    """

    def __init__(self, board: Board, *, bounded: bool = True) -> None:
        self.mailbox = Mailbox(bounded=bounded)
        self.approvals = Approvals(bounded=bounded)
        self.patience: timedelta | None = None
        """How long an approval waits before it is denied; None: for ever."""
        self.session: SessionStarted | None = None
        self._bounded = bounded
        self._sessions = 0
        self._near = True
        """Whether the worker that decides may know who holds the session."""
        self._board = board
        self._obstacle: str | None = None

    def show(self) -> None:
        """Messages and approvals as they stand now."""
        waits = self._obstacle if self.mailbox.has_unsent else None
        self._board.set(messages=self.mailbox.records, messages_wait=waits, approvals=self.approvals.open)
        self._board.wait(bool(self.approvals.open))

    # What comes from people.

    async def say(self, kind: MessageKind, message: Message, update: str) -> MessageReceipt:
        """Take a message and wait for what becomes of it, or for what keeps it from the agent. `update`: its id."""
        # One that the client did not name is known by the update's own id: an update that is answered in a workflow
        # task which the server loses comes again, perhaps in another order, and must be the same message.
        message_id = self.hear(kind, message, update if self._bounded else None)
        # A steer may be read much later, at the next tool boundary; an interrupt is answered at once or not at all.
        pending = {"queued"} if kind == "steer" else {"queued", "delivered"}

        def settled() -> bool:
            return self.mailbox[message_id].state not in pending

        waits = await self._waited(message_id, settled)
        record = self.mailbox[message_id]
        latency = workflow.now() - record.received_at
        return MessageReceipt(
            id=message_id,
            state=record.state,
            how=waits or record.how,
            latency_ms=round(latency / timedelta(milliseconds=1)),
        )

    async def _waited(self, message_id: str, settled: Callable[[], bool]) -> str | None:
        """None once it is settled; else, within 5 s, why it waits. Whatever hangs on its way, the timer does not."""
        if not self._bounded:
            await workflow.wait_condition(settled)
            return None
        if not settled():  # a message that is said again mostly is, and needs no timer
            await within(ANSWER_PATIENCE, lambda: settled() or self._obstacle is not None)
        if settled():
            return None
        if self._obstacle is not None:
            return self._obstacle
        if not self._reachable:
            queued = self._board.at("queued")
            return "no worker has taken the run yet" if queued else "the agent has not been started yet"
        return "the agent has it and has not answered yet" if self.mailbox.was_sent(message_id) else UNDERWAY

    def hear(self, kind: MessageKind, message: Message, known_as: str | None = None) -> str:
        """Take a message; its id."""
        message_id = self.mailbox.accept(kind, message, workflow.now(), known_as)
        self.show()
        return message_id

    def decide(self, decision: Decision) -> DecisionReceipt:
        """Take a decision that `approvals.refusal` does not refuse."""
        approval = self.approvals.decide(decision)
        self.show()
        return DecisionReceipt(id=decision.id, decision=decision.decision, tool=approval.tool, input=approval.input)

    async def deny_the_unanswered(self, patience: timedelta) -> None:
        """Until cancelled: deny what nobody answers in time.

        That the timer has fired says that it is time, whatever the workflow's clock says: a workflow that was asked
        something while events waited for it takes them with the clock standing still, and its replay does not
        (temporalio 1.35.0, seen once in 3,000 faults).
        """
        least = MOMENT if self._bounded else timedelta()
        while True:
            await workflow.wait_condition(lambda: bool(self.approvals.open))
            due = self.approvals.due(patience)
            assert due is not None
            try:
                await workflow.wait_condition(
                    lambda d=due: self.approvals.due(patience) != d,  # type: ignore[misc]
                    timeout=max(due - workflow.now(), least),
                )
            except TimeoutError:
                for denial in self.approvals.overdue(due if self._bounded else workflow.now(), patience):
                    self.decide(denial)

    # What comes from the session.

    def meet(self, session: SessionStarted) -> bool:
        """A worker holds the session. False for one that comes back late, after a newer one."""
        if self.session and session.epoch < self.session.epoch:
            return False
        self.session = session
        self._sessions += 1
        self._near = True
        self._obstacle = None
        self.mailbox.resend()
        self.approvals.resend()
        self.show()
        return True

    def asked(self, asked: ApprovalAsked) -> None:
        """The agent waits for a person's word, or no longer does."""
        self.approvals.asked(asked, self.patience, workflow.now())
        self.show()

    def settled(self, settled: MessagesSettled) -> None:
        """The agent has taken messages that had been delivered before."""
        self.mailbox.settle(settled.messages, workflow.now())
        self.show()

    def close(self, settlements: tuple[Settlement, ...], *, interrupted: bool, certain: bool) -> None:
        """The run is over: the last words on its messages. See Mailbox.close."""
        self.mailbox.settle(settlements, workflow.now())
        self.mailbox.close(workflow.now(), interrupted=interrupted, certain=certain)
        self.approvals.close()
        self.show()

    # The way between.

    async def carry(self) -> None:
        """Until cancelled: bring messages and decisions to the session; wait for the next one if it is gone."""
        pause, confirmation = timedelta(seconds=1), CONFIRMATION
        while True:
            await workflow.wait_condition(lambda: self._has_work() or self._unconfirmed)
            if not self._has_work():
                if not await within(confirmation, lambda: self._has_work() or not self._unconfirmed):
                    confirmation = min(confirmation * 2, LONGEST_PAUSE)
                    self.mailbox.resend(only_unconfirmed=True)
                continue
            session = self._sessions
            if await self._deliver():
                pause = timedelta(seconds=1)
                continue
            try:
                await workflow.wait_condition(lambda s=session: self._sessions != s, timeout=pause)  # type: ignore[misc]
            except TimeoutError:
                pause *= 2  # a new session wakes this anyway, and each try costs history

    @property
    def _unconfirmed(self) -> bool:
        return self._bounded and self._reachable and self.mailbox.unconfirmed

    @property
    def _reachable(self) -> bool:
        return self.session is not None and self.session.handle is not None

    def _has_work(self) -> bool:
        return self._reachable and (self.mailbox.has_unsent or bool(self.approvals.unsent()))

    async def _deliver(self) -> bool:
        session = self._sessions
        parcel = DeliverInput(key=run_key(), messages=self.mailbox.unsent(), decisions=self.approvals.unsent())
        self.mailbox.tried(parcel.messages)
        try:
            delivered = await self._handed_over(parcel)
        except FailureError:
            delivered = Delivered(here=False)
        self._obstacle = None if delivered.here else delivered.why or NOBODY
        if delivered.here and session == self._sessions:
            self.mailbox.sent(parcel.messages)
            self.approvals.sent(parcel.decisions)
        self.mailbox.settle(delivered.messages, workflow.now())
        self.show()
        return delivered.here

    async def _handed_over(self, parcel: DeliverInput) -> Delivered:
        """To whoever holds the session. Raises FailureError where the last who was asked did not answer."""
        assert self.session is not None
        if not self._bounded:
            # What a local activity answers beside updates and signals may be recorded in another order than the
            # workflow saw it in: such a history does not replay, and its run is lost with the memory of the worker.
            delivered = await deliver_here(parcel)
            return delivered if delivered.here else await deliver_there(parcel, self.session.worker_queue)
        delivered = Delivered(here=False)
        if self._near:
            # The worker that decides mostly is of that host. What goes to the workflow's own task queue is handed to it
            # at once, with the server's answer to the workflow task.
            self._near = False
            with contextlib.suppress(FailureError):
                delivered = await deliver_there(parcel, workflow.info().task_queue)
                self._near = delivered.here or delivered.queue is not None
        # A worker that takes over tells the workflow only if it must: any other of the host knows who that is.
        for queue in (host_queue(self._board.state.host or ""), self.session.worker_queue):
            if delivered.here:
                break
            with contextlib.suppress(FailureError):
                asked = await deliver_there(parcel, delivered.queue or queue)
                delivered = asked.model_copy(update={"why": asked.why or delivered.why})
        return delivered if delivered.here or not delivered.queue else await deliver_there(parcel, delivered.queue)
