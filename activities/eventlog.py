"""The event log of a run: one JSON line an event, numbered from 1, ended by exactly one terminal event.

It is derived from the journals of the agent's processes. Each line keeps its source (attempt, record, index), so a
worker that takes over feeds the journals again and only what is missing is added: nothing is lost or doubled.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from activities import disk
from activities.ports import Fenced
from steersman.contracts.events import EVENT, TERMINAL_TYPES, EventBase
from steersman.contracts.run import LastEvent

Source = tuple[int, int, int]
"""Attempt, record number in its journal, index of the event within the record."""

END: Source = (1 << 62, 0, 0)
"""The source of the terminal event: after everything."""

_BLOCK = 64 * 1024


class EventLog:
    """The writing end, for one worker at a time: whoever opens it next makes the writer before harmless."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.fdopen(disk.open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b")
        self.seq = 0
        self.source: Source = (0, 0, 0)
        self.ended = False
        self._recover()

    @classmethod
    def take_over(cls, path: Path, epoch: int) -> "EventLog":
        """Open the log for a new session. What a worker that hangs still writes goes into a file nobody reads.

        Raises Fenced where a session with a higher epoch has taken it over already.
        """
        with _locked(path.with_suffix(".epoch")) as owner:
            newest = int(owner.read() or 0)
            if epoch < newest:
                raise Fenced(f"session {newest} has taken over from session {epoch}")
            if os.path.lexists(path):
                copy = path.with_suffix(".copy")
                copy.unlink(missing_ok=True)
                with (
                    os.fdopen(disk.open_regular(path), "rb") as old,
                    os.fdopen(disk.open_regular(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as new,
                ):
                    shutil.copyfileobj(old, new)
                copy.replace(path)
            owner.seek(0)
            owner.write(str(epoch))
            owner.truncate()
            return cls(path)

    def close(self) -> None:
        self._file.close()

    def append(self, attempt: int, record: int, events: Iterable[EventBase]) -> list[EventBase]:
        """Add what is not there yet; the events added, numbered."""
        lines, added = [], []
        for index, event in enumerate(events):
            source = (attempt, record, index)
            if source <= self.source or self.ended:
                continue
            self.seq, self.source = self.seq + 1, source
            numbered = event.model_copy(update={"seq": self.seq, "attempt": attempt})
            lines.append(_line(numbered, source))
            added.append(numbered)
        if lines:
            self._file.write(b"".join(lines))
            self._file.flush()
        return added

    def end(self, event: EventBase) -> None:
        """Close the log with its one terminal event; a second end changes nothing."""
        if self.ended:
            return
        self.seq += 1
        self._file.write(_line(event.model_copy(update={"seq": self.seq}), END))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.ended = True

    def _recover(self) -> None:
        # A worker killed in mid-write leaves a torn last line; it is written anew from the journal.
        good = 0
        for line in self._file:
            try:
                if not line.endswith(b"\n") or self.ended:
                    break
                facts = json.loads(line)
                self.seq, self.source = int(facts["seq"]), tuple(facts["source"])
                self.ended = _is_end(facts)
            except (ValueError, KeyError, TypeError):
                break
            good += len(line)
        self._file.truncate(good)
        self._file.seek(good)


@contextmanager
def _locked(path: Path) -> Iterator[TextIO]:
    with os.fdopen(disk.open_regular(path, os.O_RDWR | os.O_CREAT), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_ended(path: Path) -> bool:
    """Whether the log has its terminal event."""
    return ended_at(path) is not None


def ended_at(path: Path) -> float | None:
    """Unix time at which the log got its terminal event; None where it has none, is not there, or is no file."""
    try:
        with os.fdopen(disk.open_regular(path), "rb") as file:
            return os.fstat(file.fileno()).st_mtime if _ends(_last_line(file)) else None
    except OSError:
        return None


def _last_line(file: BinaryIO) -> bytes:
    """The last line that is complete, read backwards if it ends as a terminal event does; else only its end."""
    start = file.seek(0, os.SEEK_END)
    found = b""
    while start > 0:
        size = min(_BLOCK, start)
        start = file.seek(start - size)
        found = file.read(size) + found
        stop = found.rfind(b"\n") + 1
        begin = found.rfind(b"\n", 0, max(stop - 1, 0)) + 1
        if begin or (stop and not found.endswith(_END_SUFFIX, 0, stop)):
            return found[begin:stop]
    return found[: found.rfind(b"\n") + 1]


def _ends(line: bytes) -> bool:
    """Whether a whole line is the terminal event."""
    if not line.endswith(_END_SUFFIX):
        return False
    try:
        return _is_end(json.loads(line))
    except (ValueError, RecursionError):
        return False


def _is_end(facts: Any) -> bool:
    # By its own fields: what an agent puts into an event is an object further in, however it is called.
    return isinstance(facts, dict) and facts.get("type") in TERMINAL_TYPES and facts.get("source") == list(END)


def _line(event: EventBase, source: Source) -> bytes:
    # Pydantic writes NaN and infinity as null: whatever an agent says, each line is JSON.
    body = event.model_dump_json().encode()
    return body[:-1] + _suffix(source)


def _suffix(source: Source) -> bytes:
    return b',"source":%s}\n' % json.dumps(source, separators=(",", ":")).encode()


_END_SUFFIX = _suffix(END)
"""How the terminal event's line ends. Necessary, and not enough: see _is_end."""


@dataclass
class Cursor:
    """A reader's place in a log: the byte after event `seq`."""

    seq: int = 0
    offset: int = 0


def read(path: Path, cursor: Cursor, after: int, max_bytes: int) -> tuple[list[Any], bool]:
    """Events numbered above `after`, up to about max_bytes of them, and whether the last is terminal; moves the cursor.

    Reads whole lines only, so it may run beside the writer. Raises OSError.
    """
    if cursor.seq > after:
        cursor.seq = cursor.offset = 0
    events: list[Any] = []
    size, ended = 0, False
    with os.fdopen(disk.open_regular(path), "rb") as file:
        file.seek(cursor.offset)
        for line in file:
            if not line.endswith(b"\n") or (events and size + len(line) > max_bytes):
                break
            cursor.seq, cursor.offset = cursor.seq + 1, cursor.offset + len(line)
            if cursor.seq <= after:
                ended = _ends(line)  # a terminal event that the reader has already is still the end
                continue
            event = EVENT.validate_json(line)
            events.append(event)
            size += len(line)
            ended = _ends(line)
            if ended:
                break
    return events, ended


def last_event(event: EventBase) -> LastEvent:
    """One line for the state and the Web UI."""
    body: dict[str, Any] = event.model_dump(mode="json")
    kind = str(body.get("type", ""))
    named = {"tool_use": "name", "tool_result": "text", "file_change": "path", "permission": "tool", "usage": "turns"}
    summary = str(body.get(named.get(kind, "text")) or body.get("message") or body.get("session_id") or kind)
    return LastEvent(seq=event.seq, type=kind, summary=summary.strip()[:200], time=event.time)
