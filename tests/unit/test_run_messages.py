"""The messages of a run: each taken once, delivered in order, settled once."""

import json
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from steersman.contracts.activities import Settlement
from steersman.contracts.attachments import MAX_ATTACHED, Attachment
from steersman.contracts.messages import Message
from steersman.contracts.run import FINAL_STATES, MessageState
from tests.support.images import attached, png
from workflows.agent_run.messages import (
    MAX_DELIVERY,
    MAX_EARLY_SETTLEMENTS,
    MAX_MESSAGES,
    MAX_SETTLED_TEXT,
    MAX_TOTAL,
    MAX_WAITING,
    Mailbox,
)

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


def test_what_the_claiming_host_cannot_do_is_refused_and_an_end_stays() -> None:
    mailbox = said("one", "two")
    mailbox.accept("interrupt", Message(id="end", end=True), NOW)
    mailbox.accept("interrupt", Message(id="turn", text="round"), NOW)
    assert not mailbox.refuse({}, LATER)
    assert mailbox.refuse({"interrupt": "it cannot"}, LATER)
    assert ids(mailbox) == ["steer-1", "steer-2", "end"]
    assert (mailbox["turn"].state, mailbox["turn"].how, mailbox["turn"].settled_at) == ("rejected", "it cannot", LATER)
    assert mailbox.refuse({"steer": "nor that"}, LATER)
    assert not mailbox.refuse({"steer": "nor that", "interrupt": "it cannot"}, LATER)
    assert ids(mailbox) == ["end"]


