"""A way to a server of this machine that can be cut: nothing passes then, and nobody is told, as between networks."""

import asyncio
import contextlib


class Relay:
    """`server`: its port on loopback; `port`: the one to come by."""

    def __init__(self, server: int) -> None:
        self.port = 0
        self._server = server
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._passes.clear()

    def mend(self) -> None:
        """What was said meanwhile arrives now."""
        self._passes.set()

    async def aclose(self) -> None:
        self._listening.close()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = [writer]
        try:
            await self._passes.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server)
            opened.append(far_writer)
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        finally:
            for each in opened:
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()
