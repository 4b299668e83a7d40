"""The messages of a run: numbered, delivered in order, each settled once. Pure: no Temporal here."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice

from steersman.contracts.activities import OutgoingMessage, Settlement
from steersman.contracts.attachments import MAX_ATTACHED, Attachment, images
from steersman.contracts.messages import Message
from steersman.contracts.run import FINAL_STATES, MessageKind, MessageRecord

MAX_MESSAGES = 1000
"""Messages that a run takes; more are refused with a reason. Temporal allows 2,000 updates in a history."""
MAX_WAITING = 512_000
"""Bytes of messages, as JSON, that may wait for the agent. Temporal takes a payload of 2 MB."""
MAX_WAITING_ATTACHED = 2 * MAX_ATTACHED
"""Characters of their attachments that may wait: state and queries have none of them."""
MAX_TOTAL = 8_000_000
"""Bytes of all messages that a run takes. Each is in its history, which may have 50 MB."""
MAX_DELIVERY = 256_000
"""Bytes of a delivery that has more than one message."""
MAX_SETTLED_TEXT = 80
"""Characters of a settled message's text that stay in the state."""
MAX_EARLY_SETTLEMENTS = 1000
"""Settlements that are kept of messages that the mailbox does not know (yet)."""

UNREAD = "the run ended first"
UNKNOWN = "the run ended before anybody could tell whether the agent read this"


def invalid(kind: MessageKind, message: Message) -> str | None:
    """Why a message of this kind is invalid; None if it is valid."""
    if message.end and kind == "steer":
        return "Message: end is only for interrupt"
    if message.end and message.text:
        return "Message: end goes without a text"
    if message.attachments and not (message.text or "").strip():
        return "Message: attachments go with a text"
    if kind == "steer" and not (message.text or "").strip():
        return "Message: text is required"
    return None


