"""Messages to a run and their receipts: inputs and results of its updates."""

import re
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from steersman.contracts.attachments import Attachments
from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.model import JsonObject, StrictModel, TolerantModel, no_nul
from steersman.contracts.run import MessageState

MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
MessageId = Annotated[str, Field(pattern=f"^{MESSAGE_ID.pattern}$")]
MAX_TEXT = 100_000
"""Characters of a message."""
MessageText = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(no_nul)]

PAUSED: Final = "the run's activity is paused in Temporal: the message waits until it is unpaused"
"""Why a message is queued, in a receipt: from a worker that let go of the run for it, or from the client."""


class Message(StrictModel):
    """Input of `steer` and `interrupt`. Two with the same id are one message."""

    text: MessageText | None = None
    id: MessageId | None = None
    reason: Annotated[str, Field(max_length=1000)] | None = None
    attachments: Attachments = ()
    """Files that go with the text."""
    end: bool = False
    """Of `interrupt` only, and without a text: end the run with the turn. The run succeeds with stop_reason
    "interrupted", and another run can resume its session.
    """


class MessageReceipt(TolerantModel):
    """Result of `steer` and `interrupt`."""

    id: str
    state: MessageState
    how: str | None = None
    latency_ms: int
    """Milliseconds from the workflow's acceptance of the message to the receipt."""


class Decision(StrictModel):
    """Input of `decide`: a person's decision on an approval."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    decision: Literal["allow", "deny"]
    message: Annotated[str, Field(max_length=10_000), AfterValidator(no_nul)] | None = None
    """Given to the agent when denied."""
    remember: bool = False
    """Decide the same for this tool for the rest of the run."""


class DecisionReceipt(TolerantModel):
    """Result of `decide`."""

    id: str
    decision: Literal["allow", "deny"]
    tool: str
    input: JsonObject


Q = TypeVar("Q", bound=StrictModel)


def parse_message(model: type[Q], data: object) -> Q:
    """The message in a decoded JSON value; None counts as {}. Raises InvalidRequest naming each wrong field."""
    try:
        return model.model_validate({} if data is None else data)
    except ValidationError as error:
        raise InvalidRequest(sentence(error, model.__name__)) from None  # which has the values
