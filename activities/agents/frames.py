"""Frames: the output of an agent that writes one JSON object a line. What a frame means must not live here."""

from typing import Any

from activities.ports.runtime import MAX_LINE
from activities.untrusted_json import parse_line

MAX_VALUES = 250_000
"""A frame of more values, counted by its punctuation, is not parsed: each value takes memory and time."""

Frame = dict[str, Any]


class TooMuch(ValueError):
    """A frame is larger than any that is honestly meant: it is left out, and the reason becomes an event."""


def parse_frame(line: bytes) -> Frame | None:
    """The frame in a line of output; None for what is no JSON object (debug output of some builds). Raises TooMuch."""
    if len(line) >= MAX_LINE:
        raise TooMuch(f"the line has {MAX_LINE // 1024 // 1024} MiB or more")
    if line.count(b",") + line.count(b"[") + line.count(b"{") > MAX_VALUES:
        raise TooMuch(f"it holds more than {MAX_VALUES} values")
    return parse_line(line)
