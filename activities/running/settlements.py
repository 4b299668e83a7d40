"""What is known of each message over all processes of a run. What a message's state means is the contract's."""

from collections.abc import Iterable

from activities.ports.agent import Transcript
from steersman.contracts.activities import DeliverInput, Settlement
from steersman.contracts.run import FINAL_STATES


class Settlements:
    """The newest settlement of each message; one that is final stays."""

    def __init__(self) -> None:
        self._known: dict[str, Settlement] = {}
        self._last_words: dict[str, Settlement] = {}

    def note(self, settlements: Iterable[Settlement]) -> list[Settlement]:
        """Keep these; returns them as they stand with what was known before."""
        settlements = list(settlements)
        for each in settlements:
            if not self._is_final(each.id):
                self._known[each.id] = self._not_too_late(each)
        return [self._known[each.id] for each in settlements]

    def note_end(self, transcript: Transcript) -> None:
        """Keep what a process's journal says at its end."""
        self.note(transcript.settlements())
        self._last_words.update((each.id, each) for each in transcript.last_words())

    def split(self, delivery: DeliverInput) -> tuple[tuple[Settlement, ...], DeliverInput]:
        """What is final of these messages already, and the delivery without them."""
        known = tuple(self._known[each.id] for each in delivery.messages if self._is_final(each.id))
        left = tuple(each for each in delivery.messages if not self._is_final(each.id))
        return known, delivery.model_copy(update={"messages": left})

    def at_end(self) -> tuple[Settlement, ...]:
        """What is known of each message once no process follows."""
        # A later process may have read what an earlier one was given last.
        final = {each: known for each, known in self._known.items() if self._is_final(each)}
        return tuple((self._last_words | final).values())

    def _not_too_late(self, told: Settlement) -> Settlement:
        """A process that has finished says too late of all that it was not given itself. One before it may have been
        given the message, and what was said in its session goes on with it.
        """
        return self._last_words.get(told.id, told) if told.state == "too_late" else told

    def _is_final(self, message_id: str) -> bool:
        known = self._known.get(message_id)
        return known is not None and known.state in FINAL_STATES
