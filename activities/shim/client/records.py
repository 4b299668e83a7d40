"""A shim's journal, live or afterwards: from the socket while the shim lives, from the file when it is gone.

What must not live here: what the records mean.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from io import FileIO
from pathlib import Path
from typing import Literal

from activities.shim.client.dialing import ask, dial
from activities.shim.client.errors import JournalCorrupt, ShimGone
from activities.shim.client.journal import Record, RecordParser, begins

_CHUNK = 256 * 1024
_HEADER = 512


class RecordStream(AsyncIterator[Record]):
    """The records after a sequence number, each once, to the end.

    Iterating raises Fenced, ProtocolMismatch, ShimUnresponsive and JournalCorrupt, and ShimGone where there is neither
    a shim nor a journal. Leave it early with `aclose`.

    Attributes:
        ending: None while there may be more; then "exit" after the agent's `exit` record, or "crash" where the shim
            died without one (its agent died with it).
        offset: the byte of the journal after the records that were handed out by `batch`.
    """

    def __init__(self, directory: str | os.PathLike[str], after: int, epoch: int | None, offset: int = 0) -> None:
        self.ending: Literal["exit", "crash"] | None = None
        self._directory = directory
        self._epoch = epoch
        self._seq = after
        self.offset = offset
        self._exited = False
        self._ready: deque[Record] = deque()
        self._source = self._batches()

    def __aiter__(self) -> RecordStream:
        return self

    async def __anext__(self) -> Record:
        if not self._ready and not await self._more():
            raise StopAsyncIteration
        return self._ready.popleft()

    async def batch(self) -> list[Record]:
        """All that is there now, at least one; empty at the end. For readers that write many at once."""
        if not self._ready:
            await self._more()
        records = list(self._ready)
        self._ready.clear()
        return records

    async def aclose(self) -> None:
        await self._source.aclose()

    async def _more(self) -> bool:
        async for records in self._source:
            self._ready.extend(records)
            return True
        return False

    async def _batches(self) -> AsyncGenerator[list[Record]]:
        while not self._exited:
            chunks = self._attached()
            try:
                async for records in self._parsed(chunks):
                    yield records
            except ShimGone:
                async for records in self._parsed(self._stored()):
                    yield records
                break
            finally:
                await chunks.aclose()
        self.ending = "exit" if self._exited else "crash"

    async def _parsed(self, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[list[Record]]:
        parser: RecordParser | None = None
        async for chunk in chunks:
            parser = parser or RecordParser(self._seq, self.offset)
            records = parser.feed(chunk)
            if records:
                self._seq, self.offset = parser.seq, parser.offset
                self._exited = records[-1].stream == "exit"
                yield records
            if self._exited:
                return
            await asyncio.sleep(0)  # a long journal must not keep the others waiting

    async def _attached(self) -> AsyncGenerator[bytes]:
        reader, writer, _ = await dial(self._directory, self._epoch)
        try:
            await ask(reader, writer, {"op": "attach", "after": self._seq})
            while chunk := await reader.read(_CHUNK):
                yield chunk
        except OSError:
            pass  # the next dial tells whether the shim is gone or has fenced us
        finally:
            writer.close()

    async def _stored(self) -> AsyncGenerator[bytes]:
        try:
            file = await asyncio.to_thread(_opened, Path(self._directory, "journal"))
        except FileNotFoundError:
            raise ShimGone(f"neither a shim nor a journal is in {os.fspath(self._directory)}") from None
        with file:
            self.offset = await asyncio.to_thread(_entered, file, self._seq, self.offset)
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk


def _entered(file: FileIO, after: int, offset: int) -> int:
    """Go where the record after this one begins, if that is there; else to the beginning. Where it has gone."""
    if file.seek(offset) != file.seek(0, os.SEEK_END):
        file.seek(offset)
        if not begins(file.read(_HEADER), after):
            offset = 0
    return file.seek(offset)


def _opened(path: Path) -> FileIO:
    """Raises OSError, and JournalCorrupt where it is no file: a pipe could keep a reader for ever."""
    try:
        file = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalCorrupt(f"the journal cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise JournalCorrupt("the journal is no file")
    return file


def records(
    directory: str | os.PathLike[str], *, after: int = 0, offset: int = 0, epoch: int | None = None
) -> RecordStream:
    """The journal's records after this sequence number, live to the end; see RecordStream.

    With an epoch this reader is a controller: it fences off lower ones, and ends with Fenced when a higher one comes.
    `offset`: the byte at which the record after that one begins, where it is known; the file is entered there.
    """
    return RecordStream(directory, after, epoch, offset)
