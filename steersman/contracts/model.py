"""The base of every model on the wire."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

__all__ = ["Answer", "JsonObject", "JsonValue", "Question", "Seconds"]

JsonObject = dict[str, JsonValue]

Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86400, allow_inf_nan=False)]
"""A duration in seconds, more than none and at most ten years."""


class Question(BaseModel):
    """What somebody asks of us: an unknown field is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


class Answer(BaseModel):
    """What we say: a reader of an older version ignores fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")
