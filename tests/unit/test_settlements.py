"""What is known of a message over all processes of a run."""

from activities.ports.agent import Progress
from activities.running.settlements import Settlements
from steersman.contracts.activities import Settlement

UNREAD = Settlement(id="m-1", state="unverified", how="the agent ended before it said that it had read this")
TOO_LATE = Settlement(id="m-1", state="too_late", how="the agent had finished")


class Ended:
    """The transcript of a process that ended with a message unread."""

    progress = Progress()

    def settlements(self) -> list[Settlement]:
        return [Settlement(id="m-1", state="delivered")]

    def last_words(self) -> list[Settlement]:
        return [UNREAD]


def test_what_an_earlier_process_was_given_is_not_too_late_for_the_next_one() -> None:
    """Its shim was killed in the moment of the steer; the session has it, and the next process has read it."""
    found = Settlements()
    found.note_end(Ended())  # type: ignore[arg-type]
    assert found.note([TOO_LATE]) == [UNREAD]
    assert found.at_end() == (UNREAD,)


def test_what_nobody_was_given_is_too_late() -> None:
    found = Settlements()
    assert found.note([TOO_LATE]) == [TOO_LATE]
    assert found.at_end() == (TOO_LATE,)


def test_one_that_the_next_process_has_read_is_acknowledged() -> None:
    found = Settlements()
    found.note_end(Ended())  # type: ignore[arg-type]
    read = Settlement(id="m-1", state="acknowledged", how="new_turn")
    assert found.note([read]) == [read]
    assert found.note([TOO_LATE]) == [read]
    assert found.at_end() == (read,)
