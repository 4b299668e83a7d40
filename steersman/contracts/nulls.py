"""`null` in a request: an absent field, as clients of languages send it that have no other word for a list or a map
without a value.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

Models = tuple[type[BaseModel], ...]
"""Those that a value may be one of."""


def without_nulls(models: Models, value: Any) -> Any:
    """The same without the fields that are null and may not be, at any depth. What is no object stays as it is."""
    if isinstance(value, list):
        return [without_nulls(models, each) for each in value]
    if not models or not isinstance(value, Mapping):
        return value
    fields = _fields(models)
    told = {}
    for name, each in value.items():
        takes_null, inner = fields.get(name, (True, ()))
        if each is not None or takes_null:
            told[name] = without_nulls(inner, each)
    return told


@cache
def _fields(models: Models) -> dict[str, tuple[bool, Models]]:
    """Of each field of any of them, by the name on the wire: whether null is one of its values, and which objects."""
    found: dict[str, tuple[bool, Models]] = {}
    for model in models:
        for name, field in model.model_fields.items():
            kinds = tuple(_kinds(field.annotation))
            takes_null = any(kind in (type(None), Any) for kind in kinds)
            inner = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
            known = found.get(field.alias or name, (False, ()))
            found[field.alias or name] = (takes_null or known[0], (*known[1], *inner))
    return found


def _kinds(annotation: Any) -> Iterator[Any]:
    """What a value of this type may be, and what a list of this type may have."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _kinds(each)
    elif origin in (tuple, list):
        yield from (
            kind for kind in _kinds(get_args(annotation)[0]) if isinstance(kind, type) and kind is not type(None)
        )
    else:
        yield annotation
