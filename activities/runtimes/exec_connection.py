"""One connection to a machine on which `exec_server` runs programs: their streams over one sequence of bytes.

How the bytes get there (`Carrier`) must not live here, nor which programs are run.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from activities.runtimes.machine import LIMIT
from activities.runtimes.remote_program.exec_server import COUNT, HEADER, MAX_FRAME, WINDOW
from activities.shim.client import MachineUnreachable
from steersman import timeouts

_PROGRAM = Path(__file__).parent / "remote_program" / "exec_server.py"
_PIECE: Final = 64 * 1024
_HIGH: Final = 256 * 1024
_LOOK_S: Final = 10.0
"""Seconds of silence after which the other side is asked whether it is there."""
_PATIENCE_S: Final = 15.0
"""So many seconds later the connection counts as lost."""

BOOT: Final = (
    "import os\n"
    "def take(n):\n"
    " b=b''\n"
    " while len(b)<n:\n"
    "  c=os.read(0,n-len(b))\n"
    "  if not c:os._exit(0)\n"
    "  b+=c\n"
    " return b\n"
    "exec(compile(take(int(take(8))),'exec_server','exec'),{'__name__':'__main__'})"
)
"""What Python is told to run there (-c): it takes the program from stdin, which then is the connection."""


class Carrier(Protocol):
    """Bytes to and from one program on the machine, which was told to run BOOT."""

    async def send(self, data: bytes) -> None:
        """Raises MachineUnreachable. Waits while too much is on its way."""

    async def receive(self) -> bytes:
        """What comes next, empty at the end. Raises MachineUnreachable, which says why it has ended."""

    async def aclose(self) -> None:
        """Let go at once."""


class ExecConnection:
    """`open` one, then `run` programs. `name`: the machine, as people know it."""

    def __init__(self, carrier: Carrier, name: str) -> None:
        self._carrier, self.name = carrier, name
        self._numbers = itertools.count(1)
        self._streams: dict[int, ExecStream] = {}
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = 0.0
        self.lost: MachineUnreachable | None = None
        """Why it has ended; None while it has not."""

    async def open(self, timeout_s: float) -> None:
        """Wait until the other side has begun. Raises MachineUnreachable."""
        source = _source()
        self.send(b"%08d" % len(source) + source)
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]
        try:
            async with timeouts.timeout(timeout_s):
                await self._begun
        except TimeoutError:
            await self.aclose()
            raise MachineUnreachable(f"{self.name}: no answer within {timeout_s:.0f} s") from None
        except BaseException:
            await self.aclose()
            raise
        self._tasks.append(asyncio.create_task(self._watch()))

    def run(self, argv: tuple[str, ...], stdin: bytes | None) -> "ExecStream":
        """Start a program. Raises MachineUnreachable where the connection is lost."""
        if self.lost:
            raise type(self.lost)(str(self.lost))
        if any("\0" in word for word in argv):
            raise ValueError("embedded null byte")
        number = next(self._numbers)
        stream = self._streams[number] = ExecStream(self, number)
        stream.watched.add_done_callback(lambda _: self._streams.pop(number, None))
        words = json.dumps([os.fsdecode(word) for word in argv])
        self.frame(b"x", number, words.encode("utf-8", "surrogatepass"))
        if stdin is not None:
            stream.stdin.write(stdin)
            stream.stdin.close()
        return stream

    def frame(self, kind: bytes, number: int, data: bytes = b"") -> None:
        self.send(HEADER.pack(kind, number, len(data)) + data)

    def send(self, data: bytes) -> None:
        """At most a window of each stream waits here."""
        if not self.lost:
            self._outbox.put_nowait(data)

    async def aclose(self) -> None:
        """Let go: the programs that run end with it."""
        self._lose(MachineUnreachable(f"{self.name}: this worker has let go of the machine"))
        await self._carrier.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while True:
                data = await self._outbox.get()
                while not self._outbox.empty() and len(data) < _PIECE:
                    data += self._outbox.get_nowait()
                await self._carrier.send(data)
        except MachineUnreachable as error:
            self._lose(error)

    async def _read(self) -> None:
        received, loop = bytearray(), asyncio.get_running_loop()
        try:
            while data := await self._carrier.receive():
                self._heard = loop.time()
                received += data
                while len(received) >= HEADER.size:
                    kind, number, length = HEADER.unpack_from(received)
                    if length > MAX_FRAME:
                        raise MachineUnreachable(f"{self.name}: what comes from there is not what our program says")
                    if len(received) < HEADER.size + length:
                        break
                    body = bytes(received[HEADER.size : HEADER.size + length])
                    del received[: HEADER.size + length]
                    self._take(kind, number, body)
            raise MachineUnreachable(f"{self.name}: the connection has ended")
        except MachineUnreachable as error:
            self._lose(error)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError, struct.error) as error:
            self._lose(MachineUnreachable(f"{self.name}: what comes from there is not what our program says: {error}"))

    def _take(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == b"h" and not self._begun.done():
            self._begun.set_result(None)
        stream = self._streams.get(number)
        if stream is None:
            return
        if kind == b"o":
            stream.feed(body)
        elif kind == b"c":
            stream.sink.grant(COUNT.unpack(body)[0])
        elif kind == b"z":
            answer = json.loads(body)
            stream.end(int(answer["code"]), str(answer["said"]), None)

    async def _watch(self) -> None:
        """A way that is cut says nothing, and nobody says so."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            if loop.time() - self._heard < _LOOK_S:
                continue
            asked = loop.time()
            self.frame(b"p", 0)
            await asyncio.sleep(_PATIENCE_S)
            if self._heard < asked:
                self._lose(MachineUnreachable(f"{self.name}: no answer for {_PATIENCE_S:.0f} s"))
                await self._carrier.aclose()
                return

    def _lose(self, error: MachineUnreachable) -> None:
        if self.lost:
            return
        self.lost = error
        if not self._begun.done():
            self._begun.set_exception(error)
            self._begun.exception()  # whoever waits for it has it all the same
        for stream in list(self._streams.values()):
            stream.end(-1, "", error)


