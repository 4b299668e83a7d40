"""Fields that snapshots of transcripts share, read as hostile input. What an agent's snapshot holds is that agent's."""

import json
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator

from activities.untrusted_json import MAX_NAME
from steersman.contracts.errors import ERRORS, ErrorType, RunError

_MAX_MESSAGE = 8_000
_MAX_FACTS = 64 * 1024


def _error_from(value: Any) -> RunError | None:
    if value is None or isinstance(value, RunError):
        return value
    kind, message, facts = value
    if not isinstance(message, str) or not isinstance(facts, dict) or len(message) > _MAX_MESSAGE:
        raise ValueError("that is no error")
    if len(json.dumps(facts)) > _MAX_FACTS:
        raise ValueError("an error has too many facts")
    error = ERRORS[ErrorType(kind)](message)
    error.facts = facts
    return error


def _error_to(error: RunError | None) -> list[Any] | None:
    return [error.type, error.message, error.facts] if error else None


ErrorField = Annotated[RunError | None, PlainValidator(_error_from), PlainSerializer(_error_to)]
"""An error of a run; null for none."""
Name = Annotated[str, Field(max_length=MAX_NAME)]
"""A name or an id."""


def estimated_size(values: list[Any], limit: int) -> int:
    """About how many characters the values have as JSON, counted no further than `limit`."""
    rest: list[Any] = list(values)
    size = 0
    while rest and size < limit:
        each = rest.pop()
        size += len(each) if isinstance(each, str) else 4
        if isinstance(each, dict):
            rest += each.values()
            size += sum(map(len, each))
        elif isinstance(each, list):
            rest += each
    return size
