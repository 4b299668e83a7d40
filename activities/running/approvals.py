"""The approvals that a process asks for, under ids that are its run's.

A process tells its own questions apart; those of two processes of a run, or of two agents, may have the same ids. A
decision on one must never count for the other.
"""

import hashlib

from activities.ports.agent import ApprovalRequester
from activities.running.attempt_state import AttemptState
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision
from steersman.contracts.events import EventBase, PermissionEvent


class AttemptApprovals(ApprovalRequester):
    """The requester of one process's conversation."""

    def __init__(self, state: AttemptState, requester: ApprovalRequester) -> None:
        self._state, self._requester = state, requester

    async def ask(self, asked: ApprovalAsked) -> None:
        """See ApprovalRequester."""
        own = asked.approval.id
        approval = asked.approval.model_copy(update={"id": in_run(self._state, own)})
        if asked.withdrawn:
            self._state.asked.pop(approval.id, None)
        else:
            self._state.asked[approval.id] = own
        await self._requester.ask(asked.model_copy(update={"approval": approval}))


def as_logged(state: AttemptState, event: PermissionEvent) -> EventBase:
    """An event of the process, as it stands in the run's log."""
    return event.model_copy(update={"id": in_run(state, event.id)})


def as_told(state: AttemptState, outgoing: OutgoingDecision) -> OutgoingDecision | None:
    """A decision as the process knows it; None where it is on none of its questions, and not to be remembered."""
    if (own := state.asked.pop(outgoing.decision.id, None)) is None:
        return outgoing if outgoing.decision.remember else None
    return outgoing.model_copy(update={"decision": outgoing.decision.model_copy(update={"id": own})})


def in_run(state: AttemptState, approval_id: str) -> str:
    """The id in the run of a question of this process.

    Its number alone would not do: a run that begins anew, reset after its end, has a first process again.
    """
    named = f"{state.first_ms} {approval_id}"
    return f"{state.number}-{hashlib.sha256(named.encode()).hexdigest()[:12]}"
