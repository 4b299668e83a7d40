"""The two bases of every model on the wire, and the types that many of them share."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from steersman.contracts import deferral

__all__ = ["AbsolutePath", "JsonObject", "JsonValue", "Seconds", "StrictModel", "Text", "TolerantModel", "no_nul"]

JsonObject = dict[str, JsonValue]

Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86400, allow_inf_nan=False)]
"""A duration in seconds, greater than 0 and at most ten years."""


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("must be an absolute path")
    return path


def no_nul(text: str) -> str:
    """The text unchanged. Raises ValueError if it has a NUL, which no argument of a program can have."""
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


Text = Annotated[str, AfterValidator(no_nul)]
AbsolutePath = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(no_nul), AfterValidator(_absolute)]


class StrictModel(BaseModel):
    """What a client sends: an unknown field is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=False, defer_build=deferral.models_are_deferred
    )


class TolerantModel(BaseModel):
    """What workflows and workers send: an older reader ignores the fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=deferral.models_are_deferred)
