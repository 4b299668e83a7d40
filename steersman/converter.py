"""The data converter of Steersman's clients and workers: pydantic models as plain JSON.

A payload that cannot be decoded becomes an InvalidRequest that fails the workflow at once; Temporal's default is to
retry the workflow task for ever without telling anybody.
"""

from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError

from steersman.contracts.errors import ErrorType


class StrictPayloadConverter(PydanticPayloadConverter):
    """Pydantic JSON; raises ApplicationError InvalidRequest for a payload that is no JSON of the expected shape."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode, or raise a non-retryable InvalidRequest that says what is wrong."""
        try:
            return super().from_payloads(payloads, type_hints)
        except FailureError:
            raise
        except Exception as error:
            encodings = ", ".join(
                payload.metadata.get("encoding", b"?").decode(errors="replace") for payload in payloads
            )
            raise ApplicationError(
                f"the input must be one JSON object; a payload encoded as {encodings} could not be decoded: "
                f"{type(error).__name__}",
                type=ErrorType.INVALID_REQUEST,
                non_retryable=True,
            ) from error


DATA_CONVERTER = DataConverter(payload_converter_class=StrictPayloadConverter)
