"""Codecs of other people's, and what of a history is given to them."""

from collections.abc import Sequence

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import PayloadCodec

from steersman.codec import DeferredErrorCodec
from steersman.errors import MissingKey
from steersman.history_payloads import decoded, obstacle

PREFIX = b"mine:"


class Strict(PayloadCodec):
    """Takes nothing but what it has written."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata=each.metadata, data=PREFIX + each.data) for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if b"old key" in payloads[0].data:
            raise MissingKey("its key is old")
        if not all(each.data.startswith(PREFIX) for each in payloads):
            raise ValueError("not written by this codec")
        return [Payload(metadata=each.metadata, data=each.data.removeprefix(PREFIX)) for each in payloads]


CODEC = DeferredErrorCodec(Strict())


def history(given: bytes, answered: bytes = PREFIX, signalled: bytes = PREFIX) -> WorkflowHistory:
    started, signal, done, patched = HistoryEvent(), HistoryEvent(), HistoryEvent(), HistoryEvent()
    begun = started.workflow_execution_started_event_attributes
    begun.input.payloads.add(metadata={"encoding": b"json/plain"}, data=given)
    begun.search_attributes.indexed_fields["A"].data = b"in the clear"
    signal.workflow_execution_signaled_event_attributes.input.payloads.add(data=signalled)
    done.activity_task_completed_event_attributes.result.payloads.add(data=answered)
    done.activity_task_completed_event_attributes.result.payloads[0].metadata["encoding"] = b"json/plain"
    patched.marker_recorded_event_attributes.marker_name = "core_patch"
    patched.marker_recorded_event_attributes.details["data"].payloads.add(data=b"the SDK's own")
    return WorkflowHistory("run-1", [started, signal, done, patched])


async def test_what_no_codec_has_written_is_not_given_to_one() -> None:
    plain, reasons = await decoded(history(PREFIX + b"{}"), CODEC)
    assert reasons == []
    assert plain.events[0].workflow_execution_started_event_attributes.input.payloads[0].data == b"{}"
    assert await obstacle(history(PREFIX + b"{}"), CODEC) is None


async def test_what_a_codec_fails_at_stays_as_it_is_and_the_replay_tells() -> None:
    odd = history(b"foreign")
    plain, reasons = await decoded(odd, CODEC)
    assert [each.partition(": ")[2] for each in reasons] == ["ValueError: not written by this codec"]
    assert plain.events[0] == odd.events[0]
    assert await obstacle(odd, CODEC) is None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"given": b"old key"}, "its key is old"),
        ({"given": PREFIX, "answered": b"old key"}, "its key is old"),
        ({"given": PREFIX, "signalled": b"old key"}, None),
    ],
    ids=["the input", "an answer", "a signal, which anybody may send"],
)
async def test_a_key_that_is_not_here_forbids_a_verdict(parts: dict[str, bytes], why: str | None) -> None:
    assert await obstacle(history(**parts), CODEC) == why
