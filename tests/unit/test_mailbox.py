"""The messages of a run: each taken once, delivered in order, settled once."""

from datetime import UTC, datetime, timedelta

import pytest

from steersman.contracts.activities import Settlement
from steersman.contracts.messages import Message
from steersman.contracts.run import FINAL_STATES, MessageState
from workflows.mailbox import MAX_MESSAGES, Mailbox

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(seconds=7)


def said(*texts: str) -> Mailbox:
    mailbox = Mailbox()
    for text in texts:
        mailbox.accept("steer", Message(text=text), NOW)
    return mailbox


def ids(mailbox: Mailbox) -> list[str]:
    return [each.id for each in mailbox.unsent()]


def test_messages_get_numbers_and_keep_their_order() -> None:
    mailbox = said("one", "two")
    mailbox.accept("interrupt", Message(reason="enough"), LATER)
    assert ids(mailbox) == ["steer-1", "steer-2", "interrupt-3"]
    assert [(each.text, each.state) for each in mailbox.records] == [
        ("one", "queued"),
        ("two", "queued"),
        (None, "queued"),
    ]
    assert mailbox.records[2].reason == "enough"
    assert mailbox.records[2].received_at == LATER


def test_the_same_id_twice_is_one_message() -> None:
    mailbox = Mailbox()
    first = mailbox.accept("steer", Message(id="m", text="once"), NOW)
    assert mailbox.accept("steer", Message(id="m", text="other words"), LATER) == first
    assert [each.text for each in mailbox.records] == ["once"]
    assert ids(mailbox) == ["m"]


def test_a_settled_message_is_not_taken_again() -> None:
    mailbox = Mailbox()
    mailbox.accept("steer", Message(id="m", text="once"), NOW)
    mailbox.settle([Settlement(id="m", state="acknowledged", how="mid_turn")], NOW)
    mailbox.accept("steer", Message(id="m", text="once"), LATER)
    assert ids(mailbox) == []
    assert mailbox["m"].state == "acknowledged"


def test_what_was_sent_is_not_sent_again_to_the_same_session() -> None:
    mailbox = said("one", "two")
    first = mailbox.unsent()[:1]
    mailbox.sent(first)
    assert ids(mailbox) == ["steer-2"]


def test_a_message_said_during_a_delivery_stays_unsent() -> None:
    mailbox = said("one")
    parcel = mailbox.unsent()
    mailbox.accept("steer", Message(text="two"), NOW)
    mailbox.sent(parcel)
    assert ids(mailbox) == ["steer-2"]


def test_another_session_gets_everything_unsettled_in_order() -> None:
    mailbox = said("one", "two", "three")
    mailbox.sent(mailbox.unsent())
    mailbox.settle(
        [Settlement(id="steer-1", state="delivered"), Settlement(id="steer-2", state="acknowledged")],
        NOW,
    )
    assert ids(mailbox) == []
    mailbox.resend()
    assert ids(mailbox) == ["steer-1", "steer-3"]


@pytest.mark.parametrize("final", sorted(FINAL_STATES))
@pytest.mark.parametrize("second", ["queued", "delivered", "acknowledged", "rejected", "too_late"])
def test_a_final_state_stays(final: MessageState, second: MessageState) -> None:
    mailbox = said("one")
    mailbox.settle([Settlement(id="steer-1", state=final, how="first")], NOW)
    mailbox.settle([Settlement(id="steer-1", state=second, how="second")], LATER)
    record = mailbox["steer-1"]
    assert (record.state, record.how, record.settled_at) == (final, "first", NOW)


def test_times_of_a_message_on_its_way() -> None:
    mailbox = said("one")
    mailbox.settle([Settlement(id="steer-1", state="delivered")], LATER)
    assert (mailbox["steer-1"].delivered_at, mailbox["steer-1"].settled_at) == (LATER, None)
    later_still = LATER + timedelta(seconds=1)
    mailbox.settle([Settlement(id="steer-1", state="acknowledged", how="new_turn")], later_still)
    record = mailbox["steer-1"]
    assert (record.delivered_at, record.settled_at, record.how) == (LATER, later_still, "new_turn")


