"""A Temporal server behind a proxy that is slow with one call: the real server, the real gRPC, one request kept back.

The proxy reads HTTP/2 frames just as far as that takes. What a program makes of a slow server must not live here.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

PREFACE = 24
HEADERS, DATA = 1, 0
CALL = "/temporal.api.workflowservice.v1.WorkflowService/{}"
HUFFMAN = {
    "/": "011000", ".": "010111", "1": "00001", "a": "00011", "b": "100011", "c": "00100", "d": "100100", "e": "00101",
    "f": "100101", "i": "00110", "k": "1110101", "l": "101000", "m": "101001", "o": "00111", "p": "101011",
    "r": "101100", "s": "01000", "t": "01001", "v": "1110111", "w": "1111000", "D": "1011111", "N": "1101001",
    "S": "1101110", "W": "1110010",
}  # fmt: skip
"""RFC 7541, appendix B, as far as the paths go that are looked for."""


class SlowServer:
    """Keeps the requests of one call back until `go_on`; all others go through at once."""

    def __init__(self, port: int, call: str) -> None:
        self.held = 0
        self.address = ""
        self._port, self._path = port, _huffman(CALL.format(call))
        self._going_on = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    def go_on(self) -> None:
        """Let through what was kept back, and all that comes."""
        self._going_on.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One more connection."""
        self._connections.add(asyncio.create_task(self._serve(reader, writer)))

    async def close(self) -> None:
        """End all connections."""
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as copies:
                copies.create_task(self._requests(reader, up_writer))
                copies.create_task(_copy(up_reader, writer))
        finally:
            writer.close()
            up_writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(PREFACE))
        late: set[int] = set()
        waiting: set[asyncio.Task[None]] = set()
        while True:
            head = await reader.readexactly(9)
            body = await reader.readexactly(int.from_bytes(head[:3]))
            stream = int.from_bytes(head[5:]) & 0x7FFFFFFF
            if head[3] == HEADERS and self._path in body:
                late.add(stream)
            if head[3] == DATA and stream in late and not self._going_on.is_set():
                # Headers went through, since those of later streams build on them; data of streams do not.
                self.held += 1
                waiting.add(asyncio.create_task(self._later(writer, head + body)))
            else:
                writer.write(head + body)

    async def _later(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        await self._going_on.wait()
        writer.write(frame)


@asynccontextmanager
async def slow_server(port: int, call: str) -> AsyncIterator[SlowServer]:
    """The server on this port of loopback, slow with that call of WorkflowService."""
    slow = SlowServer(port, call)
    listening = await asyncio.start_server(slow.accept, "127.0.0.1", 0)
    async with listening:
        slow.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            yield slow
        finally:
            await slow.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


def _huffman(text: str) -> bytes:
    bits: Sequence[str] = "".join(HUFFMAN[each] for each in text)
    padded = "".join(bits) + "1" * (-len(bits) % 8)
    return int(padded, 2).to_bytes(len(padded) // 8)