class ExecStream:
    """See ports.machine.Stream."""

    def __init__(self, connection: ExecConnection, number: int) -> None:
        self._connection, self._number = connection, number
        self._source = _Source(self._taken)
        self.stdout = asyncio.StreamReader(limit=LIMIT)
        self.stdout.set_transport(self._source)
        self.sink = _Sink(connection, number)
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        protocol.connection_made(self.sink)
        self.sink.set_protocol(protocol)
        self.stdin = asyncio.StreamWriter(self.sink, protocol, None, asyncio.get_running_loop())
        self.watched: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Done once the program has ended, or its connection has."""
        self._said, self._killed = "", False

    async def wait(self) -> int:
        """See machine.Stream."""
        return await asyncio.shield(self.watched)

    def said(self) -> str:
        return self._said.strip()

    def kill(self) -> None:
        if not self.watched.done() and not self._killed:
            self._killed = True
            self._connection.frame(b"k", self._number)

    def feed(self, data: bytes) -> None:
        """Bytes of the program's stdout. Raises ValueError where they are more than may be on their way."""
        if self.watched.done():
            return
        if self._killed:
            self._taken(len(data))  # nobody reads it any more
            return
        self._source.count(len(data))
        self.stdout.feed_data(data)

    def end(self, code: int, said: str, error: MachineUnreachable | None) -> None:
        if self.watched.done():
            return
        self._said = said
        if error is None:
            self.watched.set_result(code)
        else:
            self.watched.set_exception(type(error)(str(error)))
            self.watched.exception()  # it may be that nobody waits
        self.stdout.feed_eof()
        self.sink.end()

    def _taken(self, count: int) -> None:
        self._connection.frame(b"c", self._number, COUNT.pack(count))


class _Source(asyncio.ReadTransport):
    """What a StreamReader sees of its source: the other side sends as much as is taken here."""

    def __init__(self, taken: Callable[[int], None]) -> None:
        super().__init__()
        self._taken, self._held, self._waiting = taken, 0, False

    def count(self, size: int) -> None:
        self._held += size
        if self._held > WINDOW:
            raise ValueError("more than a window that nobody has taken")
        self._tell()

    def _tell(self) -> None:
        if not self._waiting and self._held:
            held, self._held = self._held, 0
            self._taken(held)

    def pause_reading(self) -> None:
        self._waiting = True

    def resume_reading(self) -> None:
        self._waiting = False
        self._tell()


class _Sink(asyncio.WriteTransport):
    """What a StreamWriter writes to: it hands on as much as the program takes."""

    def __init__(self, connection: ExecConnection, number: int) -> None:
        super().__init__()
        self._connection, self._number = connection, number
        self._protocol: asyncio.StreamReaderProtocol | None = None
        self._credit, self._pending = WINDOW, bytearray()
        self._closing = self._ended = self._paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.StreamReaderProtocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._ended:
            return
        self._pending += data
        self._hand_on()

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._hand_on()

    def abort(self) -> None:
        self._pending.clear()
        self._closing = True
        self._hand_on()

    def is_closing(self) -> bool:
        return self._closing or self._ended

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def grant(self, count: int) -> None:
        self._credit += count
        self._hand_on()

    def end(self) -> None:
        """The program has ended: nobody takes anything any more."""
        if self._ended:
            return
        self._ended = True
        self._pending.clear()
        if self._protocol:
            with contextlib.suppress(Exception):
                self._protocol.connection_lost(BrokenPipeError("the program has ended") if not self._closing else None)

    def _hand_on(self) -> None:
        while self._pending and self._credit > 0 and not self._ended:
            piece = bytes(self._pending[: min(_PIECE, self._credit)])
            del self._pending[: len(piece)]
            self._credit -= len(piece)
            self._connection.frame(b"i", self._number, piece)
        if self._closing and not self._pending and not self._ended:
            self._ended = True
            self._connection.frame(b"e", self._number)
            if self._protocol:
                self._protocol.connection_lost(None)
            return
        if self._protocol and not self._ended:
            if len(self._pending) > _HIGH and not self._paused:
                self._paused = True
                self._protocol.pause_writing()
            elif self._paused and len(self._pending) < _PIECE:
                self._paused = False
                self._protocol.resume_writing()


@functools.cache
def _source() -> bytes:
    return _PROGRAM.read_bytes()