class Mailbox:
    """Keeps each message until the agent has acknowledged it, whichever worker leads the run.

    `bounded`: False for runs from before there were bounds in bytes, whose histories must replay as they were.
    """

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self._messages: dict[str, MessageRecord] = {}
        self._unsent: list[str] = []
        self._end_requests: list[str] = []
        self.end_reason: str | None = None
        """The reason that was given with the first request to end the run."""
        self._tried: set[str] = set()
        self._early_settlements: dict[str, Settlement] = {}
        self._attachments: dict[str, tuple[Attachment, ...]] = {}
        """Of messages that wait."""
        self._sizes: dict[str, int] = {}
        self._waiting = self._total = 0

    @property
    def end_requested(self) -> bool:
        """Whether a person asked that the run ends together with its turn."""
        return bool(self._end_requests)

    @property
    def records(self) -> tuple[MessageRecord, ...]:
        """All messages, in the order in which they came."""
        return tuple(self._messages.values())

    def __getitem__(self, message_id: str) -> MessageRecord:
        return self._messages[message_id]

    def __contains__(self, message_id: object) -> bool:
        """Whether the message was accepted, or a settlement of it has arrived."""
        return message_id in self._messages or message_id in self._early_settlements

    def refusal(self, message: Message) -> str | None:
        """Why there is no room for this message; None if there is."""
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
        attached = _attached(message.attachments)
        if attached and (waiting := sum(map(_attached, self._attachments.values()))) + attached > MAX_WAITING_ATTACHED:
            return f"{waiting:,} characters of attachments wait for the agent already: say it again once it has those"
        if self._total + size + attached > MAX_TOTAL:
            return f"the run has taken {self._total:,} bytes of messages already: no more than {MAX_TOTAL:,} in all"
        return None

    def accept(self, kind: MessageKind, message: Message, now: datetime, default_id: str | None = None) -> str:
        """Accept a message, once for each id; return the id. `default_id`: for a message without an id."""
        message_id = message.id or default_id or self._new_id(kind)
        if message_id in self._messages:
            return message_id
        self._messages[message_id] = MessageRecord(
            id=message_id,
            kind=kind,
            text=message.text,
            reason=message.reason,
            attachments=tuple(each.name for each in message.attachments),
            received_at=now,
        )
        self._unsent.append(message_id)
        self._sizes[message_id] = size = _size(message.text, message.reason)
        self._waiting += size
        self._total += size + _attached(message.attachments)
        if message.attachments:
            self._attachments[message_id] = message.attachments
        if message.end:
            self._end_requests.append(message_id)
            self.end_reason = self.end_reason or message.reason
        if settlement := self._early_settlements.pop(message_id, None):
            # It was delivered before: the workflow task that had accepted it was lost on its way to the server.
            self.settle([settlement], now)
        return message_id

    def _new_id(self, kind: MessageKind) -> str:
        number = len(self._messages) + 1
        while f"{kind}-{number}" in self:  # a client may have chosen that one
            number += 1
        return f"{kind}-{number}"

    @property
    def has_unsent(self) -> bool:
        """Whether a message is to be delivered."""
        return bool(self._unsent)

    def unsent(self) -> tuple[OutgoingMessage, ...]:
        """The messages of the next delivery, in order."""
        return tuple(self._outgoing(islice(self._unsent, self._delivery_count())))

    def _delivery_count(self) -> int:
        if not self._bounded:
            return len(self._unsent)
        size = count = 0
        for message_id in self._unsent:
            size += self._sizes[message_id] + _attached(self._attachments.get(message_id, ()))
            if count and size > MAX_DELIVERY:
                break
            count += 1
        return count

    def _outgoing(self, ids: Iterable[str]) -> Iterable[OutgoingMessage]:
        for record in (self._messages[message_id] for message_id in ids):
            yield OutgoingMessage(
                id=record.id,
                kind=record.kind,
                text=record.text,
                attachments=self._attachments.get(record.id, ()),
                end=record.id in self._end_requests,
            )

    def refuse(self, reasons: Mapping[MessageKind, str], now: datetime, images_refused: str | None = None) -> bool:
        """Reject what waits of these kinds, or has images that are refused; whether anything does. A request to end the
        run asks no agent, and stays.
        """
        waiting = [self._messages[each] for each in self._unsent if each not in self._end_requests]
        refused = []
        for each in waiting:
            how = reasons.get(each.kind)
            if how is None and images(self._attachments.get(each.id, ())):
                how = images_refused
            if how is not None:
                refused.append(Settlement(id=each.id, state="rejected", how=how))
        self.settle(refused, now)
        return bool(refused)

    def mark_tried(self, messages: Iterable[OutgoingMessage]) -> None:
        """A delivery of these was tried: from now on only the agent's journal can tell whether they arrived."""
        self._tried.update(each.id for each in messages)

    def was_sent(self, message_id: str) -> bool:
        """Whether the leading worker has the message, as far as it has answered."""
        return message_id in self._messages and message_id not in self._unsent

    def mark_sent(self, messages: Iterable[OutgoingMessage]) -> None:
        """The leading worker has these."""
        gone = {each.id for each in messages}
        self._unsent = [message_id for message_id in self._unsent if message_id not in gone]

    @property
    def unconfirmed(self) -> bool:
        """Whether the leading worker took a message and has not confirmed yet that the agent has it."""
        unsent = set(self._unsent)
        return any(each.state == "queued" and each.id not in unsent for each in self._messages.values())

    def resend(self, *, only_unconfirmed: bool = False) -> None:
        """Deliver again, in order, what the agent has not acknowledged: another session took over.

        `only_unconfirmed`: the same session leads the run, but may have lost what it had not written.
        """
        again = {"queued"} if only_unconfirmed else {"queued", "delivered"}
        self._unsent = [each.id for each in self._messages.values() if each.state in again]

    def settle(self, settlements: Iterable[Settlement], now: datetime) -> None:
        """Record the states of messages; a final state stays. Settlements of unknown messages wait for the message."""
        for each in settlements:
            record = self._messages.get(each.id)
            if record is None:
                if self._bounded and len(self._early_settlements) < MAX_EARLY_SETTLEMENTS:
                    self._early_settlements[each.id] = each
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
                    "text": _shortened(record.text) if final else record.text,
                    "reason": _shortened(record.reason) if final else record.reason,
                }
            )
            if final:
                self._waiting -= self._sizes.pop(each.id)
                self._attachments.pop(each.id, None)
                self._unsent = [message_id for message_id in self._unsent if message_id != each.id]

    def close(self, now: datetime, *, interrupted: bool = False, journal_read: bool = False) -> None:
        """Settle all messages at the run's end: `too_late` if the agent did not take it, `unverified` if unknown.

        `interrupted`: the run ended as a message asked. `journal_read`: the agent's journal has been read to its end,
        so that a message without a settlement never reached the agent.
        """
        if interrupted:
            ends = [Settlement(id=each, state="acknowledged", how="interrupted") for each in self._end_requests]
            self.settle(ends, now)
        self.settle([self._last_settlement(each, journal_read=journal_read) for each in self._messages.values()], now)

    def _last_settlement(self, record: MessageRecord, *, journal_read: bool) -> Settlement:
        if record.state == "delivered" and record.how == "interrupted":
            if record.text is None:
                return Settlement(id=record.id, state="acknowledged")
            return Settlement(id=record.id, state="too_late", how="the turn was interrupted, and the run ended first")
        if record.state == "delivered" or (record.id in self._tried and not journal_read):
            return Settlement(id=record.id, state="unverified", how=UNKNOWN)
        return Settlement(id=record.id, state="too_late", how=UNREAD)

    @property
    def delivered(self) -> int:
        """The number of messages that reached the agent."""
        return sum(each.delivered_at is not None for each in self._messages.values())


def _size(*texts: str | None) -> int:
    """Bytes of the texts as JSON."""
    return sum(len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) for text in texts if text)


def _attached(attachments: Iterable[Attachment]) -> int:
    """Characters of their data."""
    return sum(len(each.data) for each in attachments)


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_SETTLED_TEXT:
        return text
    return f"{text[: MAX_SETTLED_TEXT - 1]}\N{HORIZONTAL ELLIPSIS}"
