"""JSON of hostile origin: parsed, and its fields read, without trusting any of it.

Agents and files in a workspace may be confused or hostile: every field is looked at before it is used, texts are
bounded, and whatever is wrong becomes an empty value or a ValueError. What a field means must not live here.
"""

import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from steersman.contracts.events import MAX_TEXT
from steersman.contracts.model import JsonObject

MAX_NAME = 200
"""A name or an id is cut at this many characters."""
MAX_NODES = 10_000
"""`bounded` keeps this many values: together with its text less than Temporal's 2 MiB."""
MAX_VALUES = 4_000_000
"""`parse_limited` takes a text of at most this many values: they take much more room than their text."""
_MAX_COUNT = 1 << 53
_MAX_TIME = 253_402_300_800
"""The end of the year 9999, in seconds since 1970."""
_MAX_DEPTH = 20
_MAX_NESTING = 100
_MAX_MEMBERS = 1000
_MAX_KEY = 500
_MAX_BITS = 64

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


# ---- parsing


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError alone, also for nesting that is too deep."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def parse_limited(data: bytes) -> Any:
    """The value of a JSON text that may be long. Raises ValueError for one of too many values, too."""
    if sum(data.count(each) for each in (b",", b"[", b"{")) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
    return parse_value(data)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The object of a JSON text. Raises ValueError."""
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - whatever is wrong with a JSON text is a ValueError
    return value


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object of a line of UTF-8 JSON, encodable as UTF-8; None for anything else.

    Bytes that are no UTF-8 become replacement characters: the rest of what an agent said is worth having.
    """
    text = line.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text, parse_constant=str)  # NaN and Infinity, which only Python writes, become texts
        if not isinstance(value, dict):
            return None
        return _encodable(value) if _SURROGATE.search(line) else value
    except (ValueError, RecursionError):
        return None


def parse_value(line: bytes) -> Any:
    """The value of a line of UTF-8 JSON, encodable as UTF-8, its numbers finite. Raises ValueError, which says why."""
    text = line.decode()
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    rest, depth = [value], 0
    while rest:
        if any(isinstance(each, float) and not math.isfinite(each) for each in rest):
            raise ValueError("it has a number that is too large")
        depth += 1
        if depth > _MAX_NESTING:
            raise ValueError("it is nested too deeply")
        rest = [inner for each in rest for inner in _members(each)]
    return _encodable(value) if _SURROGATE.search(line) else value


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _encodable(value: Any) -> Any:
    """The value without lone surrogates, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


# ---- fields


def object_at(value: Any, *names: str) -> dict[str, Any]:
    """The object at this path of fields; an empty one if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A text from a string, a list of content blocks, or anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(text_of(block.get("text", "")) for block in value if isinstance(block, dict))
    return "" if value is None else str(value)


def shown_text(content: Any) -> str:
    """The text of a tool's result, in which each image is named: one without a word would look like nothing."""
    if not isinstance(content, list):
        return text_of(content)
    return "\n".join("[image]" if each.get("type") == "image" else text_of([each]) for each in objects_in(content))


def name_of(value: Any) -> str | None:
    """A name or an id, cut at MAX_NAME; None if it is no string or empty."""
    return value[:MAX_NAME] if isinstance(value, str) and value else None


def count_of(value: Any) -> int:
    """A count; 0 if it is no number, negative or absurdly large."""
    return int(value) if _is_number(value) and 0 <= value < _MAX_COUNT else 0


def number_of(value: Any) -> float:
    """An amount; 0 if it is no number, negative or absurdly large."""
    return float(value) if _is_number(value) and 0 <= value < _MAX_COUNT else 0.0


def time_of(value: Any) -> datetime | None:
    """A time from seconds since 1970; None if it is no number or out of range."""
    return datetime.fromtimestamp(value, UTC) if _is_number(value) and 0 < value < _MAX_TIME else None


def _is_number(value: Any) -> bool:
    """Whether this is a JSON number: True and False are ints to Python alone."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# ---- bounds


def bounded(value: Any, limit: int = MAX_TEXT) -> JsonObject:
    """The value as an object with long strings cut, so that one Write of a huge file does not fill the log.

    Whatever is left out is said: somebody may be asked whether all of it may be done.

    A string has at most `limit` characters, all together four times that and at most MAX_TEXT; values MAX_NODES.
    """
    result = _Bounds(limit).cut(value, 0)
    return result if isinstance(result, dict) else {"value": result}


class _Bounds:
    """What is left of them while a value is cut."""

    def __init__(self, limit: int) -> None:
        self._limit, self._room, self._nodes = limit, min(4 * limit, MAX_TEXT), MAX_NODES

    def cut(self, item: Any, depth: int) -> Any:
        self._nodes -= 1
        if isinstance(item, str):
            return self._text(item, self._limit)
        if isinstance(item, dict | list):
            return self._members(item, depth) if depth <= _MAX_DEPTH and self._nodes >= 0 else "…"
        if isinstance(item, bool) or item is None:
            return item
        if isinstance(item, int) and item.bit_length() > _MAX_BITS:
            return self._text(str(item), self._limit)
        return item if isinstance(item, int | float) and math.isfinite(item) else str(item)

    def _members(self, item: dict[Any, Any] | list[Any], depth: int) -> Any:
        most = min(_MAX_MEMBERS, self._nodes)
        most = len(item) if len(item) <= most else max(most - 1, 0)  # and one that says how many are left out
        if isinstance(item, list):
            some = [self.cut(each, depth + 1) for each in item[:most]]
            return some if most == len(item) else [*some, f"… ({len(item) - most} more)"]
        kept = {self._text(str(key), _MAX_KEY): self.cut(each, depth + 1) for key, each in islice(item.items(), most)}
        return kept if len(kept) == len(item) else {**kept, "…": f"… ({len(item) - len(kept)} more)"}

    def _text(self, item: str, longest: int) -> str:
        most = min(longest, self._room)
        if len(item) > most:
            cut_off = f"… ({len(item)} characters)"
            item = item[: max(most - len(cut_off), 0)] + cut_off  # no longer than before: bounded again it is the same
        self._room = max(self._room - len(item), 0)
        return item
