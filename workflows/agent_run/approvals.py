"""The approvals of a run: asked by the agent, decided once by a person or by time. Pure: no Temporal in here."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from steersman.contracts.activities import ApprovalAsked, OutgoingDecision
from steersman.contracts.messages import Decision
from steersman.contracts.run import Approval

MAX_OPEN = 100
"""Questions that wait at one time, as many as a transcript hears."""
MAX_NAME = 200
"""Characters of a question's id, and of its tool's name."""
MAX_INPUTS = 500_000
"""Characters of all open questions together: they are in what the run's query answers."""
LEFT_OUT = {"…": "too much waits for approval to show this here; it is in the run's events"}
PARCEL = 20
"""Decisions that are delivered in one piece: each may have a text of 10,000 characters."""


class Approvals:
    """Open questions, decisions made, and which decisions the session still has to hear. `bounded`: see Mailbox."""

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self._open: dict[str, Approval] = {}
        self._decided: dict[str, OutgoingDecision] = {}
        self._withdrawn: set[str] = set()
        self._unsent: list[str] = []
        self._since: dict[str, datetime] = {}

    @property
    def open(self) -> tuple[Approval, ...]:
        """What waits for a person."""
        return tuple(self._open.values())

    def asked(self, asked: ApprovalAsked, patience: timedelta | None = None, now: datetime | None = None) -> None:
        """The agent asks (again, after a new worker took over), or has withdrawn its question. `now`: no question is
        from later, whatever the clock says of whoever asks.
        """
        approval = asked.approval
        if asked.withdrawn:
            self._open.pop(approval.id, None)
            self._withdrawn.add(approval.id)
        elif approval.id in self._decided:
            self._queue([approval.id])
        elif (held := self._held(approval)) is not None:
            # Asked again by another worker, a question keeps its age.
            asked_at = min(approval.since, now) if now and self._bounded else approval.since
            since = self._since.setdefault(approval.id, asked_at)
            self._withdrawn.discard(approval.id)
            deadline = None if patience is None else since + patience
            self._open[approval.id] = held.model_copy(update={"since": since, "deadline": deadline})

    def _held(self, approval: Approval) -> Approval | None:
        """As much of a question as there is room for; None of one that no agent of ours asks: anybody can signal."""
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
        """Why this decision cannot be taken; None if it can."""
        if decision.id in self._decided:
            first = self._decided[decision.id].decision
            return f"approval {decision.id} was already decided: {first.decision}"
        if decision.id in self._withdrawn:
            return f"approval {decision.id} was withdrawn by the agent"
        if decision.id not in self._open:
            return f"no approval {decision.id} is waiting"
        return None

    def decide(self, decision: Decision) -> Approval:
        """The first answer counts. The caller has asked `refusal` before."""
        approval = self._open.pop(decision.id)
        self._decided[decision.id] = OutgoingDecision(decision=decision, tool=approval.tool)
        self._queue([decision.id])
        return approval

    def due(self, patience: timedelta) -> datetime | None:
        """When the oldest open question is denied for want of an answer."""
        return min((each.since + patience for each in self._open.values()), default=None)

    def overdue(self, now: datetime, patience: timedelta) -> tuple[Decision, ...]:
        """Denials for what nobody answered."""
        said = "Nobody answered this request for approval in time. Go on without this tool, or end your work."
        return tuple(
            Decision(id=each.id, decision="deny", message=said)
            for each in self._open.values()
            if each.since + patience <= now
        )

    def unsent(self) -> tuple[OutgoingDecision, ...]:
        """What the session has to hear next: as much as goes in one piece."""
        unsent = self._unsent[:PARCEL] if self._bounded else self._unsent
        return tuple(self._decided[approval_id] for approval_id in unsent)

    def sent(self, decisions: Iterable[OutgoingDecision]) -> None:
        """The session has heard these."""
        heard = {each.decision.id for each in decisions}
        self._unsent = [each for each in self._unsent if each not in heard]

    def resend(self) -> None:
        """Another session took over: it asks again what is still open, and must hear what was decided."""
        self._open.clear()
        # Of what was decided it asks again what it has not heard; what is to be remembered it cannot know.
        again = self._remembered() if self._bounded else self._decided
        self._queue(again)

    def _remembered(self) -> Iterable[str]:
        newest = {each.tool: each.decision.id for each in self._decided.values() if each.decision.remember}
        return newest.values()

    def close(self) -> None:
        """The run is over."""
        self._withdrawn.update(self._open)
        self._open.clear()
        self._unsent.clear()

    def _queue(self, ids: Iterable[str]) -> None:
        self._unsent.extend(each for each in ids if each not in self._unsent)


def _size(approval: Approval) -> int:
    return len(approval.model_dump_json())
