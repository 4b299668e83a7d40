"""The event log of a run: one JSON line an event, numbered from 1, ended by exactly one terminal event.

It is derived from the journals of the agent's processes. Each line keeps its source (attempt, record, index), so a
worker that takes over feeds the journals again and only what is missing is added: nothing is lost or doubled. It may
have gigabytes: nobody reads it as a whole but who wants all events.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from activities import disk, lines
from activities.fence import Fence
from activities.ports import Fenced
from activities.shim.program.lock import take
from steersman.contracts.events import EVENT, TERMINAL_TYPES, EventBase, TerminalEvent, is_terminal
from steersman.contracts.run import LastEvent

Source = tuple[int, int, int]
"""Attempt, record number in its journal, index of the event within the record."""

END: Source = (1 << 62, 0, 0)
"""The source of the terminal event: after everything."""

LAST_WORDS_S = 6.0
"""How long a session that still writes is waited for when its log is to be ended."""
ENDINGS = 5
"""Tries to end a log that somebody else is ending or writing."""
RECOVERED = 4 * 1024 * 1024
"""Bytes at the end of a log that are looked through when it is taken over: what a crash of the machine may spoil."""
_NUMBER = re.compile(rb'\{"seq":(\d{1,18}),')


class EventLog:
    """The writing end, for one worker at a time: whoever opens it next fences off the writer before."""

    def __init__(self, path: Path, epoch: int | None = None) -> None:
        """Take the log over for a session; `epoch` None: for whoever had it last, as to end it.

        Blocks: see Fence. Raises Fenced where a session with a higher epoch has taken it over already, OSError.
        """
        self.seq = 0
        self.source: Source = (0, 0, 0)
        self.ended = False
        self._fence = Fence(path, epoch)
        try:
            self._size = self._recover()
            self._fence.release()
        except BaseException:
            self.close()
            raise

    @classmethod
    def take_over(cls, path: Path, epoch: int) -> "EventLog":
        """Open the log for a new session: what a worker that hangs still wants to write is refused, with Fenced."""
        log = cls(path, epoch)
        # Says that somebody writes here, for as long as this process lives and has not closed it.
        with suppress(BlockingIOError):  # it is being ended just now
            fcntl.flock(log._fence.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return log

    def close(self) -> None:
        self._fence.close()

    def append(self, attempt: int, record: int, events: Iterable[EventBase]) -> list[EventBase]:
        """Add what is not there yet; the events added, numbered. All of them or, with OSError or Fenced, none."""
        added: list[EventBase] = []
        data, last = bytearray(), self.source
        for index, event in enumerate(events):
            source = (attempt, record, index)
            if source <= self.source or self.ended:
                continue
            numbered = event.model_copy(update={"seq": self.seq + len(added) + 1, "attempt": attempt})
            data += _line(numbered, source)
            added.append(numbered)
            last = source
        if added:
            self._write(data)
            self.seq, self.source = self.seq + len(added), last
        return added

    def end(self, event: EventBase) -> None:
        """Close the log with its one terminal event; a second end changes nothing."""
        if self.ended:
            return
        self._write(_line(event.model_copy(update={"seq": self.seq + 1}), END))
        os.fsync(self._fence.descriptor)
        self.seq, self.ended = self.seq + 1, True

    def _write(self, data: bytes | bytearray) -> None:
        log = self._fence.descriptor
        with self._fence.held(self._size):
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(log, rest) :]
            except OSError:
                os.ftruncate(log, self._size)
                raise
            self._size += len(data)

    def _recover(self) -> int:
        """The size of the log, without what a worker that was killed in mid-write left torn: the journal has it."""
        with os.fdopen(os.dup(self._fence.descriptor), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            looked = RECOVERED
            while True:
                start = lines.begin_of(file, max(size - looked, 0))
                good = self._read_on(file, start)
                if good > start or start == 0:
                    break
                looked *= 4
        if good < size:
            os.ftruncate(self._fence.descriptor, good)
        return good

    def _read_on(self, file: BinaryIO, good: int) -> int:
        """Read whole lines from this byte on; the byte after the last that is sound."""
        file.seek(good)
        while (line := file.readline(lines.MAX_LINE)).endswith(b"\n") and not self.ended:
            try:
                facts = json.loads(line)
                seq, (attempt, record, index) = int(facts["seq"]), facts["source"]
                self.seq, self.source = seq, (int(attempt), int(record), int(index))
            except (ValueError, KeyError, TypeError, RecursionError):
                break
            self.ended = _is_end(facts)
            good += len(line)
        return good


def end_log(path: Path, event: EventBase, patience_s: float = LAST_WORDS_S) -> bool:
    """Close a log with its one terminal event, whoever else is about to; what it has of that kind stays.

    Whether it had none before. Waits so long for a session that is reading its agent's last words; one that hangs is
    fenced off. Blocks.
    """
    with os.fdopen(disk.open_regular(path, os.O_RDWR | os.O_CREAT), "rb") as file:
        take(file.fileno(), patience_s)
    for _ in range(ENDINGS):
        log = EventLog(path)
        try:
            ended = log.ended
            log.end(event)
        except Fenced:
            continue  # somebody has written, or ended it, in between
        else:
            return not ended
        finally:
            log.close()
    raise Fenced("others write into the event log again and again")


def terminal_event(path: Path) -> TerminalEvent | None:
    """The log's terminal event; None where it has none, or is not there. Raises OSError."""
    try:
        with os.fdopen(disk.open_regular(path), "rb") as file:
            line = lines.last_line(file)[1]
    except FileNotFoundError:
        return None
    if not _ends(line):
        return None
    event = EVENT.validate_json(line)
    return event if is_terminal(event) else None


