"""The form of a line of an event log, which its writer and its readers share. Files must not be opened here."""

import json
import re
from typing import Any

from steersman.contracts.events import TERMINAL_TYPES, EventBase

Source = tuple[int, int, int]
"""Attempt, record number in its journal, index of the event within the record."""

END: Source = (1 << 62, 0, 0)
"""The source of the terminal event: after everything."""

_NUMBER = re.compile(rb'\{"seq":(\d{1,18}),')
_SOURCE = re.compile(rb',"source":\[\d{1,19},\d{1,19},\d{1,19}\]\}\n')


def encode(event: EventBase, source: Source) -> bytes:
    """The event as a line of the log."""
    # Pydantic writes NaN and infinity as null: whatever an agent says, each line is JSON.
    body = event.model_dump_json().encode()
    return body[:-1] + _suffix(source)


def is_terminal_line(line: bytes) -> bool:
    """Whether a whole line is the terminal event."""
    if not line.endswith(_END_SUFFIX):
        return False
    try:
        return is_terminal_fields(json.loads(line))
    except (ValueError, RecursionError):
        return False


def is_terminal_fields(fields: Any) -> bool:
    """Whether a line's JSON is the terminal event."""
    # By its own fields: what an agent puts into an event is an object further in, however it is called.
    return isinstance(fields, dict) and fields.get("type") in TERMINAL_TYPES and fields.get("source") == list(END)


def number_of(line: bytes) -> int:
    """The event's number, without parsing the line. Raises ValueError."""
    found = _NUMBER.match(line)
    if found is None:
        raise ValueError("a line of the log has no number")
    return int(found[1])


def event_json(line: bytes) -> bytes:
    """The event's own JSON, without parsing the line. Raises ValueError."""
    # The last source: whatever an agent puts into an event stands before it.
    end = line.rfind(b',"source":')
    if end < 0 or _SOURCE.fullmatch(line, end) is None:
        raise ValueError("a line of the log has no source")
    return line[:end] + b"}"


def _suffix(source: Source) -> bytes:
    return b',"source":%s}\n' % json.dumps(source, separators=(",", ":")).encode()


_END_SUFFIX = _suffix(END)
"""How the terminal event's line ends. Necessary, and not enough: see is_terminal_fields."""
