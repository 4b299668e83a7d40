"""The approvals of a run: asked for by the agent, decided once by a person or a timeout. Pure: no Temporal here."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from steersman.contracts.activities import ApprovalAsked, OutgoingDecision
from steersman.contracts.messages import Decision
from steersman.contracts.run import Approval

MAX_OPEN = 100
"""Approvals that may be open at one time: as many as a transcript reports."""
MAX_NAME = 200
"""Characters of an approval's id, and of its tool's name."""
MAX_INPUTS = 500_000
"""Characters of all open approvals together: the run's query answers with them."""
LEFT_OUT = {"…": "too much waits for approval to show this here; it is in the run's events"}
MAX_DELIVERY = 20
"""Decisions in one delivery. Each may have a text of 10,000 characters."""


class Approvals:
    """Open approvals, decisions, and the decisions that are still to be delivered. `bounded`: see Mailbox."""

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self._open: dict[str, Approval] = {}
        self._asked_before: dict[str, Approval] = {}
        """Open when the session that asked was lost; the next one of the same process has not asked again yet."""
        self._decided: dict[str, OutgoingDecision] = {}
        self._withdrawn: set[str] = set()
        self._unsent: list[str] = []
        self._since: dict[str, datetime] = {}

    @property
    def open(self) -> tuple[Approval, ...]:
        """The approvals that wait for a decision."""
        return tuple(self._open.values())

    @property
    def decided(self) -> tuple[OutgoingDecision, ...]:
        """All decisions so far."""
        return tuple(self._decided.values())

    def has_heard_of(self, approval_id: str) -> bool:
        """Whether it was asked before."""
        return approval_id in self._since

    def on_asked(self, asked: ApprovalAsked, timeout: timedelta | None = None, now: datetime | None = None) -> None:
        """The agent asks, asks again after a takeover, or has withdrawn its question.

        `now`: the latest time that counts as the question's, whatever the asking worker's clock says.
        """
        approval = asked.approval
        self._asked_before.pop(approval.id, None)
        if asked.withdrawn:
            self._open.pop(approval.id, None)
            self._withdrawn.add(approval.id)
        elif approval.id in self._decided:
            self._queue([approval.id])
        elif (kept := self._bounded_copy(approval)) is not None:
            # An approval that another worker asks for again keeps its age.
            asked_at = min(approval.since, now) if now and self._bounded else approval.since
            since = self._since.setdefault(approval.id, asked_at)
            self._withdrawn.discard(approval.id)
            deadline = None if timeout is None else since + timeout
            self._open[approval.id] = kept.model_copy(update={"since": since, "deadline": deadline})

    def _bounded_copy(self, approval: Approval) -> Approval | None:
        """The approval, without too large an input; None for what no agent of ours asks: anybody can signal."""
        if not self._bounded:
            return approval
        if approval.since.tzinfo is None:
            return None
        if len(self._open) >= MAX_OPEN or len(approval.id) > MAX_NAME or len(approval.tool) > MAX_NAME:
            return None
        if sum(_size(each) for each in (*self._open.values(), approval)) <= MAX_INPUTS:
            return approval
        return approval.model_copy(update={"input": LEFT_OUT})

    def refusal(self, decision: Decision) -> str | None:
        """Why this decision is refused; None if it is accepted."""
        if decision.id in self._decided:
            first = self._decided[decision.id].decision
            return f"approval {decision.id} was already decided: {first.decision}"
        if decision.id in self._withdrawn:
            return f"approval {decision.id} was withdrawn by the agent"
        if decision.id not in self._open and decision.id not in self._asked_before:
            return not_waiting(decision.id)
        return None

    def between_sessions(self, decision: Decision) -> bool:
        """Whether the approval is one that the session at work has not asked for again yet."""
        return decision.id in self._asked_before

    def decide(self, decision: Decision) -> Approval:
        """Accept a decision that `refusal` does not refuse. The first one counts."""
        approval = self._open.pop(decision.id, None) or self._asked_before.pop(decision.id)
        self._decided[decision.id] = OutgoingDecision(decision=decision, tool=approval.tool)
        self._queue([decision.id])
        return approval

    def due(self, timeout: timedelta) -> datetime | None:
        """When the oldest open approval is denied for want of an answer."""
        return min((each.since + timeout for each in self._open.values()), default=None)

    def overdue(self, now: datetime, timeout: timedelta) -> tuple[Decision, ...]:
        """Denials of the approvals that nobody answered in time."""
        message = "Nobody answered this request for approval in time. Go on without this tool, or end your work."
        return tuple(
            Decision(id=each.id, decision="deny", message=message)
            for each in self._open.values()
            if each.since + timeout <= now
        )

    def unsent(self) -> tuple[OutgoingDecision, ...]:
        """The decisions of the next delivery."""
        unsent = self._unsent[:MAX_DELIVERY] if self._bounded else self._unsent
        return tuple(self._decided[approval_id] for approval_id in unsent)

    def mark_sent(self, decisions: Iterable[OutgoingDecision]) -> None:
        """The leading worker has these."""
        sent = {each.decision.id for each in decisions}
        self._unsent = [each for each in self._unsent if each not in sent]

    def resend(self, *, same_process: bool) -> None:
        """Another session took over: it asks again what is open, and needs the decisions that are to be remembered.

        Until it has asked again, a person may decide what the same process has asked.
        """
        before = [*self._asked_before.items(), *self._open.items()] if same_process else []
        self._asked_before = dict(before[-MAX_OPEN:])
        self._open.clear()
        # It asks again for a decision that it does not have; it cannot know which decisions are to be remembered.
        again = self._remembered() if self._bounded else self._decided
        self._queue(again)

    def _remembered(self) -> Iterable[str]:
        newest = {each.tool: each.decision.id for each in self._decided.values() if each.decision.remember}
        return newest.values()

    def close(self) -> None:
        """Withdraw all open approvals: the run is over."""
        self._withdrawn.update(self._open)
        self._open.clear()
        self._asked_before.clear()
        self._unsent.clear()

    def _queue(self, ids: Iterable[str]) -> None:
        self._unsent.extend(each for each in ids if each not in self._unsent)


def not_waiting(approval_id: str) -> str:
    """Why a decision on no open approval is refused."""
    return f"no approval {approval_id} is waiting"


def _size(approval: Approval) -> int:
    return len(approval.model_dump_json())
