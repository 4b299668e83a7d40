"""What may be said to a running agent, and the receipts."""

import re
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.model import JsonObject, StrictModel, TolerantModel
from steersman.contracts.request import no_nul
from steersman.contracts.run import MessageState

MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
MessageId = Annotated[str, Field(pattern=f"^{MESSAGE_ID.pattern}$")]
MessageText = Annotated[str, Field(max_length=100_000), AfterValidator(no_nul)]

PAUSED: Final = "the run's activity is paused in Temporal: the message waits until it is unpaused"
"""Why a message waits, in a receipt: said by a worker that let the run go for it, or by a client that sees it."""


class Message(StrictModel):
    """Input of `steer` and `interrupt`. The same id twice is one message."""

    text: MessageText | None = None
    id: MessageId | None = None
    reason: Annotated[str, Field(max_length=1000)] | None = None
    end: bool = False
    """Only of `interrupt`, and without a text: end the run with the turn. It closes as succeeded, with stop_reason
    "interrupted"; its session can be gone on with.
    """


class MessageReceipt(TolerantModel):
    """Result of `steer` and `interrupt`."""

    id: str
    state: MessageState
    how: str | None = None
    latency_ms: int
    """From the workflow's acceptance to this answer."""


class Decision(StrictModel):
    """Input of `decide`: a person's word on an approval."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    decision: Literal["allow", "deny"]
    message: Annotated[str, Field(max_length=10_000), AfterValidator(no_nul)] | None = None
    """Told to the agent when denied."""
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
    """A Message or Decision from a decoded JSON value. Raises InvalidRequest naming the field."""
    try:
        return model.model_validate({} if data is None else data)
    except ValidationError as error:
        raise InvalidRequest(sentence(error, model.__name__)) from error
