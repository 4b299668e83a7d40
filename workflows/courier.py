"""Carries what people say to the session, whichever worker holds it, until the agent has it.

Keeps the run's messages and approvals. Each message is settled once; a new session hears everything unsettled again.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError

from steersman.contracts.activities import ApprovalAsked, DeliverInput, MessagesSettled, SessionStarted, Settlement
from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt
from steersman.contracts.run import MessageKind
from workflows.approvals import Approvals
from workflows.board import Board
from workflows.commands import deliver_here, deliver_there, run_key
from workflows.mailbox import Mailbox


class Courier:
    """Between people and the session; what it carries is shown on the board."""

    def __init__(self, board: Board) -> None:
        self.mailbox = Mailbox()
        self.approvals = Approvals()
        self.session: SessionStarted | None = None
        self._sessions = 0
        self._board = board

    def show(self) -> None:
        """Messages and approvals as they stand now."""
        self._board.set(messages=self.mailbox.records, approvals=self.approvals.open)

    # What comes from people.

    async def say(self, kind: MessageKind, message: Message) -> MessageReceipt:
        """Take a message and wait for what becomes of it."""
        message_id = self.hear(kind, message)
        # A steer may be read much later, at the next tool boundary; an interrupt is answered at once or not at all.
        pending = {"queued"} if kind == "steer" else {"queued", "delivered"}
        await workflow.wait_condition(lambda: self.mailbox[message_id].state not in pending)
        record = self.mailbox[message_id]
        latency = workflow.now() - record.received_at
        return MessageReceipt(
            id=message_id, state=record.state, how=record.how, latency_ms=round(latency / timedelta(milliseconds=1))
        )

    def hear(self, kind: MessageKind, message: Message) -> str:
        """Take a message; its id."""
        message_id = self.mailbox.accept(kind, message, workflow.now())
        self.show()
        return message_id

    def decide(self, decision: Decision) -> DecisionReceipt:
        """Take a decision that `approvals.refusal` does not refuse."""
        approval = self.approvals.decide(decision)
        self.show()
        return DecisionReceipt(id=decision.id, decision=decision.decision, tool=approval.tool, input=approval.input)

    async def deny_the_unanswered(self, patience: timedelta) -> None:
        """Until cancelled: deny what nobody answers in time."""
        while True:
            await workflow.wait_condition(lambda: bool(self.approvals.open))
            due = self.approvals.due(patience)
            assert due is not None
            try:
                await workflow.wait_condition(
                    lambda d=due: self.approvals.due(patience) != d,  # type: ignore[misc]
                    timeout=max(due - workflow.now(), timedelta()),
                )
            except TimeoutError:
                for denial in self.approvals.overdue(workflow.now(), patience):
                    self.decide(denial)

    # What comes from the session.

    def meet(self, session: SessionStarted) -> bool:
        """A worker holds the session. False for one that comes back late, after a newer one."""
        if self.session and session.epoch < self.session.epoch:
            return False
        self.session = session
        self._sessions += 1
        self.mailbox.resend()
        self.approvals.resend()
        self.show()
        return True

    def asked(self, asked: ApprovalAsked) -> None:
        """The agent waits for a person's word, or no longer does."""
        self.approvals.asked(asked)
        self.show()

    def settled(self, settled: MessagesSettled) -> None:
        """The agent has taken messages that had been delivered before."""
        self.mailbox.settle(settled.messages, workflow.now())
        self.show()

    def close(self, settlements: tuple[Settlement, ...], *, interrupted: bool) -> None:
        """The run is over: the last words on its messages."""
        self.mailbox.settle(settlements, workflow.now())
        self.mailbox.close(workflow.now(), interrupted=interrupted)
        self.approvals.close()
        self.show()

    # The way between.

    async def carry(self) -> None:
        """Until cancelled: bring messages and decisions to the session; wait for the next one if it is gone."""
        pause = timedelta(seconds=1)
        while True:
            await workflow.wait_condition(self._has_work)
            session = self._sessions
            if await self._deliver():
                pause = timedelta(seconds=1)
                continue
            try:
                await workflow.wait_condition(lambda s=session: self._sessions != s, timeout=pause)  # type: ignore[misc]
            except TimeoutError:
                pause *= 2  # a new session wakes this anyway, and each try costs history

    def _has_work(self) -> bool:
        reachable = self.session is not None and self.session.handle is not None
        return reachable and bool(self.mailbox.unsent() or self.approvals.unsent())

    async def _deliver(self) -> bool:
        assert self.session is not None
        session = self._sessions
        parcel = DeliverInput(key=run_key(), messages=self.mailbox.unsent(), decisions=self.approvals.unsent())
        try:
            delivered = await deliver_here(parcel)
            if not delivered.here:
                delivered = await deliver_there(parcel, self.session.worker_queue)
        except FailureError:
            return False
        if not delivered.here:
            return False
        if session == self._sessions:
            self.mailbox.sent(parcel.messages)
            self.approvals.sent(parcel.decisions)
        self.mailbox.settle(delivered.messages, workflow.now())
        self.show()
        return True
