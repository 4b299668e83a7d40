"""The data converter of Steersman's clients and workers: pydantic models as plain JSON.

A payload that cannot be decoded becomes an InvalidRequest that fails the workflow at once; Temporal's default retries
the workflow task for ever. MissingKey is left to the SDK, which retries the workflow task where the payload is a
workflow's input or an activity's result, drops signals, and refuses updates and queries. Payload codecs are in
steersman.codec.
"""

from collections.abc import Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError

from steersman.contracts.errors import ErrorType, why_unreadable
from steersman.errors import MissingKey, UnreadablePayload

ENCRYPTED: Final = b"binary/encrypted"
UNREADABLE: Final = b"binary/unreadable"
"""An encoding that is never on the wire: the codec replaces what it cannot decode; the data is the reason."""
MISSING: Final = b"binary/missing-key"
"""The same for what can be decoded once its key is there."""
SET_CODEC: Final = "set STEERSMAN_CODEC as where it was written"
NOT_HERE: Final = f"it is encrypted, and there is no codec for it here: {SET_CODEC}"


class UnreadableInput(ApplicationError, UnreadablePayload):
    """An encrypted payload that was not decoded: to a workflow InvalidRequest, to a client UnreadablePayload."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the input must be one JSON object, and could not be decoded: {reason}",
            type=ErrorType.INVALID_REQUEST,
            non_retryable=True,
        )
        self._reason = reason

    def __str__(self) -> str:
        """The sentence for a client, to which the payload is no input."""
        return f"what Temporal holds cannot be decoded: {self._reason}"


def unreadable(reason: str) -> Payload:
    """The replacement of a payload that can never be decoded."""
    return Payload(metadata={"encoding": UNREADABLE}, data=reason.encode())


def missing(reason: str) -> Payload:
    """The replacement of a payload whose key is not here."""
    return Payload(metadata={"encoding": MISSING}, data=reason.encode())


def check_keys(payloads: Sequence[Payload]) -> None:
    """Raises MissingKey if any payload's key is not here."""
    for payload in payloads:
        if payload.metadata.get("encoding") == MISSING:
            raise MissingKey(payload.data.decode(errors="replace"))


def reason_of(payload: Payload) -> str | None:
    """Why the payload cannot be decoded, perhaps for the time being; None where it is not encrypted."""
    encoding = payload.metadata.get("encoding")
    if encoding in (UNREADABLE, MISSING):
        return payload.data.decode(errors="replace")
    return NOT_HERE if encoding == ENCRYPTED else None


class StrictPayloadConverter(PydanticPayloadConverter):
    """Pydantic's JSON; a payload of another shape than expected raises an InvalidRequest, as ApplicationError."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """The decoded values. Raises MissingKey, or a non-retryable InvalidRequest that says what is wrong."""
        check_keys(payloads)
        try:
            return super().from_payloads(payloads, type_hints)
        except FailureError:
            raise
        except Exception as error:
            reason = next(filter(None, map(reason_of, payloads)), None)
            if reason:
                raise UnreadableInput(reason) from error
            encodings = ", ".join(
                payload.metadata.get("encoding", b"?").decode(errors="replace") for payload in payloads
            )
            raise ApplicationError(
                f"the input must be one JSON object; a payload encoded as {encodings} could not be decoded: "
                f"{why_unreadable(error)}",
                type=ErrorType.INVALID_REQUEST,
                non_retryable=True,
            ) from None  # pydantic's own words have the values, which may be secret


class StrictFailureConverter(DefaultFailureConverter):
    """Temporal's own, which says of an encrypted message why it cannot be decoded."""

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """The exception that the failure stands for. Raises MissingKey."""
        encoded = [failure.encoded_attributes] if failure.HasField("encoded_attributes") else []
        check_keys(encoded)
        if reason := next(filter(None, map(reason_of, encoded)), None):
            told = Failure()
            told.CopyFrom(failure)
            told.message = f"its message cannot be read: {reason}"
            told.ClearField("encoded_attributes")
            failure = told
        return super().from_failure(failure, payload_converter)


class EncodedFailureConverter(StrictFailureConverter):
    """Sends message and stack trace as a payload, which a codec encrypts; the error's type stays unencrypted."""

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)


DATA_CONVERTER = DataConverter(
    payload_converter_class=StrictPayloadConverter, failure_converter_class=StrictFailureConverter
)
