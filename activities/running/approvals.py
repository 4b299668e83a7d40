"""The approvals that a process asks for, under ids that are its run's.

A process tells its own questions apart; those of two processes of a run, or of two agents, may have the same ids. A
decision on one must never count for the other.
"""

from activities.ports.agent import ApprovalRequester
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision
from steersman.contracts.events import EventBase, PermissionEvent


class AttemptApprovals(ApprovalRequester):
    """The requester of one process's conversation. `number`: which process of the run it is."""

    def __init__(self, number: int, requester: ApprovalRequester) -> None:
        self._number, self._requester = number, requester

    async def ask(self, asked: ApprovalAsked) -> None:
        """See ApprovalRequester."""
        ident = _prefix(self._number) + asked.approval.id
        approval = asked.approval.model_copy(update={"id": ident})
        await self._requester.ask(asked.model_copy(update={"approval": approval}))


def as_logged(number: int, event: PermissionEvent) -> EventBase:
    """An event of process `number`, as it stands in the run's log."""
    return event.model_copy(update={"id": _prefix(number) + event.id})


def as_told(number: int, outgoing: OutgoingDecision) -> OutgoingDecision | None:
    """A decision as process `number` knows it; None where it is on another one's question, and not to be remembered."""
    decision, prefix = outgoing.decision, _prefix(number)
    if not decision.id.startswith(prefix):
        return outgoing if decision.remember else None
    own = decision.model_copy(update={"id": decision.id.removeprefix(prefix)})
    return outgoing.model_copy(update={"decision": own})


def _prefix(number: int) -> str:
    return f"{number}-"
