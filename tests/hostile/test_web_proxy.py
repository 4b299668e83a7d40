"""Pages that ask and go away: the proxy before the Web UI keeps nothing of theirs, and answers whoever stays."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from tests.support.temporal import free_port

pytestmark = pytest.mark.integration

MANY = 105
"""More than an HTTP client's pool usually has."""
WAIT_S = 15


@dataclass
class Upstream:
    """A Web UI that answers /now at once, /quiet never, and /endless with a first part and no more."""

    held: set[str] = field(default_factory=set)
    """Requests whose connections are open."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                if path == "/now":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nnow")
                    return
                self.held.add(path)
                if path.startswith("/endless"):
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
                await reader.read()
                self.held.remove(path)
        finally:
            writer.close()


@asynccontextmanager
async def proxy(upstream: int) -> AsyncIterator[int]:
    """The real program before that port; its own port."""
    port = free_port()
    words = ["--listen", f"127.0.0.1:{port}", "--upstream", f"http://127.0.0.1:{upstream}"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "steersman.cli.webproxy", *words)
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                with suppress(OSError):
                    (await ask(port, "/now"))[1].close()
                    break
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.kill()
        await process.wait()


async def ask(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    return reader, writer


async def answer(port: int) -> bytes:
    reader, writer = await ask(port, "/now")
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("kind", ["quiet", "endless"])
async def test_requests_that_were_left_are_given_up(kind: str) -> None:
    ui = Upstream()
    async with await asyncio.start_server(ui.serve, "127.0.0.1", 0) as server, proxy(port_of(server)) as port:
        clients = [await ask(port, f"/{kind}/{number}") for number in range(MANY)]
        try:
            async with asyncio.timeout(WAIT_S):
                # All of them wait, and whoever comes now is answered nonetheless.
                while len(ui.held) < MANY:
                    await asyncio.sleep(0.02)
                assert (await answer(port)).endswith(b"now")
                if kind == "endless":
                    assert b"first" in await clients[0][0].readuntil(b"first")
        finally:
            for _, writer in clients:
                writer.transport.abort()
        async with asyncio.timeout(WAIT_S):
            while ui.held:
                await asyncio.sleep(0.02)
            assert (await answer(port)).endswith(b"now")


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])
