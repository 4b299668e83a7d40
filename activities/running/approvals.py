"""The approvals that a process asks for, under ids that are its run's.

A process tells its own questions apart; those of two processes of a run, or of two agents, may have the same ids. A
decision on one must never count for the other.
"""

import hashlib
from collections.abc import Iterable, Iterator

from activities.ports.agent import ApprovalRequester
from activities.running.attempt_state import AttemptState
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision
from steersman.contracts.events import EventBase, PermissionEvent
from steersman.contracts.run import Approval


class AttemptApprovals(ApprovalRequester):
    """The requester of one process's conversation."""

    def __init__(self, state: AttemptState, requester: ApprovalRequester) -> None:
        self._state, self._requester = state, requester

    async def ask(self, asked: ApprovalAsked) -> None:
        """See ApprovalRequester."""
        named = as_asked(self._state, asked.approval)
        if asked.withdrawn:
            self._state.asked.pop(named.id, None)
        else:
            self._state.asked[named.id] = asked.approval
        await self._requester.ask(asked.model_copy(update={"approval": named}))


def as_asked(state: AttemptState, approval: Approval) -> Approval:
    """An approval of the process, as people are asked for it."""
    return approval.model_copy(update={"id": in_run(state, approval.id)})


def as_logged(state: AttemptState, event: PermissionEvent) -> EventBase:
    """An event of the process, as it stands in the run's log."""
    return event.model_copy(update={"id": in_run(state, event.id)})


def as_told(state: AttemptState, outgoing: OutgoingDecision) -> OutgoingDecision | None:
    """A decision as the process knows it; None where it is on none of its questions, and not to be remembered."""
    if (own := state.asked.pop(outgoing.decision.id, None)) is None:
        return outgoing if outgoing.decision.remember else None
    return outgoing.model_copy(update={"decision": outgoing.decision.model_copy(update={"id": own.id})})


def answered_unasked(state: AttemptState, events: Iterable[EventBase]) -> Iterator[ApprovalAsked]:
    """The questions of the process that are answered by no word on them, but by one on their tool: nobody is to be
    asked any more.
    """
    for event in events:
        if not isinstance(event, PermissionEvent) or event.state not in ("allowed", "denied"):
            continue
        if (own := state.asked.pop(event.id, None)) is not None:
            yield ApprovalAsked(approval=as_asked(state, own), withdrawn=True)


def in_run(state: AttemptState, approval_id: str) -> str:
    """The id in the run of a question of this process.

    Its number alone would not do: a run that begins anew, reset after its end, has a first process again.
    """
    named = f"{state.first_ms} {approval_id}"
    return f"{state.number}-{hashlib.sha256(named.encode()).hexdigest()[:12]}"
