"""Snapshots of what a worker has made of a process's journal, so that the next one needs not read gigabytes again.

Derived, like the event log, and a hint: one that is missing, torn, of another version or ahead of the log costs the
time to read the journal from its first record. The agent's user can write the file, as the journal itself.
"""

import asyncio
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from activities.ports.agent import MAX_SNAPSHOT, Transcript
from activities.ports.runtime import Channel
from activities.store import disk

INTERVAL = 2 * 1024 * 1024
"""Bytes of journal from one snapshot to the next: read again within a second at a takeover."""
SPARSE = 8
"""So many times as much journal as snapshot is written at least."""
_MAX_HEAD = 256 * 1024

_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Moment = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]


class Snapshot(BaseModel):
    """Where a process stood after a record of its journal. The transcript's own part follows on a line of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    record: _Count
    """The last record that was fed."""
    entry: tuple[_Count, _Count]
    """A record up to that one, and the byte after it: where the journal is entered."""
    source: tuple[_Count, _Count, _Count]
    """Of the log's last event then: a log that a crash of the machine has cut shorter needs the records again."""
    first_ms: _Count = 0
    """When the process began, in milliseconds since 1970; 0 where nobody knows."""
    last_word: _Moment
    ended_at: _Moment | None
    stderr: tuple[Annotated[str, Field(max_length=2000)], ...] = Field(max_length=20)


class Snapshots:
    """The newest snapshot of one process, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at, self._step = 0, INTERVAL
        self._writing: asyncio.Task[None] | None = None

    async def restored(
        self, make: Callable[[], Transcript], channel: Channel, source: tuple[int, int, int]
    ) -> tuple[Transcript, Snapshot | None]:
        """A transcript as the newest snapshot has it; with None a new one, for which the journal is read from its
        beginning. `source`: of the log's last event.
        """
        found = await asyncio.to_thread(self._read)
        transcript = make()
        if found is None or found[0].source > source or not channel.may_enter(found[0].record):
            return transcript, None
        snapshot, state = found
        try:
            await asyncio.to_thread(transcript.restore, state)
        except ValueError:
            return make(), None
        self._at = snapshot.entry[1]
        return transcript, snapshot

    def due(self, offset: int) -> bool:
        """Whether so much of the journal has been read since the last one that it is time for another."""
        return offset - self._at >= self._step and (self._writing is None or self._writing.done())

    def put(self, snapshot: Snapshot, state: bytes | None) -> None:
        """Write it beside the loop; None: it would be too large."""
        size = len(state) if state is not None else MAX_SNAPSHOT
        self._at, self._step = snapshot.entry[1], max(INTERVAL, SPARSE * size)
        if state is not None:
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, snapshot, state))

    async def put_last(self, snapshot: Snapshot, state: bytes | None) -> None:
        """The process has ended: of a journal that is read again quickly none is needed."""
        if snapshot.entry[1] - self._at >= INTERVAL // SPARSE:
            await self.close()
            self.put(snapshot, state)

    async def close(self) -> None:
        """Wait for what is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def discard(self) -> None:
        """Whoever comes next reads the journal from its beginning."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[Snapshot, bytes] | None:
        try:
            with os.fdopen(disk.open_regular(self._path), "rb") as file:
                head, state = file.readline(_MAX_HEAD), file.read(MAX_SNAPSHOT + 1)
            return (Snapshot.model_validate_json(head), state) if len(state) <= MAX_SNAPSHOT else None
        except (OSError, ValueError):
            return None

    def _write(self, snapshot: Snapshot, state: bytes) -> None:
        """At once or not at all. A disk that is full costs the next takeover time, and nobody anything now."""
        fresh = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                with os.fdopen(disk.open_regular(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                    file.write(snapshot.model_dump_json().encode() + b"\n" + state)
                fresh.replace(self._path)
            finally:
                fresh.unlink(missing_ok=True)
        except OSError:
            pass
