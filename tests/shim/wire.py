"""A shim's socket spoken to by hand: what a client of another version, or a broken one, would send."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from activities.shim.program.sockets import connect_socket


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            answer: dict[str, Any] = json.loads(await self.reader.readline())
        return answer

    async def ask(self, **command: object) -> dict[str, Any]:
        await self.send(json.dumps(command).encode() + b"\n")
        return await self.reply()

    async def hello(self, epoch: int | None = 1) -> dict[str, Any]:
        return await self.ask(op="hello", protocol=1, epoch=epoch)


@contextlib.asynccontextmanager
async def wire(directory: Path) -> AsyncIterator[Wire]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(0)
    connect_socket(sock, directory)
    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 20)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
