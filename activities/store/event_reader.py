"""Reading of event logs, beside whoever writes them: pages of events, and how a log ends. Nothing is written here.

A log may have gigabytes: only a reader that wants all events reads all of it.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic import TypeAdapter

from activities.store import disk, lines
from activities.store.event_lines import event_json, is_terminal_line, number_of
from steersman.contracts.events import EVENT, TerminalEvent, UsageEvent, is_terminal
from steersman.contracts.model import TolerantModel
from steersman.contracts.run import RunProgress

MAX_TAIL: Final = 4 * 1024 * 1024
"""Only this many bytes of a log's end are looked at for what was said or consumed last."""


class _Numbered(TolerantModel):
    """Of an event its number alone, which is found soon."""

    seq: int


_NUMBERED: Final = TypeAdapter(list[_Numbered])


def terminal_event(path: Path) -> TerminalEvent | None:
    """The log's terminal event; None where the log has none, or is not there. Raises OSError."""
    try:
        with os.fdopen(disk.open_regular(path), "rb") as file:
            line = lines.last_line(file)[1]
    except FileNotFoundError:
        return None
    if not is_terminal_line(line):
        return None
    event = EVENT.validate_json(line)
    return event if is_terminal(event) else None


def tail(path: Path) -> list[bytes]:
    """The log's last lines, as many as have MAX_TAIL bytes, without one that is cut. Raises OSError."""
    with os.fdopen(disk.open_regular(path), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - MAX_TAIL, 0))
        return file.read(MAX_TAIL).split(b"\n")[1 if size > MAX_TAIL else 0 :]


def consumption(path: Path) -> RunProgress | None:
    """What the run has consumed by its log's newest event that says so; None where its end has none. Raises OSError."""
    for line in reversed(tail(path)):
        if b'"usage"' not in line:
            continue
        try:
            event = EVENT.validate_json(line)
        except ValueError:
            continue
        if isinstance(event, UsageEvent) and math.isfinite(event.cost_usd):
            return RunProgress(usage=event.usage, cost_usd=event.cost_usd, turns=event.turns)
    return None


def is_ended(path: Path) -> bool:
    """Whether the log has its terminal event."""
    return ended_at(path) is not None


def ended_at(path: Path) -> float | None:
    """Unix time at which the log got its terminal event; None where it has none, is not there, or is no file.

    Raises OSError where no descriptors are left.
    """
    try:
        with os.fdopen(disk.open_regular(path), "rb") as file:
            return os.fstat(file.fileno()).st_mtime if is_terminal_line(lines.last_line(file)[1]) else None
    except OSError as error:
        if disk.exhaustion(error):
            raise
        return None


@dataclass
class Cursor:
    """A reader's position in a log: the byte after event `seq`."""

    seq: int = 0
    offset: int = 0


def read(path: Path, cursor: Cursor, after: int, max_bytes: int) -> tuple[list[Any], bool]:
    """Events numbered above `after`, up to about max_bytes of them, and whether the last is terminal; moves the cursor.

    Reads whole lines only, so it may run beside the writer, and little of what comes before `after`.

    Raises: OSError; ValueError where a line is no event.
    """
    found, ended = _lines(path, cursor, after, max_bytes)
    return [EVENT.validate_json(line) for line in found], ended


def read_json(path: Path, cursor: Cursor, after: int, max_bytes: int) -> tuple[list[bytes], bool]:
    """As `read`, each event as its JSON, which takes a third of the time. That it is an event has to be looked at where
    it is read: here it is JSON with a number.
    """
    found, ended = _lines(path, cursor, after, max_bytes)
    try:
        texts = [event_json(line) for line in found]
        array = b"[%s]" % b",".join(texts)
        if b"NaN" in array or b"Infinity" in array or len(_NUMBERED.validate_json(array)) != len(texts):
            raise ValueError("lines of the log are not as a worker writes them")
    except ValueError:
        # What is an event all the same is written anew; of what is not, this says why.
        texts = [EVENT.dump_json(EVENT.validate_json(line)) for line in found]
    return texts, ended


def page_end(path: Path, cursor: Cursor, max_bytes: int) -> Cursor | None:
    """Where a page of max_bytes that begins at the cursor ends; None where the log does not fill it. Raises OSError."""
    with os.fdopen(disk.open_regular(path), "rb") as file:
        file.seek(cursor.offset)
        data = file.read(max_bytes + 1)
    whole = data.rfind(b"\n", 0, max_bytes) + 1
    if len(data) <= max_bytes or not whole:
        return None
    return Cursor(cursor.seq + data.count(b"\n", 0, whole), cursor.offset + whole)


def _lines(path: Path, cursor: Cursor, after: int, max_bytes: int) -> tuple[list[bytes], bool]:
    if cursor.seq > after:
        cursor.seq = cursor.offset = 0
    found: list[bytes] = []
    size, ended = 0, False
    with os.fdopen(disk.open_regular(path), "rb") as file:
        if cursor.seq < after:
            _approach(file, cursor, after)
        file.seek(cursor.offset)
        while (line := file.readline(lines.MAX_LINE)).endswith(b"\n"):
            if found and size + len(line) > max_bytes:
                break
            cursor.seq, cursor.offset = cursor.seq + 1, cursor.offset + len(line)
            if cursor.seq <= after:
                ended = is_terminal_line(line)  # a terminal event that the reader has already is still the end
                continue
            found.append(line)
            size += len(line)
            ended = is_terminal_line(line)
            if ended:
                break
    return found, ended


def _approach(file: BinaryIO, cursor: Cursor, after: int) -> None:
    """Move the cursor close before the event that follows this number, by bisection."""
    passed = Cursor(cursor.seq, cursor.offset)

    def passes(line: bytes) -> bool:
        number = number_of(line)
        if number <= after:
            passed.seq = number
        return number <= after

    try:
        passed.offset = lines.past(file, cursor.offset, passes)
    except ValueError:
        return  # not written by a worker: it is read from where the cursor stands
    cursor.seq, cursor.offset = passed.seq, passed.offset
