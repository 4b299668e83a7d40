"""The approvals of a run: asked by the agent, decided once by a person or by time. Pure: no Temporal in here."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from steersman.contracts.activities import ApprovalAsked, OutgoingDecision
from steersman.contracts.messages import Decision
from steersman.contracts.run import Approval


class Approvals:
    """Open questions, decisions made, and which decisions the session still has to hear."""

    def __init__(self) -> None:
        self._open: dict[str, Approval] = {}
        self._decided: dict[str, OutgoingDecision] = {}
        self._withdrawn: set[str] = set()
        self._unsent: list[str] = []
        self._since: dict[str, datetime] = {}

    @property
    def open(self) -> tuple[Approval, ...]:
        """What waits for a person."""
        return tuple(self._open.values())

    def asked(self, asked: ApprovalAsked) -> None:
        """The agent asks (again, after a new worker took over), or has withdrawn its question."""
        approval = asked.approval
        if asked.withdrawn:
            self._open.pop(approval.id, None)
            self._withdrawn.add(approval.id)
        elif approval.id in self._decided:
            self._queue([approval.id])
        else:
            # Asked again by another worker, a question keeps its age.
            since = self._since.setdefault(approval.id, approval.since)
            self._withdrawn.discard(approval.id)
            self._open[approval.id] = approval.model_copy(update={"since": since})

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
        """What the session still has to hear."""
        return tuple(self._decided[approval_id] for approval_id in self._unsent)

    def sent(self, decisions: Iterable[OutgoingDecision]) -> None:
        """The session has heard these."""
        heard = {each.decision.id for each in decisions}
        self._unsent = [each for each in self._unsent if each not in heard]

    def resend(self) -> None:
        """Another session took over: it asks again what is still open, and must hear what was decided."""
        self._open.clear()
        self._queue(self._decided)

    def close(self) -> None:
        """The run is over."""
        self._withdrawn.update(self._open)
        self._open.clear()
        self._unsent.clear()

    def _queue(self, ids: Iterable[str]) -> None:
        self._unsent.extend(each for each in ids if each not in self._unsent)
