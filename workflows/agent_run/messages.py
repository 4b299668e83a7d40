"""The messages of a run: numbered, delivered in order, each settled once. Pure: no Temporal in here."""

import json
from collections.abc import Iterable
from datetime import datetime
from itertools import islice

from steersman.contracts.activities import OutgoingMessage, Settlement
from steersman.contracts.messages import Message
from steersman.contracts.run import FINAL_STATES, MessageKind, MessageRecord

MAX_MESSAGES = 1000
"""A run's history has room for so many (Temporal allows 2,000 updates); more are refused with a reason."""
MAX_WAITING = 512_000
"""Bytes of messages, as JSON, that may wait for the agent: Temporal takes 2 MB in one piece."""
MAX_TOTAL = 8_000_000
"""Bytes of all messages that a run takes: each is in its history, which may have 50 MB."""
PARCEL = 256_000
"""Bytes that are delivered in one piece, if they are more than one message's."""
BEGINNING = 80
"""Characters of a settled message that are kept."""
MAX_EARLY = 1000
"""Settlements of messages that are not known here (yet)."""

UNREAD = "the run ended first"
UNKNOWN = "the run ended before anybody could tell whether the agent read this"


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
    """Keeps each message until the agent has acknowledged it, whichever worker holds the session.

    `bounded`: False for runs of before there were bounds in bytes, whose histories must be replayed as they were.
    """

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self._messages: dict[str, MessageRecord] = {}
        self._unsent: list[str] = []
        self._ends: list[str] = []
        self.end_reason: str | None = None
        """Why a person ended the run, as they said first."""
        self._tried: set[str] = set()
        self._early: dict[str, Settlement] = {}
        self._sizes: dict[str, int] = {}
        self._waiting = self._total = 0

    @property
    def ending(self) -> bool:
        """A person has ended the run together with its turn."""
        return bool(self._ends)

    @property
    def records(self) -> tuple[MessageRecord, ...]:
        """All messages, in the order in which they came."""
        return tuple(self._messages.values())

    def __getitem__(self, message_id: str) -> MessageRecord:
        return self._messages[message_id]

    def __contains__(self, message_id: object) -> bool:
        """Whether something is known of it: it was taken, or the agent has told what became of it."""
        return message_id in self._messages or message_id in self._early

    def refusal(self, message: Message) -> str | None:
        """Why no such message is taken any more; None if it is."""
        if len(self._messages) >= MAX_MESSAGES:
            return f"the run has taken {MAX_MESSAGES} messages already"
        if not self._bounded:
            return None
        size = _size(message.text, message.reason)
        if self._waiting + size > MAX_WAITING:
            return (
                f"{self._waiting:,} bytes of messages wait for the agent already, and this one has {size:,}: "
                f"no more than {MAX_WAITING:,} do"
            )
        if self._total + size > MAX_TOTAL:
            return f"the run has taken {self._total:,} bytes of messages already: no more than {MAX_TOTAL:,} in all"
        return None

    def accept(self, kind: MessageKind, message: Message, now: datetime, known_as: str | None = None) -> str:
        """Take a message, or recognise it by its id; its id. `known_as`: what to call it where it has none."""
        message_id = message.id or known_as or self._new_id(kind)
        if message_id in self._messages:
            return message_id
        self._messages[message_id] = MessageRecord(
            id=message_id, kind=kind, text=message.text, reason=message.reason, received_at=now
        )
        self._unsent.append(message_id)
        self._sizes[message_id] = size = _size(message.text, message.reason)
        self._waiting += size
        self._total += size
        if message.end:
            self._ends.append(message_id)
            self.end_reason = self.end_reason or message.reason
        if settlement := self._early.pop(message_id, None):
            # It was delivered before: the workflow task that had taken it was lost on its way to the server.
            self.settle([settlement], now)
        return message_id

    def _new_id(self, kind: MessageKind) -> str:
        number = len(self._messages) + 1
        while f"{kind}-{number}" in self:  # a client may have chosen that one
            number += 1
        return f"{kind}-{number}"

    @property
    def has_unsent(self) -> bool:
        """Something is to be delivered."""
        return bool(self._unsent)

    def unsent(self) -> tuple[OutgoingMessage, ...]:
        """What is to be delivered to the session next, in order: as much as goes in one piece."""
        return tuple(self._outgoing(islice(self._unsent, self._piece())))

    def _piece(self) -> int:
        if not self._bounded:
            return len(self._unsent)
        size = count = 0
        for message_id in self._unsent:
            size += self._sizes[message_id]
            if count and size > PARCEL:
                break
            count += 1
        return count

    def _outgoing(self, ids: Iterable[str]) -> Iterable[OutgoingMessage]:
        for record in (self._messages[message_id] for message_id in ids):
            yield OutgoingMessage(id=record.id, kind=record.kind, text=record.text, end=record.id in self._ends)

    def tried(self, messages: Iterable[OutgoingMessage]) -> None:
        """These are on their way to the session: from now on only it can tell whether they arrive."""
        self._tried.update(each.id for each in messages)

    def was_sent(self, message_id: str) -> bool:
        """Whether it is with the session now, as far as that has said."""
        return message_id in self._messages and message_id not in self._unsent

    def sent(self, messages: Iterable[OutgoingMessage]) -> None:
        """These are with the session now."""
        gone = {each.id for each in messages}
        self._unsent = [message_id for message_id in self._unsent if message_id not in gone]

    @property
    def unconfirmed(self) -> bool:
        """Something was handed to a session, which has not said yet that the agent has it."""
        unsent = set(self._unsent)
        return any(each.state == "queued" and each.id not in unsent for each in self._messages.values())

    def resend(self, *, only_unconfirmed: bool = False) -> None:
        """Whatever the agent has not acknowledged goes out again, in order: another session took over.

        `only_unconfirmed`: the same one holds the run, but may have lost what it had not written.
        """
        again = {"queued"} if only_unconfirmed else {"queued", "delivered"}
        self._unsent = [each.id for each in self._messages.values() if each.state in again]

    def settle(self, settlements: Iterable[Settlement], now: datetime) -> None:
        """Record what became of messages; a final state stays. Of unknown ones it is kept until they come."""
        for each in settlements:
            record = self._messages.get(each.id)
            if record is None:
                if self._bounded and len(self._early) < MAX_EARLY:
                    self._early[each.id] = each
                continue
            if record.state in FINAL_STATES:
                continue
            final = each.state in FINAL_STATES
            reached = each.state in ("delivered", "acknowledged")
            self._messages[each.id] = record.model_copy(
                update={
                    "state": each.state,
                    "how": each.how or record.how,
                    "delivered_at": record.delivered_at or (now if reached else None),
                    "settled_at": now if final else None,
                    "text": _beginning(record.text) if final else record.text,
                    "reason": _beginning(record.reason) if final else record.reason,
                }
            )
            if final:
                self._waiting -= self._sizes.pop(each.id)
                self._unsent = [message_id for message_id in self._unsent if message_id != each.id]

    def close(self, now: datetime, *, interrupted: bool = False, certain: bool = False) -> None:
        """The run is over: what the agent did not take comes too late, and what nobody can tell is unverified.

        `interrupted`: what ended the run was done. `certain`: the agent's journal has been read to its end, so that
        a message of which nothing was told never reached the agent.
        """
        if interrupted:
            self.settle([Settlement(id=each, state="acknowledged", how="interrupted") for each in self._ends], now)
        self.settle([self._last_word(each, certain=certain) for each in self._messages.values()], now)

    def _last_word(self, record: MessageRecord, *, certain: bool) -> Settlement:
        if record.state == "delivered" and record.how == "interrupted":
            if record.text is None:
                return Settlement(id=record.id, state="acknowledged")
            return Settlement(id=record.id, state="too_late", how="the turn was interrupted, and the run ended first")
        if record.state == "delivered" or (record.id in self._tried and not certain):
            return Settlement(id=record.id, state="unverified", how=UNKNOWN)
        return Settlement(id=record.id, state="too_late", how=UNREAD)

    @property
    def delivered(self) -> int:
        """How many messages reached the agent."""
        return sum(each.delivered_at is not None for each in self._messages.values())


def _size(*texts: str | None) -> int:
    """Bytes of JSON."""
    return sum(len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) for text in texts if text)


def _beginning(text: str | None) -> str | None:
    return text if text is None or len(text) <= BEGINNING else f"{text[: BEGINNING - 1]}\N{HORIZONTAL ELLIPSIS}"
