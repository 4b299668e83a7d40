"""A machine as a pod is one: all programs over one connection, to a child process in place of a container."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from activities.ports.machine import Stream
from activities.runtimes.exec_connection import BOOT, ExecConnection
from activities.runtimes.machine import ChildMachine
from activities.shim.client import MachineUnreachable


class StreamCarrier:
    """A program of a machine as a Carrier."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    async def send(self, data: bytes) -> None:
        try:
            self.stream.stdin.write(data)
            await self.stream.stdin.drain()
        except OSError as error:
            raise MachineUnreachable(f"cut: {error}") from error

    async def receive(self) -> bytes:
        return await self.stream.stdout.read(65536)

    async def aclose(self) -> None:
        self.stream.kill()


class MultiplexedMachine:
    """See Machine. One connection at a time, made anew where it is lost."""

    def __init__(self, home: Path, env: Mapping[str, str], python: str = sys.executable) -> None:
        self._machine, self._python = ChildMachine(home, env), python
        self.connection: ExecConnection | None = None
        self._connecting = asyncio.Lock()

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        async with self._connecting:
            if self.connection is None or self.connection.lost:
                stream = await self._machine.exec(self._python, "-I", "-S", "-c", BOOT)
                self.connection = ExecConnection(StreamCarrier(stream), "there")
                await self.connection.open(20)
        return self.connection.run(argv, stdin)

    async def aclose(self) -> None:
        if self.connection:
            await self.connection.aclose()
        await self._machine.aclose()
