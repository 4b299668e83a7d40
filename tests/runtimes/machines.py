"""Machines for tests: reached by `exec` alone, and ways in which a machine is lost."""

import asyncio

from activities.ports.machine import Machine, Stream
from activities.shim.client import MachineUnreachable, MachineUnusable


class Cut:
    """A stream whose bytes come late, and stop coming after so many: as when a connection breaks, or when nobody says
    that it has broken.
    """

    def __init__(self, stream: Stream, after: int, delay_s: float = 0, *, silently: bool = False) -> None:
        self.stdin = stream.stdin
        self.stdout = asyncio.StreamReader(limit=1 << 20)
        self._stream, self._delay_s, self._silently = stream, delay_s, silently
        self._whole = True
        self._copying = asyncio.create_task(self._copy(after))

    async def _copy(self, left: int) -> None:
        while left and (data := await self._stream.stdout.read(left)):
            await asyncio.sleep(self._delay_s)
            self.stdout.feed_data(data)
            left -= len(data)
        self._whole = left > 0
        if not self._whole and self._silently:
            await asyncio.get_running_loop().create_future()
        self.stdout.feed_eof()
        if not self._whole:
            self._stream.kill()

    async def wait(self) -> int:
        await asyncio.wait({self._copying})
        if not self._whole:
            raise MachineUnreachable("the test has cut the wire")
        return await self._stream.wait()

    def said(self) -> str:
        return self._stream.said()

    def kill(self) -> None:
        if self._silently:
            self._copying.cancel()
        self._stream.kill()


class Elsewhere:
    """A machine of which only this is known: it runs programs. It can be lost, and its streams cut."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.reachable = True
        self.unusable = False
        """A person would have to mend something."""
        self.cuts: list[int] = []
        """After how many bytes the streams that are opened next are cut."""
        self.cut_silently = False
        """Nobody is told of these cuts."""
        self.delay_s = 0.0
        """How much later what a program says comes here."""
        self.commands_left: int | None = None
        """How many more programs can be run before the machine is lost."""
        self.commands: list[tuple[str, ...]] = []
        self._streams: list[Stream] = []

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        if self.commands_left == 0:
            self.reachable, self.commands_left = False, None
            self.cut_all()
        if self.unusable:
            raise MachineUnusable("the test has lost the key")
        if not self.reachable:
            raise MachineUnreachable("the test has pulled the plug")
        if self.commands_left is not None:
            self.commands_left -= 1
        self.commands.append(argv)
        stream = await self._machine.exec(*argv, stdin=stdin)
        if self.cuts or self.delay_s:
            cut = self.cuts.pop(0) if self.cuts else 1 << 60
            stream = Cut(stream, cut, self.delay_s, silently=self.cut_silently)
        self._streams.append(stream)
        return stream

    def cut_all(self) -> None:
        """Break every stream that there is."""
        for stream in self._streams:
            stream.kill()

    async def aclose(self) -> None:
        self.reachable = False
        self.cut_all()
        await self._machine.aclose()
