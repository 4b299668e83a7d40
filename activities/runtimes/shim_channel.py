"""A shim's journal and socket as a Channel. Which process of a run it belongs to must not live here."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import TypeVar

from activities.ports.runtime import MAX_LINE, ChannelClosed, Fenced, StopTimes
from activities.runtimes.mirror import Mirror
from activities.runtimes.shim_handle import ShimHandle
from activities.runtimes.stop import stop_through
from activities.shim import client as shim
from steersman import timeouts
from steersman.contracts.run import Handle, StopReport

T = TypeVar("T")

log = logging.getLogger("steersman.shim_channel")

NEVER = 1 << 62
"""A record number beyond the last of any journal: no record of a dead process is live."""
_PAUSE_S = 0.5
_LAST_PAUSE_S = 10.0
"""Seconds between two tries to reach a machine that cannot be reached."""
LOOK_S = 20.0
"""Seconds between two looks whether records that are there have come: their way may be cut, and nobody say so."""
RENEWAL_S = 30.0
"""Seconds between two renewals of a lease, at the most: a shim that its agent has frozen is noticed then, too."""


_UNTOLD = (shim.MachineUnreachable, shim.StartFailed, shim.AlreadyRunning)
"""What a question may raise that says nothing of the shim: no way to it, no descriptor or memory left."""


class ShimChannel:
    """See ports.runtime.Channel. Reconnects as often as it takes while the shim lives, or while nobody can tell.

    `clear`: kills what a lost shim left. `epoch`: None to read alone. `mirror`: the leader's copy of a journal that is
    elsewhere. `cause`: the place's.
    """

    def __init__(
        self,
        handle: ShimHandle,
        clear: Callable[[], Awaitable[shim.Clearance]],
        process: Handle | None,
        epoch: int | None,
        connection: shim.Connection | None,
        mirror: Mirror | None = None,
        cause: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._cause = cause
        self._shim, self._clear, self._epoch, self._connection = handle, clear, epoch, connection
        self._mirror = mirror
        self._lock = asyncio.Lock()
        status = connection.hello if connection else None
        self.known = status.seq if status and status.state != "exited" else NEVER
        self.offset = 0
        self.is_cut = False
        self._last = status.seq - (status.state == "exited") if status else NEVER
        self.handle = process
        self._stream: shim.RecordStream | None = None
        self._waiting: asyncio.Timeout | None = None
        self._tasks = [asyncio.create_task(self._renew(status.lease_left))] if status else []
        if status and mirror:
            self._tasks.append(asyncio.create_task(self._look()))

    def may_enter(self, after: int) -> bool:
        """See Channel: the end of a process is always read from its shim or its journal."""
        return after <= self._last

    async def records(self, after: int = 0, offset: int = 0) -> AsyncGenerator[Sequence[shim.Record], None]:
        """See Channel. Raises Fenced."""
        joiner = shim.LineJoiner(MAX_LINE)
        batches = self._records(after, offset) if self._mirror is None else self._mirrored(self._mirror, after, offset)
        try:
            async with aclosing(batches):
                async for batch in batches:
                    yield [_joined(joiner, record) for record in batch]
        except shim.Fenced as error:
            raise Fenced(str(error)) from error

    async def _records(self, after: int, offset: int) -> AsyncGenerator[Sequence[shim.Record], None]:
        """From where the journal is, for as long as it takes to reach that."""
        pause, epoch = _PAUSE_S, self._epoch if self._connection else None
        while True:
            stream = self._shim.records(after, offset, epoch)
            try:
                while batch := await self._next(stream):
                    pause = _PAUSE_S
                    self.is_cut = False
                    after, offset = batch[-1].seq, stream.offset
                    self.offset = offset
                    yield batch
                if stream.ending == "crash":
                    # The shim died: before anybody acts on that, nothing of what it looked after may be left.
                    await self._clear()
                return
            except shim.MachineUnreachable:
                self.is_cut = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_PAUSE_S)
            finally:
                await stream.aclose()

    async def _next(self, stream: shim.RecordStream) -> list[shim.Record]:
        """Its next batch, as `RecordStream.batch`; MachineUnreachable, too, where `_look` finds that none will come."""
        self._stream = stream
        try:
            async with timeouts.timeout(None) as self._waiting:
                return await stream.batch()
        except TimeoutError:
            raise shim.MachineUnreachable("the way on which records come is cut") from None
        finally:
            self._waiting = None

    async def _look(self) -> None:
        """Break off a wait for records that the shim has had for LOOK_S, while not a byte has come."""
        before: tuple[object, int] = (None, 0)
        had = 0
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                written = (await self._with(lambda connection: connection.status())).seq
            except (ChannelClosed, Fenced):
                return
            stream = self._stream
            if stream and self._waiting and before == (stream, stream.received) and had > stream.seq:
                self._waiting.reschedule(asyncio.get_running_loop().time())
            if stream and self._waiting and stream.seq >= written:
                self.is_cut = False  # all that was said meanwhile has come: it was nothing
            before, had = (stream, stream.received if stream else 0), written

    async def _mirrored(self, mirror: Mirror, after: int, offset: int) -> AsyncGenerator[Sequence[shim.Record], None]:
        """What the copy holds, then what follows it, which is added to the copy before anybody sees it."""
        replayed = mirror.replay(after, offset)
        async with aclosing(replayed):
            async for batch in replayed:
                self.offset = mirror.offset
                yield batch
                if batch[-1].stream == "exit":
                    return
        following = self._records(mirror.seq, mirror.offset)
        async with aclosing(following):
            async for batch in following:
                kept = mirror.append(batch)
                self.offset = mirror.offset
                if wanted := [record for record in kept if record.seq > after]:
                    yield wanted

    async def write(self, command: str, data: str | None) -> bool:
        """Write once; None closes stdin. Raises ChannelClosed, Fenced."""

        async def send(connection: shim.Connection) -> bool:
            if data is None:
                await connection.close_stdin(id=command)
                return True
            return not (await connection.write(data, id=command)).duplicate

        if self._epoch is None:
            raise ChannelClosed("this channel only reads")
        return await self._with(send)

    async def stop(self, times: StopTimes, reason: str) -> StopReport:
        """Stop this process. Raises ChannelClosed, Fenced."""
        return await self._with(lambda connection: stop_through(connection, times, reason))

    async def cause(self) -> str:
        """See Channel."""
        return await self._cause() if self._cause else ""

    async def close(self) -> None:
        """Let go; the process works on."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # also where whoever closes it is cancelled meanwhile
            async with self._lock:
                connection, self._connection = self._connection, None
                if connection:
                    await connection.aclose()
                if self._mirror:
                    self._mirror.close()

    async def _with(self, use: Callable[[shim.Connection], Awaitable[T]]) -> T:
        while True:
            try:
                return await use(await self._connected())
            except (shim.AgentExited, shim.StdinClosed) as error:
                raise ChannelClosed(str(error)) from error
            except shim.Fenced as error:
                raise Fenced(str(error)) from error
            except (shim.ShimGone, shim.JournalFull, shim.ShimUnresponsive) as error:
                if not await self._is_alive():
                    raise ChannelClosed(str(error)) from error
                if isinstance(error, shim.ShimUnresponsive):
                    with contextlib.suppress(*_UNTOLD):
                        await self._shim.thaw()  # its agent may have frozen it
                await asyncio.sleep(_PAUSE_S)
            except _UNTOLD:
                await asyncio.sleep(_PAUSE_S)

    async def _is_alive(self) -> bool:
        """Whether the shim lives, as far as anybody can tell."""
        try:
            return await self._shim.is_alive()
        except _UNTOLD:
            return True

    async def _connected(self) -> shim.Connection:
        async with self._lock:
            if self._connection is None:
                raise ChannelClosed("the process has ended, or this channel was let go")
            try:
                await self._connection.status()
            except (shim.ShimGone, shim.ShimUnresponsive):
                await self._connection.aclose()
                self._connection = await self._shim.connect(self._epoch)
            return self._connection

    async def _renew(self, lease_left: timedelta) -> None:
        pause = min(max(lease_left.total_seconds() / 4, 0.2), RENEWAL_S)
        while True:
            await asyncio.sleep(pause)
            try:
                await self._with(_greeted)  # every command renews, also the one that comes before each use
            except ChannelClosed:
                continue
            except Fenced:
                return
            except (shim.ShimError, OSError):  # the next time may do, and without any the shim ends its agent
                log.exception("a lease was not renewed", extra={"action": "lease_not_renewed"})


async def _greeted(connection: shim.Connection) -> None:
    """Nothing but what `_connected` asks."""


def _joined(joiner: shim.LineJoiner, record: shim.Record) -> shim.Record:
    if record.stream in ("in", "eof", "exit"):
        return record
    line = joiner.push(record)
    data = line.data if line else b""
    return record if line and data is record.data else shim.Record(record.seq, record.time_ms, record.stream, data, "")