def picture(size: int) -> Attachment:
    """Of so many characters of base64, about."""
    return Attachment.model_validate(attached(png() + bytes(size * 3 // 4), "a.png"))


def test_attachments_wait_for_the_agent_and_are_forgotten_with_it() -> None:
    mailbox, large = Mailbox(), picture(MAX_ATTACHED - 1000)
    for name in ("one", "two"):
        message = Message(id=name, text="look", attachments=(large,))
        assert mailbox.refusal(message) is None
        mailbox.accept("steer", message, NOW)
    assert ids(mailbox) == ["one"], "each is a delivery of its own"
    assert [each.attachments for each in mailbox.unsent()] == [(large,)]
    assert mailbox.refusal(Message(text="plain")) is None
    refused = Message(id="three", text="look", attachments=(large,))
    assert "wait for the agent already" in (mailbox.refusal(refused) or "")
    mailbox.settle([Settlement(id="one", state="acknowledged")], LATER)
    assert mailbox.refusal(refused) is None
    assert ids(mailbox) == ["two"]
    assert large.data not in json.dumps([each.model_dump(mode="json") for each in mailbox.records])


def test_attachments_count_among_all_that_a_run_takes() -> None:
    mailbox, count = Mailbox(), 0
    message = Message(text="look", attachments=(picture(MAX_ATTACHED - 1000),))
    while mailbox.refusal(message) is None:
        mailbox.settle([Settlement(id=mailbox.accept("steer", message, NOW), state="acknowledged")], LATER)
        count += 1
    assert count == MAX_TOTAL // MAX_ATTACHED
    assert "already" in (mailbox.refusal(message) or "")
    assert mailbox.refusal(Message(text="plain")) is None


def test_what_cannot_be_seen_is_refused_and_the_rest_stays() -> None:
    mailbox = said("one")
    mailbox.accept("steer", Message(id="seen", text="look", attachments=(picture(100),)), NOW)
    assert mailbox.refuse({}, LATER, "it cannot see")
    assert ids(mailbox) == ["steer-1"]
    assert (mailbox["seen"].state, mailbox["seen"].how) == ("rejected", "it cannot see")


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
    mailbox.mark_sent(first)
    assert ids(mailbox) == ["steer-2"]


def test_a_message_said_during_a_delivery_stays_unsent() -> None:
    mailbox = said("one")
    delivery = mailbox.unsent()
    mailbox.accept("steer", Message(text="two"), NOW)
    mailbox.mark_sent(delivery)
    assert ids(mailbox) == ["steer-2"]


def test_another_session_gets_everything_unsettled_in_order() -> None:
    mailbox = said("one", "two", "three")
    mailbox.mark_sent(mailbox.unsent())
    mailbox.settle(
        [Settlement(id="steer-1", state="delivered"), Settlement(id="steer-2", state="acknowledged")],
        NOW,
    )
    assert ids(mailbox) == []
    mailbox.resend()
    assert ids(mailbox) == ["steer-1", "steer-3"]


@pytest.mark.parametrize("final", sorted(FINAL_STATES))
@pytest.mark.parametrize("second", get_args(MessageState))
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
    assert [each.state for each in mailbox.records] == ["acknowledged", "rejected", "unverified", "too_late"]
    assert mailbox["steer-4"].how == "the run ended first"
    assert ids(mailbox) == []


def test_what_became_of_a_message_is_kept_until_it_comes_again() -> None:
    """The workflow task that had taken it was lost, after it had been delivered."""
    mailbox = said("one")
    mailbox.settle([Settlement(id="lost", state="acknowledged", how="mid_turn")], NOW)
    assert "lost" in mailbox
    assert mailbox["steer-1"].state == "queued"
    mailbox.accept("steer", Message(id="lost", text="two"), LATER)
    assert (mailbox["lost"].state, mailbox["lost"].how) == ("acknowledged", "mid_turn")
    assert ids(mailbox) == ["steer-1"]


def test_settlements_of_unknown_messages_are_not_kept_without_end() -> None:
    mailbox = Mailbox()
    mailbox.settle(
        [Settlement(id=f"m-{number}", state="acknowledged") for number in range(10 * MAX_EARLY_SETTLEMENTS)], NOW
    )
    assert sum(f"m-{number}" in mailbox for number in range(10 * MAX_EARLY_SETTLEMENTS)) == MAX_EARLY_SETTLEMENTS


def test_a_generated_id_never_meets_one_that_a_client_chose() -> None:
    mailbox = Mailbox()
    mailbox.accept("steer", Message(id="steer-2", text="chosen"), NOW)
    mailbox.accept("steer", Message(text="numbered"), NOW)
    assert sorted(each.text or "" for each in mailbox.records) == ["chosen", "numbered"]


def test_it_is_full_at_its_limit() -> None:
    mailbox = said(*(str(number) for number in range(MAX_MESSAGES - 1)))
    assert mailbox.refusal(Message(text="last")) is None
    mailbox.accept("steer", Message(text="last"), NOW)
    assert mailbox.refusal(Message(text="one more")) == f"the run has taken {MAX_MESSAGES} messages already"


def test_an_end_is_told_to_the_session_and_marks_the_run_as_ending() -> None:
    mailbox = said("one")
    before = mailbox.end_requested
    mailbox.accept("interrupt", Message(end=True), NOW)
    assert (before, mailbox.end_requested) == (False, True)
    assert [(each.id, each.end) for each in mailbox.unsent()] == [("steer-1", False), ("interrupt-2", True)]
    mailbox.mark_sent(mailbox.unsent())
    mailbox.resend()
    assert [each.end for each in mailbox.unsent()] == [False, True]


def test_the_first_of_two_with_one_id_says_whether_it_ends_the_run() -> None:
    mailbox = Mailbox()
    mailbox.accept("interrupt", Message(id="m"), NOW)
    mailbox.accept("interrupt", Message(id="m", end=True), NOW)
    assert not mailbox.end_requested


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


def test_no_more_bytes_wait_than_the_server_takes_in_one_piece() -> None:
    mailbox = Mailbox()
    text, taken = "ö" * 45_000, 0
    while mailbox.refusal(Message(text=text)) is None:
        mailbox.accept("steer", Message(text=text), NOW)
        taken += 1
    assert MAX_WAITING - 100_000 < taken * 90_002 <= MAX_WAITING
    refusal = mailbox.refusal(Message(text=text))
    assert refusal is not None
    assert f"no more than {MAX_WAITING:,} do" in refusal
    assert mailbox.refusal(Message()) is None, "an interrupt without a text always has room"
    mailbox.settle([Settlement(id="steer-1", state="acknowledged")], NOW)
    assert mailbox.refusal(Message(text=text)) is None


def test_no_more_bytes_are_taken_in_all_than_a_history_has_room_for() -> None:
    mailbox = Mailbox()
    text, taken = "x" * 99_000, 0
    while mailbox.refusal(Message(text=text)) is None:
        taken += 1
        mailbox.settle([Settlement(id=mailbox.accept("steer", Message(text=text), NOW), state="acknowledged")], NOW)
    assert taken == MAX_TOTAL // 99_002
    assert "in all" in (mailbox.refusal(Message(text=text)) or "")


def test_what_waits_goes_out_in_pieces_and_in_order() -> None:
    mailbox = Mailbox()
    sizes = [90_000, 90_000, 90_000, 10, 99_999, 10, 10]
    for size in sizes:
        mailbox.accept("steer", Message(text="x" * size), NOW)
    sent: list[int] = []
    pieces = 0
    while delivery := mailbox.unsent():
        assert len(delivery) == 1 or sum(len(each.text or "") for each in delivery) <= MAX_DELIVERY
        sent += [len(each.text or "") for each in delivery]
        mailbox.mark_sent(delivery)
        pieces += 1
    assert sent == sizes
    assert pieces == 2


def test_one_message_larger_than_a_piece_goes_out_alone() -> None:
    mailbox = Mailbox()
    for text in ("😀" * 100_000, "small"):
        mailbox.accept("steer", Message(text=text), NOW)
    assert ids(mailbox) == ["steer-1"]


def test_a_settled_text_is_kept_by_its_beginning() -> None:
    mailbox = said("x" * 5000)
    assert mailbox["steer-1"].text == "x" * 5000
    mailbox.settle([Settlement(id="steer-1", state="acknowledged")], NOW)
    text = mailbox["steer-1"].text
    assert text is not None
    assert (len(text), text[-1]) == (MAX_SETTLED_TEXT, "…")


def test_what_a_session_took_and_never_wrote_goes_out_again() -> None:
    mailbox = said("one", "two")
    mailbox.mark_sent(mailbox.unsent())
    mailbox.settle([Settlement(id="steer-2", state="delivered")], NOW)
    before = mailbox.unconfirmed
    mailbox.resend(only_unconfirmed=True)
    assert ids(mailbox) == ["steer-1"]
    assert (before, mailbox.unconfirmed) == (True, False)


@pytest.mark.parametrize(("certain", "state"), [(True, "too_late"), (False, "unverified")])
def test_what_was_on_its_way_is_too_late_only_for_who_has_read_the_journal(*, certain: bool, state: str) -> None:
    mailbox = said("one", "two")
    mailbox.mark_tried(mailbox.unsent()[:1])
    mailbox.close(LATER, journal_read=certain)
    assert [each.state for each in mailbox.records] == [state, "too_late"]


def test_an_interrupt_that_was_done_is_acknowledged_and_one_whose_text_never_came_is_not() -> None:
    mailbox = Mailbox()
    mailbox.accept("interrupt", Message(id="plain"), NOW)
    mailbox.accept("interrupt", Message(id="with-text", text="go on so"), NOW)
    mailbox.settle([Settlement(id=each.id, state="delivered", how="interrupted") for each in mailbox.unsent()], NOW)
    mailbox.close(LATER, journal_read=True)
    assert [(each.state, each.how) for each in mailbox.records] == [
        ("acknowledged", "interrupted"),
        ("too_late", "the turn was interrupted, and the run ended first"),
    ]


def test_a_run_of_before_there_were_bounds_goes_on_without() -> None:
    mailbox = Mailbox(bounded=False)
    for _ in range(30):
        assert mailbox.refusal(Message(text="x" * 99_000)) is None
        mailbox.accept("steer", Message(text="x" * 99_000), NOW)
    assert len(ids(mailbox)) == 30
    mailbox.settle([Settlement(id="lost", state="acknowledged")], NOW)
    assert "lost" not in mailbox
