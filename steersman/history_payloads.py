"""The payloads of a workflow's history: found, decoded by a codec, and judged before they are used."""

from collections.abc import Iterator
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory
from temporalio.converter import PayloadCodec

from steersman.converter import SET_CODEC, UNREADABLE, reason_of
from steersman.errors import UnreadablePayload

KNOWN: Final = frozenset({b"json/plain", b"json/protobuf", b"binary/plain", b"binary/protobuf", b"binary/null"})
"""Encodings that need no codec."""


async def decoded(history: WorkflowHistory, codec: PayloadCodec | None) -> tuple[WorkflowHistory, list[str]]:
    """The history, its payloads in the clear; and of each that could not be decoded, and is as it was, why."""
    whole, reasons = History(events=history.events), []
    for payload in payloads(whole):
        try:
            plain = await _plain(payload, codec)
        except UnreadablePayload as error:
            reasons.append(str(error))
            continue
        if why_not := reason_of(plain):
            reasons.append(why_not)
        else:
            payload.CopyFrom(plain)
    return WorkflowHistory(history.workflow_id, list(whole.events)), reasons


async def obstacle(history: WorkflowHistory, codec: PayloadCodec | None) -> str | None:
    """Why nobody can judge whether this history replays, with this codec; None where it can be judged.

    What was signalled may be forged, and replays all the same: only the workflow's input and what workers have written
    is looked at.
    """
    for event in history.events:
        attributes = getattr(event, event.WhichOneof("attributes") or "", None)
        for field in _WRITTEN.get(event.WhichOneof("attributes") or "", ()):
            for payload in payloads(getattr(attributes, field)):
                if why_not := await _unread(payload, codec, is_input=field == "input"):
                    return why_not
    return None


async def _unread(payload: Payload, codec: PayloadCodec | None, *, is_input: bool) -> str | None:
    try:
        plain = await _plain(payload, codec)
    except UnreadablePayload:
        return None  # it may need to know of which workflow it is: the replay tells it
    encoding = plain.metadata.get("encoding", b"")
    if encoding in KNOWN or (encoding == UNREADABLE and not is_input):
        return None
    return reason_of(plain) or f"it is encoded as {encoding.decode(errors='replace')}: {SET_CODEC}"


async def _plain(payload: Payload, codec: PayloadCodec | None) -> Payload:
    return (await codec.decode([payload]))[0] if codec else payload


_WRITTEN: Final = {
    "workflow_execution_started_event_attributes": ("input",),
    "activity_task_completed_event_attributes": ("result",),
    "activity_task_failed_event_attributes": ("failure",),
    "child_workflow_execution_completed_event_attributes": ("result",),
    "child_workflow_execution_failed_event_attributes": ("failure",),
}


def payloads(message: Any) -> Iterator[Payload]:
    """All payloads in a message of Temporal's that a codec has encoded: no search attributes, nothing of the SDK's."""
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE or field.message_type.name == "SearchAttributes":
            continue
        if field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            values = list(value.values()) if inner.type == inner.TYPE_MESSAGE else []
        else:
            values = [value] if not hasattr(value, "add") else list(value)
        for each in values:
            if isinstance(each, Payload):
                yield each
            elif not getattr(each, "marker_name", "").startswith("core_"):
                yield from payloads(each)
