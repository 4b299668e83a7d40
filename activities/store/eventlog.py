"""The event log of a run, as it is written: one JSON line an event, numbered from 1, ended by one terminal event.

It is derived from the journals of the agent's processes. Each line keeps its source (attempt, record, index), so a
worker that takes over feeds the journals again and adds only what is missing: nothing is lost or doubled.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from activities.ports.runtime import Fenced
from activities.shim.program.lock import take
from activities.store import disk, lines
from activities.store.event_lines import END, Source, encode, is_terminal_fields
from activities.store.fence import Fence
from activities.store.log_watch import written
from steersman.contracts.events import EventBase

LAST_WORDS_S = 6.0
"""Ending a log waits at most this many seconds for a worker that still writes it."""
MAX_TRIES = 5
"""Ending a log fails after this many tries in which another process was writing or ending it."""
RECOVERED = 4 * 1024 * 1024
"""A takeover looks through this many bytes at the log's end, which a crash of the machine may have spoilt."""


class EventLog:
    """The log's writer, one at a time: a worker that opens the log fences off the writer before it."""

    def __init__(self, path: Path, epoch: int | None = None) -> None:
        """Take the log over with this epoch; None: with the epoch that it has, in order to end it.

        Blocks: see Fence. Raises Fenced where a worker with a higher epoch has taken the log over already, OSError.
        """
        self.seq = 0
        self.source: Source = (0, 0, 0)
        self.ended = False
        self._path = path
        self._fence = Fence(path, epoch)
        try:
            self._size = self._recover()
            self._fence.release()
        except BaseException:
            self.close()
            raise

    @classmethod
    def take_over(cls, path: Path, epoch: int) -> "EventLog":
        """Open the log in order to lead the run: a worker that led it before, and only hung, is refused with Fenced."""
        log = cls(path, epoch)
        # Shows that the log has a writer, for as long as this process lives and has not closed the log.
        with suppress(BlockingIOError):  # another process is ending it
            fcntl.flock(log._fence.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return log

    def close(self) -> None:
        self._fence.close()

    def append(self, attempt: int, record: int, events: Iterable[EventBase]) -> list[EventBase]:
        """Add the events that the log lacks; returns them, numbered. With OSError or Fenced, none of them is added."""
        added: list[EventBase] = []
        data, last = bytearray(), self.source
        for index, event in enumerate(events):
            source = (attempt, record, index)
            if source <= self.source or self.ended:
                continue
            numbered = event.model_copy(update={"seq": self.seq + len(added) + 1, "attempt": attempt})
            data += encode(numbered, source)
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
        self._write(encode(event.model_copy(update={"seq": self.seq + 1}), END))
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
        written(self._path)

    def _recover(self) -> int:
        """Cut off a line that a killed worker left torn, as the journal has it; returns the log's size."""
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
        """Read whole lines from this byte on; returns the byte after the last sound line."""
        file.seek(good)
        while (line := file.readline(lines.MAX_LINE)).endswith(b"\n") and not self.ended:
            try:
                facts = json.loads(line)
                seq, (attempt, record, index) = int(facts["seq"]), facts["source"]
                self.seq, self.source = seq, (int(attempt), int(record), int(index))
            except (ValueError, KeyError, TypeError, RecursionError):
                break
            self.ended = is_terminal_fields(facts)
            good += len(line)
        return good


def end_log(path: Path, event: EventBase, patience_s: float = LAST_WORDS_S) -> bool:
    """Close a log with its one terminal event, unless it has one; returns whether it had none. Blocks.

    Waits for at most `patience_s` seconds for a worker that is still reading its agent's last words; one that hangs is
    fenced off.
    """
    with os.fdopen(disk.open_regular(path, os.O_RDWR | os.O_CREAT), "rb") as file:
        take(file.fileno(), patience_s)
    for _ in range(MAX_TRIES):
        log = EventLog(path)
        try:
            ended = log.ended
            log.end(event)
        except Fenced:
            continue  # another process has written to it, or ended it, in between
        else:
            return not ended
        finally:
            log.close()
    raise Fenced("others write into the event log again and again")
