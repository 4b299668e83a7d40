r"""A shim's journal as records and lines.

A record is `<seq> <unix_ms> <stream> <length> <id or ->\n<bytes>\n`, in the file and on the wire. This module turns
bytes into records and pieces into lines. What must not live here: where the bytes come from, and what they mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from activities.shim.client.errors import JournalCorrupt

Stream = Literal["out", "err", "out+", "err+", "in", "eof", "exit"]

LINE_LIMIT = 64 * 1024 * 1024
_HEADER = re.compile(rb"(\d{1,19}) (\d{1,19}) (out\+?|err\+?|in|eof|exit) (\d{1,12}) ([!-~]{1,200})\n")
_HEADER_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened to the agent.

    Attributes:
        seq: counted from 1 without gaps.
        time_ms: when the shim saw it, in milliseconds since 1970 UTC.
        stream: `out` and `err` are lines of output without their newline, `out+` and `err+` pieces of a longer one;
            `in` is what was written to stdin; `eof` says that stdin was closed; `exit`, always the last, holds JSON.
        data: the bytes, of any encoding or none.
        id: the id of the command that caused it, empty where there was none.
    """

    seq: int
    time_ms: int
    stream: Stream
    data: bytes
    id: str


class RecordParser:
    """Turns chunks of any size into records; a record that is not complete waits for its rest."""

    def __init__(self, after: int = 0, offset: int = 0) -> None:
        """`offset`: where in the journal the first chunk begins."""
        self.seq = after
        self.offset = offset
        self._buffer = bytearray()
        self._missing = 0

    def feed(self, chunk: bytes) -> list[Record]:
        """The records that are complete now and come after `seq`; raises JournalCorrupt."""
        buffer = self._buffer
        buffer += chunk
        self._missing -= len(chunk)
        if self._missing > 0:
            return []
        records: list[Record] = []
        start = 0
        while found := _HEADER.match(buffer, start):
            begin = found.end()
            end = begin + int(found[4])
            if len(buffer) <= end:
                self._missing = end + 1 - len(buffer)
                break
            if buffer[end] != 0x0A:
                raise JournalCorrupt(f"the record after {self.seq} does not end where it says")
            seq = int(found[1])
            if seq == self.seq + 1:
                ident = found[5].decode()
                stream = cast("Stream", found[3].decode())
                data = bytes(buffer[begin:end])
                records.append(Record(seq, int(found[2]), stream, data, "" if ident == "-" else ident))
                self.seq = seq
            elif seq > self.seq:
                raise JournalCorrupt(f"after record {self.seq} comes {seq}")
            start = end + 1
        else:
            if len(buffer) - start > _HEADER_LIMIT or b"\n" in buffer[start:]:
                raise JournalCorrupt(f"after record {self.seq} comes what is no record")
        del buffer[:start]
        self.offset += start
        return records


def begins(header: bytes, after: int) -> bool:
    """Whether the record after this one begins with these bytes."""
    found = _HEADER.match(header)
    return found is not None and int(found[1]) == after + 1


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the agent's output, however long.

    Attributes:
        seq: of the last record that it was made of: a reader that has done with the line goes on after this.
        first_seq: of the first one.
        time_ms: when it was complete.
        stream: which of the two outputs.
        data: without the newline.
        truncated: whether the line was longer than the limit, and its rest is not here.
    """

    seq: int
    first_seq: int
    time_ms: int
    stream: Literal["out", "err"]
    data: bytes
    truncated: bool


class _Pieces:
    def __init__(self) -> None:
        self.first_seq = 0
        self.data = bytearray()
        self.truncated = False


class LineJoiner:
    """Joins the pieces of long lines. A line over `limit` bytes is cut there, and says so."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._open: dict[str, _Pieces] = {}

    def push(self, record: Record) -> Line | None:
        """The line that this record completes, if it does; records that are no output complete none."""
        if record.stream in {"out+", "err+"}:
            self._add(record)
            return None
        if record.stream not in {"out", "err"}:
            return None
        if record.stream in self._open or len(record.data) > self._limit:
            self._add(record)
            return self._close(record.stream, record)
        return Line(record.seq, record.seq, record.time_ms, record.stream, record.data, truncated=False)

    def _add(self, record: Record) -> None:
        pieces = self._open.setdefault(record.stream.rstrip("+"), _Pieces())
        pieces.first_seq = pieces.first_seq or record.seq
        room = self._limit - len(pieces.data)
        pieces.data += record.data[:room]
        pieces.truncated = pieces.truncated or len(record.data) > room

    def _close(self, stream: str, last: Record) -> Line:
        pieces = self._open.pop(stream)
        name = cast("Literal['out', 'err']", stream)
        return Line(last.seq, pieces.first_seq, last.time_ms, name, bytes(pieces.data), pieces.truncated)
