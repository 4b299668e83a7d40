"""The leader's copy of a journal that is written on another machine, in the run's own directory: the same records.

Their times are by the leader's clock: by another one limits would act too soon or never. It is a prefix of the journal,
and all that is left of it once the place has been removed. One worker writes it at a time, whichever has the highest
epoch. Where the records come from must not live here.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

from activities.shim.client import JournalCorrupt, Record, RecordParser
from activities.shim.client.journal import begins
from activities.store.fence import Fence

_CHUNK = 256 * 1024
_HEADER = 512


class Mirror:
    """`replay` what is there, then `append` what follows it. Both raise Fenced, OSError."""

    def __init__(self, path: Path, epoch: int, clock_ms: int = 0) -> None:
        """Take the copy over from workers with lower epochs; it is made where there is none. Blocks.

        `clock_ms`: what is added to the times of what follows.

        Raises Fenced, OSError.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fence, self._clock_ms = Fence(path, epoch), clock_ms
        self._size = os.fstat(self._fence.descriptor).st_size
        self._fence.release()
        self.seq = self.offset = 0
        """The last record, and the byte after it."""

    async def replay(self, after: int, offset: int) -> AsyncGenerator[Sequence[Record], None]:
        """The records after this number, to the end of the copy. `offset`: the byte after it, where that is known."""
        descriptor = self._fence.descriptor
        if not begins(os.pread(descriptor, _HEADER, offset), after) and offset != self._size:
            offset = 0
        parser, place = RecordParser(after if offset else 0, offset), offset
        self.seq, self.offset = parser.seq, parser.offset
        while place < self._size:
            chunk = await asyncio.to_thread(os.pread, descriptor, min(_CHUNK, self._size - place), place)
            place += len(chunk)
            try:
                records = parser.feed(chunk)
            except JournalCorrupt:
                break  # what follows is had again from where it was written
            self.seq, self.offset = parser.seq, parser.offset
            if wanted := [record for record in records if record.seq > after]:
                yield wanted
            if not chunk:
                break
        self._cut(self.offset)

    def append(self, records: Sequence[Record]) -> Sequence[Record]:
        """Add these, which follow the last one; as they are there. None is of the future, whatever is said of it."""
        now = time.time_ns() // 1_000_000
        records = [replace(each, time_ms=min(max(each.time_ms + self._clock_ms, 0), now)) for each in records]
        data = b"".join(map(_bytes, records))
        with self._fence.held(self._size):
            view = memoryview(data)
            while view:
                written = os.write(self._fence.descriptor, view)
                view, self._size = view[written:], self._size + written
        self.seq, self.offset = records[-1].seq, self._size
        return records

    def close(self) -> None:
        self._fence.close()

    def _cut(self, size: int) -> None:
        """Drop a record that is not whole: its writer was killed."""
        if size < self._size:
            with self._fence.held(self._size):
                os.ftruncate(self._fence.descriptor, size)
                self._size = size


def has_end(path: Path) -> bool:
    """Whether the journal's last record says how the agent ended. Blocks."""
    parser, last = RecordParser(), ""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                for record in parser.feed(chunk):
                    last = record.stream
    except (OSError, JournalCorrupt):
        return False
    return last == "exit"


def _bytes(record: Record) -> bytes:
    head = f"{record.seq} {record.time_ms} {record.stream} {len(record.data)} {record.id or '-'}\n"
    return head.encode() + record.data + b"\n"
