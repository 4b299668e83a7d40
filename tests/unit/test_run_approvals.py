"""Approvals: the first answer wins, silence is a denial, another session hears it all again."""

from datetime import UTC, datetime, timedelta
from typing import Literal

from steersman.contracts.activities import ApprovalAsked
from steersman.contracts.messages import Decision
from steersman.contracts.run import Approval
from workflows.agent_run.approvals import Approvals

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


def question(name: str, since: datetime = NOW, *, withdrawn: bool = False) -> ApprovalAsked:
    approval = Approval(id=name, tool="Bash", input={"command": "ls"}, since=since)
    return ApprovalAsked(approval=approval, withdrawn=withdrawn)


def word(name: str, decision: Literal["allow", "deny"] = "allow", *, remember: bool = False) -> Decision:
    return Decision(id=name, decision=decision, remember=remember)


def asking(*names: str) -> Approvals:
    approvals = Approvals()
    for name in names:
        approvals.on_asked(question(name))
    return approvals


def unsent(approvals: Approvals) -> list[str]:
    return [each.decision.id for each in approvals.unsent()]


def test_a_question_is_open_until_it_is_decided() -> None:
    approvals = asking("a", "b")
    assert [each.id for each in approvals.open] == ["a", "b"]
    assert approvals.refusal(word("a")) is None
    assert approvals.decide(word("a")).tool == "Bash"
    assert [each.id for each in approvals.open] == ["b"]
    assert unsent(approvals) == ["a"]


def test_a_second_answer_is_told_what_the_first_was() -> None:
    approvals = asking("a")
    approvals.decide(word("a", "deny"))
    assert approvals.refusal(word("a")) == "approval a was already decided: deny"


def test_an_unknown_and_a_withdrawn_question_are_refused() -> None:
    approvals = asking("a")
    assert approvals.refusal(word("x")) == "no approval x is waiting"
    approvals.on_asked(question("a", withdrawn=True))
    assert not approvals.open
    assert approvals.refusal(word("a")) == "approval a was withdrawn by the agent"


def test_a_withdrawn_question_may_be_asked_anew() -> None:
    approvals = asking("a")
    approvals.on_asked(question("a", withdrawn=True))
    approvals.on_asked(question("a"))
    assert approvals.refusal(word("a")) is None


def test_asked_again_by_another_worker_it_keeps_its_age() -> None:
    approvals = asking("a")
    approvals.resend(same_process=True)
    assert not approvals.open
    approvals.on_asked(question("a", since=NOW + HOUR / 2))
    assert [each.since for each in approvals.open] == [NOW]
    assert approvals.due(HOUR) == NOW + HOUR


def test_between_two_sessions_of_one_process_its_questions_can_be_decided() -> None:
    approvals = asking("a", "b")
    approvals.resend(same_process=True)
    approvals.resend(same_process=True)
    assert approvals.refusal(word("a")) is None
    assert approvals.between_sessions(word("a"))
    assert approvals.decide(word("a")).tool == "Bash"
    assert approvals.refusal(word("a", "deny")) == "approval a was already decided: allow"
    approvals.mark_sent(approvals.unsent())
    approvals.on_asked(question("a"))
    assert (approvals.open, unsent(approvals)) == ((), ["a"])
    approvals.on_asked(question("b", withdrawn=True))
    assert approvals.refusal(word("b")) == "approval b was withdrawn by the agent"


def test_another_process_does_not_ask_what_the_one_before_asked() -> None:
    approvals = asking("a")
    approvals.resend(same_process=False)
    assert approvals.refusal(word("a")) == "no approval a is waiting"


def test_a_question_that_was_decided_is_answered_again_when_asked_again() -> None:
    approvals = asking("a")
    approvals.decide(word("a"))
    approvals.mark_sent(approvals.unsent())
    assert unsent(approvals) == []
    approvals.on_asked(question("a"))
    assert (approvals.open, unsent(approvals)) == ((), ["a"])


def test_another_session_hears_every_decision_again_once_each() -> None:
    approvals = asking("a", "b", "c")
    approvals.decide(word("b", remember=True))
    approvals.decide(word("a", "deny"))
    approvals.mark_sent(approvals.unsent()[:1])
    approvals.resend(same_process=True)
    assert sorted(unsent(approvals)) == ["a", "b"]
    assert {each.decision.id: each.tool for each in approvals.unsent()} == {"a": "Bash", "b": "Bash"}


def test_nobody_answers() -> None:
    approvals = asking("a")
    approvals.on_asked(question("b", since=NOW + HOUR))
    assert approvals.due(HOUR) == NOW + HOUR
    assert approvals.overdue(NOW + HOUR - timedelta(seconds=1), HOUR) == ()
    (denial,) = approvals.overdue(NOW + HOUR, HOUR)
    assert (denial.id, denial.decision, denial.remember) == ("a", "deny", False)
    assert "Nobody answered" in (denial.message or "")


def test_without_questions_nothing_is_due() -> None:
    assert Approvals().due(HOUR) is None
    assert Approvals().overdue(NOW, HOUR) == ()


def test_the_end_of_the_run_closes_every_question() -> None:
    approvals = asking("a", "b")
    approvals.decide(word("a"))
    approvals.close()
    assert (approvals.open, unsent(approvals)) == ((), [])
    assert approvals.refusal(word("b")) == "approval b was withdrawn by the agent"
