"""The messages of a run: numbered, delivered in order, each settled once. Pure: no Temporal in here."""

from collections.abc import Iterable
from datetime import datetime

from steersman.contracts.activities import OutgoingMessage, Settlement
from steersman.contracts.messages import Message
from steersman.contracts.run import FINAL_STATES, MessageKind, MessageRecord

MAX_MESSAGES = 1000
"""A run's history has room for so many (Temporal allows 2,000 updates); more are refused with a reason."""


def wrong(kind: MessageKind, message: Message) -> str | None:
    """What is wrong with a message of this kind; None if nothing is."""
    if message.end and kind == "steer":
        return "Message: end is only for interrupt"
    if message.end and message.text:
        return "Message: end goes without a text"
    if kind == "steer" and not (message.text or "").strip():
        return "Message: text is required"
    return None


class Mailbox:
    """Keeps each message until the agent has acknowledged it, whichever worker holds the session."""

    def __init__(self) -> None:
        self._messages: dict[str, MessageRecord] = {}
        self._unsent: list[str] = []
        self._ends: list[str] = []

    @property
    def ending(self) -> bool:
        """A person has ended the run together with its turn."""
        return bool(self._ends)

    @property
    def records(self) -> tuple[MessageRecord, ...]:
        """All messages, in the order in which they came."""
        return tuple(self._messages.values())

    @property
    def full(self) -> bool:
        """No further message is taken."""
        return len(self._messages) >= MAX_MESSAGES

    def __getitem__(self, message_id: str) -> MessageRecord:
        return self._messages[message_id]

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._messages

    def accept(self, kind: MessageKind, message: Message, now: datetime) -> str:
        """Take a message, or recognise it by its id; its id."""
        message_id = message.id or self._new_id(kind)
        if message_id not in self._messages:
            self._messages[message_id] = MessageRecord(
                id=message_id, kind=kind, text=message.text, reason=message.reason, received_at=now
            )
            self._unsent.append(message_id)
            if message.end:
                self._ends.append(message_id)
        return message_id

    def _new_id(self, kind: MessageKind) -> str:
        number = len(self._messages) + 1
        while f"{kind}-{number}" in self._messages:  # a client may have chosen that one
            number += 1
        return f"{kind}-{number}"

    def unsent(self) -> tuple[OutgoingMessage, ...]:
        """What is to be delivered to the session, in order."""
        records = (self._messages[message_id] for message_id in self._unsent)
        return tuple(
            OutgoingMessage(id=each.id, kind=each.kind, text=each.text, end=each.id in self._ends) for each in records
        )

    def sent(self, messages: Iterable[OutgoingMessage]) -> None:
        """These are with the session now."""
        gone = {each.id for each in messages}
        self._unsent = [message_id for message_id in self._unsent if message_id not in gone]

    def resend(self) -> None:
        """Another session took over: whatever the agent has not acknowledged goes out again, in order."""
        self._unsent = [each.id for each in self._messages.values() if each.state not in FINAL_STATES]

    def settle(self, settlements: Iterable[Settlement], now: datetime) -> None:
        """Record what became of messages; a final state stays."""
        for each in settlements:
            record = self._messages.get(each.id)
            if record is None or record.state in FINAL_STATES:
                continue
            final = each.state in FINAL_STATES
            reached = each.state in ("delivered", "acknowledged")
            self._messages[each.id] = record.model_copy(
                update={
                    "state": each.state,
                    "how": each.how or record.how,
                    "delivered_at": record.delivered_at or (now if reached else None),
                    "settled_at": now if final else None,
                }
            )
            if final:
                self._unsent = [message_id for message_id in self._unsent if message_id != each.id]

    def close(self, now: datetime, *, interrupted: bool = False) -> None:
        """The run is over: what the agent did not take comes too late. `interrupted`: what ended it was done."""
        if interrupted:
            self.settle([Settlement(id=each, state="acknowledged", how="interrupted") for each in self._ends], now)
        late = [each.id for each in self._messages.values() if each.state not in FINAL_STATES]
        self.settle([Settlement(id=each, state="too_late", how="the run ended first") for each in late], now)

    @property
    def delivered(self) -> int:
        """How many messages reached the agent."""
        return sum(each.delivered_at is not None for each in self._messages.values())