def test_a_delivered_message_keeps_how_it_was_delivered() -> None:
    mailbox = said("one")
    mailbox.settle([Settlement(id="steer-1", state="delivered", how="interrupted")], NOW)
    mailbox.settle([Settlement(id="steer-1", state="acknowledged")], NOW)
    assert mailbox["steer-1"].how == "interrupted"


def test_only_what_reached_the_agent_counts_as_delivered() -> None:
    mailbox = said("one", "two", "three", "four")
    mailbox.settle(
        [
            Settlement(id="steer-1", state="acknowledged"),
            Settlement(id="steer-2", state="rejected", how="refused"),
            Settlement(id="steer-3", state="delivered"),
        ],
        NOW,
    )
    mailbox.close(LATER)
    assert mailbox.delivered == 2
    assert [each.state for each in mailbox.records] == ["acknowledged", "rejected", "too_late", "too_late"]
    assert mailbox["steer-4"].how == "the run ended first"
    assert ids(mailbox) == []


def test_a_settlement_of_an_unknown_message_is_harmless() -> None:
    mailbox = said("one")
    mailbox.settle([Settlement(id="nobody", state="acknowledged")], NOW)
    assert "nobody" not in mailbox
    assert mailbox["steer-1"].state == "queued"


def test_a_generated_id_never_meets_one_that_a_client_chose() -> None:
    mailbox = Mailbox()
    mailbox.accept("steer", Message(id="steer-2", text="chosen"), NOW)
    mailbox.accept("steer", Message(text="numbered"), NOW)
    assert sorted(each.text or "" for each in mailbox.records) == ["chosen", "numbered"]


def test_it_is_full_at_its_limit() -> None:
    mailbox = said(*(str(number) for number in range(MAX_MESSAGES - 1)))
    assert not mailbox.full
    mailbox.accept("steer", Message(text="last"), NOW)
    assert mailbox.full


def test_an_end_is_told_to_the_session_and_marks_the_run_as_ending() -> None:
    mailbox = said("one")
    before = mailbox.ending
    mailbox.accept("interrupt", Message(end=True), NOW)
    assert (before, mailbox.ending) == (False, True)
    assert [(each.id, each.end) for each in mailbox.unsent()] == [("steer-1", False), ("interrupt-2", True)]
    mailbox.sent(mailbox.unsent())
    mailbox.resend()
    assert [each.end for each in mailbox.unsent()] == [False, True]


def test_the_first_of_two_with_one_id_says_whether_it_ends_the_run() -> None:
    mailbox = Mailbox()
    mailbox.accept("interrupt", Message(id="m"), NOW)
    mailbox.accept("interrupt", Message(id="m", end=True), NOW)
    assert not mailbox.ending


def test_ends_of_a_run_that_was_ended_are_done_and_what_waited_behind_them_is_late() -> None:
    mailbox = said("one")
    mailbox.accept("interrupt", Message(id="e-1", end=True), NOW)
    mailbox.accept("interrupt", Message(id="e-2", end=True), NOW)
    mailbox.settle([Settlement(id="e-1", state="acknowledged", how="nothing was running")], NOW)
    mailbox.close(LATER, interrupted=True)
    assert [(each.state, each.how) for each in mailbox.records] == [
        ("too_late", "the run ended first"),
        ("acknowledged", "nothing was running"),
        ("acknowledged", "interrupted"),
    ]


def test_an_end_that_came_after_the_end_is_late() -> None:
    mailbox = Mailbox()
    mailbox.accept("interrupt", Message(id="e-1", end=True), NOW)
    mailbox.close(LATER)
    assert mailbox["e-1"].state == "too_late"
