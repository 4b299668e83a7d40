"""The ids of approvals: the same whichever worker asks, and no other question's of the run."""

import asyncio
from datetime import UTC, datetime

from activities.running.approvals import AttemptApprovals, as_logged, as_told
from activities.running.attempt_state import AttemptState
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision
from steersman.contracts.events import PermissionEvent
from steersman.contracts.messages import Decision
from steersman.contracts.run import Approval

NOW = datetime(2026, 11, 27, tzinfo=UTC)


class People:
    def __init__(self) -> None:
        self.asked: list[ApprovalAsked] = []

    async def ask(self, asked: ApprovalAsked) -> None:
        self.asked.append(asked)


def asking(state: AttemptState, own: str = "q", *, withdrawn: bool = False) -> str:
    """The id under which people are asked."""
    people = People()
    asked = ApprovalAsked(approval=Approval(id=own, tool="Bash", input={}, since=NOW), withdrawn=withdrawn)
    asyncio.run(AttemptApprovals(state, people).ask(asked))
    return people.asked[0].approval.id


def word(approval: str, *, remember: bool = False) -> OutgoingDecision:
    return OutgoingDecision(decision=Decision(id=approval, decision="allow", remember=remember), tool="Bash")


def test_another_worker_asks_the_same_and_the_log_says_the_same() -> None:
    first, second = AttemptState(1, first_ms=1000), AttemptState(1, first_ms=1000)
    event = PermissionEvent(time=NOW, id="q", tool="Bash", state="asked")
    assert {asking(first), asking(second), as_logged(first, event).id} == {asking(first)}  # type: ignore[attr-defined]


def test_no_two_processes_ask_under_one_id() -> None:
    """Not even two first ones: a run that is reset after its end begins anew."""
    states = [AttemptState(1, first_ms=1000), AttemptState(2, first_ms=2000), AttemptState(1, first_ms=3000)]
    assert len({asking(each) for each in states}) == 3


def test_a_word_is_told_to_the_process_that_asked_under_its_own_id() -> None:
    asked, other = AttemptState(1, first_ms=1000), AttemptState(2, first_ms=2000)
    ident = asking(asked)
    told = as_told(asked, word(ident))
    assert told is not None
    assert told.decision.id == "q"
    assert as_told(other, word(ident)) is None
    assert as_told(other, word(ident, remember=True)) == word(ident, remember=True), "it counts for the tool"


def test_a_question_that_was_taken_back_is_answered_no_more() -> None:
    state = AttemptState(1, first_ms=1000)
    ident = asking(state)
    asking(state, withdrawn=True)
    assert as_told(state, word(ident)) is None
