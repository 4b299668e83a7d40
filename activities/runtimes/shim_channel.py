"""A shim's journal and socket as a Channel. Which process of a run it belongs to must not live here."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from activities.ports.runtime import MAX_LINE, ChannelClosed, Fenced, StopTimes
from activities.runtimes.leftovers import clear
from activities.runtimes.stop import stop_through
from activities.shim import client as shim
from steersman.contracts.run import Handle, StopReport

T = TypeVar("T")

NEVER = 1 << 62
"""A record number beyond the last of any journal: no record of a dead process is live."""


class ShimChannel:
    """See ports.runtime.Channel. Reconnects as often as it takes while the shim lives."""

    def __init__(self, directory: Path, host: str, epoch: int, connection: shim.Connection | None) -> None:
        self._directory, self._epoch, self._connection = directory, epoch, connection
        self._lock = asyncio.Lock()
        status = connection.hello if connection else None
        self.known = status.seq if status and status.state != "exited" else NEVER
        self.offset = 0
        self._last = status.seq - (status.state == "exited") if status else NEVER
        self.handle: Handle | None = None
        if status:
            self.handle = Handle(host=host, boot_id=status.boot_id, pid=status.pid, start_time=status.start_time)
        self._renewal = asyncio.create_task(self._renew(status.lease_left)) if status else None

    def may_enter(self, after: int) -> bool:
        """See Channel: the end of a process is always read from its shim or its journal."""
        return after <= self._last

    async def records(self, after: int = 0, offset: int = 0) -> AsyncGenerator[Sequence[shim.Record], None]:
        """See Channel. Raises Fenced."""
        epoch = self._epoch if self._connection else None
        stream = shim.records(self._directory, after=after, offset=offset, epoch=epoch)
        joiner = shim.LineJoiner(MAX_LINE)
        try:
            while batch := await stream.batch():
                self.offset = stream.offset
                yield [_joined(joiner, record) for record in batch]
            if stream.ending == "crash":
                # The shim died: before anybody acts on that, nothing of what it looked after may be left.
                await clear(self._directory)
        except shim.Fenced as error:
            raise Fenced(str(error)) from error
        finally:
            await stream.aclose()

    async def write(self, command: str, data: str | None) -> bool:
        """Write once; None closes stdin. Raises ChannelClosed, Fenced."""

        async def send(connection: shim.Connection) -> bool:
            if data is None:
                await connection.close_stdin(id=command)
                return True
            return not (await connection.write(data, id=command)).duplicate

        return await self._with(send)

    async def stop(self, times: StopTimes, reason: str) -> StopReport:
        """Stop this process. Raises ChannelClosed, Fenced."""
        return await self._with(lambda connection: stop_through(connection, times, reason))

    async def close(self) -> None:
        """Let go; the process works on."""
        if self._renewal:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection:
                await connection.aclose()

    async def _with(self, use: Callable[[shim.Connection], Awaitable[T]]) -> T:
        while True:
            try:
                return await use(await self._connected())
            except (shim.AgentExited, shim.StdinClosed) as error:
                raise ChannelClosed(str(error)) from error
            except shim.Fenced as error:
                raise Fenced(str(error)) from error
            except (shim.ShimGone, shim.JournalFull, shim.ShimUnresponsive) as error:
                if not shim.is_alive(self._directory):
                    raise ChannelClosed(str(error)) from error
                if isinstance(error, shim.ShimUnresponsive):
                    await shim.thaw(self._directory)  # its agent may have frozen it
                await asyncio.sleep(0.5)

    async def _connected(self) -> shim.Connection:
        async with self._lock:
            if self._connection is None:
                raise ChannelClosed("the process has ended, or this channel was let go")
            try:
                await self._connection.status()
            except (shim.ShimGone, shim.ShimUnresponsive):
                await self._connection.aclose()
                self._connection = await shim.connect(self._directory, epoch=self._epoch)
            return self._connection

    async def _renew(self, lease_left: timedelta) -> None:
        pause = min(max(lease_left.total_seconds() / 4, 0.2), 30.0)
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(ChannelClosed):
                await self._with(lambda connection: connection.renew())


def _joined(joiner: shim.LineJoiner, record: shim.Record) -> shim.Record:
    if record.stream in ("in", "eof", "exit"):
        return record
    line = joiner.push(record)
    data = line.data if line else b""
    return record if line and data is record.data else shim.Record(record.seq, record.time_ms, record.stream, data, "")
