"""The two bases of every model on the wire, and the types that many of them share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

__all__ = ["JsonObject", "JsonValue", "Seconds", "StrictModel", "TolerantModel"]

JsonObject = dict[str, JsonValue]

Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86400, allow_inf_nan=False)]
"""A duration in seconds, greater than 0 and at most ten years."""


class StrictModel(BaseModel):
    """What a client sends: an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


class TolerantModel(BaseModel):
    """What workflows and workers send: an older reader ignores the fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")
