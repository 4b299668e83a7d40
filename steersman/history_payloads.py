"""The payloads of a workflow's history: found, decoded by a codec, and judged before they are used."""

from collections.abc import Iterator
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory
from temporalio.converter import PayloadCodec

from steersman.converter import MISSING, UNREADABLE, reason_of

KNOWN = frozenset({b"json/plain", b"json/protobuf", b"binary/plain", b"binary/protobuf", b"binary/null"})
"""Encodings that need no codec."""


async def decoded(history: WorkflowHistory, codec: PayloadCodec | None) -> tuple[WorkflowHistory, list[str]]:
    """The history, its payloads in the clear; and of each that could not be decoded, and is as it was, why.

    Raises UnreadablePayload where the codec fails otherwise.
    """
    if codec is None:
        return history, []
    whole, reasons = History(events=history.events), []
    for payload in payloads(whole):
        (plain,) = await codec.decode([payload])
        if plain.metadata.get("encoding") in (MISSING, UNREADABLE):
            reasons.append(plain.data.decode(errors="replace"))
        else:
            payload.CopyFrom(plain)
    return WorkflowHistory(history.workflow_id, list(whole.events)), reasons


async def obstacle(history: WorkflowHistory, codec: PayloadCodec | None) -> str | None:
    """Why nobody can judge whether this history replays, with this codec; None where it can be judged.

    A single payload that was forged is part of a history, and replays: no other than the workflow's input, or one whose
    key is not here, is an obstacle. Raises as `decoded`.
    """
    given = history.events[0].workflow_execution_started_event_attributes.input.payloads
    for payload in payloads(History(events=history.events)):
        (plain,) = await codec.decode([payload]) if codec else (payload,)
        encoding = plain.metadata.get("encoding", b"")
        if encoding == MISSING:
            return plain.data.decode(errors="replace")
        if payload in given and encoding not in KNOWN:
            name = encoding.decode(errors="replace")
            return reason_of(plain) or f"its input is encoded as {name}: set STEERSMAN_CODEC as where it was written"
    return None


def payloads(message: Any) -> Iterator[Payload]:
    """All payloads in a message of Temporal's."""
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            values = list(value.values()) if inner.type == inner.TYPE_MESSAGE else []
        else:
            values = [value] if not hasattr(value, "add") else list(value)
        for each in values:
            if isinstance(each, Payload):
                yield each
            else:
                yield from payloads(each)
