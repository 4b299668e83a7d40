"""Snapshots of a process's transcript, so that the next worker need not read gigabytes of journal again.

Derived, like the event log, and a hint: a snapshot that is missing, torn, of another version or ahead of the log costs
the time to read the journal from its first record. The agent's user can write the file, as the journal itself.
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
"""A snapshot is taken each time this many bytes of journal were read: a takeover reads them again within a second."""
SPARSE = 8
"""From one snapshot to the next, the journal grows by at least this many times the snapshot's size."""
_MAX_HEAD = 256 * 1024

_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Moment = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]


class Snapshot(BaseModel):
    """Where a process stood after a record of its journal. The transcript's own part follows on a line of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    record: _Count
    """The number of the last record that the transcript was fed."""
    entry: tuple[_Count, _Count]
    """A record up to that one, and the byte after it: where the journal is entered."""
    source: tuple[_Count, _Count, _Count]
    """The source of the log's last event then: a log cut shorter by a crash of the machine needs the records again."""
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
        """The transcript of the newest snapshot, and the snapshot; or a new transcript and None.

        `source` is that of the log's last event.
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
        """Whether it is time for another snapshot. `offset`: how far the journal has been read, in bytes."""
        return offset - self._at >= self._step and (self._writing is None or self._writing.done())

    def put(self, snapshot: Snapshot, state: bytes | None) -> None:
        """Write the snapshot beside the event loop; `state` None: it would be too large."""
        size = len(state) if state is not None else MAX_SNAPSHOT
        self._at, self._step = snapshot.entry[1], max(INTERVAL, SPARSE * size)
        if state is not None:
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, snapshot, state))

    async def put_last(self, snapshot: Snapshot, state: bytes | None) -> None:
        """Write the last snapshot of a process that has ended, unless the rest of its journal is read again quickly."""
        if snapshot.entry[1] - self._at >= INTERVAL // SPARSE:
            await self.close()
            self.put(snapshot, state)

    async def close(self) -> None:
        """Wait for the snapshot that is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def discard(self) -> None:
        """Remove the snapshot: the next worker reads the journal from its first record."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[Snapshot, bytes] | None:
        try:
            with os.fdopen(disk.open_regular(self._path), "rb") as file:
                head, state = file.readline(_MAX_HEAD), file.read(MAX_SNAPSHOT + 1)
            return (Snapshot.model_validate_json(head), state) if len(state) <= MAX_SNAPSHOT else None
        except (OSError, ValueError):
            return None

    def _write(self, snapshot: Snapshot, state: bytes) -> None:
        """Write the file whole or not at all. A full disk costs the next takeover time, and this worker nothing."""
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