def is_ended(path: Path) -> bool:
    """Whether the log has its terminal event."""
    return ended_at(path) is not None


def ended_at(path: Path) -> float | None:
    """Unix time at which the log got its terminal event; None where it has none, is not there, or is no file."""
    try:
        with os.fdopen(disk.open_regular(path), "rb") as file:
            return os.fstat(file.fileno()).st_mtime if _ends(lines.last_line(file)[1]) else None
    except OSError:
        return None


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

    Reads whole lines only, so it may run beside the writer, and little of what comes before `after`. Raises OSError.
    """
    if cursor.seq > after:
        cursor.seq = cursor.offset = 0
    events: list[Any] = []
    size, ended = 0, False
    with os.fdopen(disk.open_regular(path), "rb") as file:
        if cursor.seq < after:
            _approach(file, cursor, after)
        file.seek(cursor.offset)
        while (line := file.readline(lines.MAX_LINE)).endswith(b"\n"):
            if events and size + len(line) > max_bytes:
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


def _approach(file: BinaryIO, cursor: Cursor, after: int) -> None:
    """Move the cursor close before the event that comes after this number, by bisection."""
    passed = Cursor(cursor.seq, cursor.offset)

    def passes(line: bytes) -> bool:
        number = _number(line)
        if number <= after:
            passed.seq = number
        return number <= after

    try:
        passed.offset = lines.past(file, cursor.offset, passes)
    except ValueError:
        return  # no log of ours: it is read through
    cursor.seq, cursor.offset = passed.seq, passed.offset


def _number(line: bytes) -> int:
    """Raises ValueError."""
    found = _NUMBER.match(line)
    if found is None:
        raise ValueError("a line of the log has no number")
    return int(found[1])


def last_event(event: EventBase) -> LastEvent:
    """One line for the state and the Web UI."""
    body: dict[str, Any] = event.model_dump(mode="json")
    kind = str(body.get("type", ""))
    named = {"tool_use": "name", "tool_result": "text", "file_change": "path", "permission": "tool", "usage": "turns"}
    summary = str(body.get(named.get(kind, "text")) or body.get("message") or body.get("session_id") or kind)
    return LastEvent(seq=event.seq, type=kind, summary=summary.strip()[:200], time=event.time)
