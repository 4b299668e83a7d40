"""A shim's journal, live or afterwards: from the socket while the shim lives, from the file when it is gone.

What must not live here: what the records mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Literal

from activities.shim.client.access import LOCAL, Directory, ShimAccess
from activities.shim.client.dialing import ask, let_go
from activities.shim.client.errors import ShimGone
from activities.shim.client.journal import Record, RecordParser

_CHUNK = 256 * 1024


class RecordStream(AsyncIterator[Record]):
    """The records after a sequence number, each once, to the end.

    Iterating raises Fenced, ProtocolMismatch, ShimUnresponsive and JournalCorrupt, and ShimGone where there is neither
    a shim nor a journal. Leave it early with `aclose`.

    Attributes:
        ending: None while there may be more; then "exit" after the agent's `exit` record, or "crash" where the shim
            died without one (its agent died with it).
        seq: of the last record that came.
        offset: the byte of the journal after the records that were handed out by `batch`.
        received: how many bytes have come: a reader that waits tells by it whether they still come.
    """

    def __init__(
        self, access: ShimAccess, directory: Directory, after: int, epoch: int | None, offset: int = 0
    ) -> None:
        self._access = access
        self.ending: Literal["exit", "crash"] | None = None
        self._directory = directory
        self._epoch = epoch
        self.seq = after
        self.offset = offset
        self.received = 0
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
            self.received += len(chunk)
            parser = parser or RecordParser(self.seq, self.offset)
            records = parser.feed(chunk)
            if records:
                self.seq, self.offset = parser.seq, parser.offset
                self._exited = records[-1].stream == "exit"
                yield records
            if self._exited:
                return
            await asyncio.sleep(0)  # a long journal must not keep the others waiting

    async def _attached(self) -> AsyncGenerator[bytes]:
        reader, writer, _ = await self._access.dial(self._directory, self._epoch)
        try:
            await ask(reader, writer, {"op": "attach", "after": self.seq})
            while chunk := await reader.read(_CHUNK):
                yield chunk
        except OSError:
            pass  # the next dial tells whether the shim is gone or has fenced us
        finally:
            await let_go(writer)

    async def _stored(self) -> AsyncGenerator[bytes]:
        self.offset, chunks = await self._access.stored(self._directory, self.seq, self.offset)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk


def records(
    directory: Directory, *, after: int = 0, offset: int = 0, epoch: int | None = None, access: ShimAccess = LOCAL
) -> RecordStream:
    """The journal's records after this sequence number, live to the end; see RecordStream.

    With an epoch this reader is a controller: it fences off lower ones, and ends with Fenced when a higher one comes.
    `offset`: the byte at which the record after that one begins, where it is known; the file is entered there.
    """
    return RecordStream(access, directory, after, epoch, offset)
