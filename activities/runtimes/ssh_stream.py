"""A program that OpenSSH's client runs on another machine, told apart from the client and from the login shell there.

The client hands one string to the user's login shell, which may be any (csh, fish) and may print what it likes. So that
string is always the same: a POSIX shell that takes one line from stdin and runs it. That line says a mark on stdout and
stderr, runs the program on what follows on stdin, and says mark and exit code behind the last byte of stdout: without
them that was cut, whatever the client's own exit code is (255 for a program's 255 and for a lost connection, 0 where a
master was lost before it had handed on all bytes). Which connection it takes must not live here.
"""

import asyncio
import os
import re
import secrets
import shlex
from asyncio.subprocess import Process

from activities.runtimes.machine import LIMIT, SAID, ProcessStream
from activities.runtimes.ssh_failure import failure, last_words
from activities.shim.client import MachineUnreachable, MachineUnusable

SHELL = "exec /bin/sh -c 'IFS= read -r x&&eval \"$x\"'"
"""Means the same to sh, bash, zsh, csh, tcsh and fish."""
_NOISE = 1 << 20
"""How many bytes a login shell may print before the program begins."""
_LOST = 255
_CHUNK = 256 * 1024


class SshStream(ProcessStream):
    """See machine.Stream. `process`: the client, told to run SHELL on this machine, which is then told the program."""

    def __init__(self, process: Process, machine: str, program: "Program") -> None:
        super().__init__(process)
        self._machine, self._mark = machine, program.mark
        self._source, self._code = self.stdout, -1
        self.stdout = asyncio.StreamReader(limit=LIMIT)
        self._reading = _Valve()
        self.stdout.set_transport(self._reading)
        self._copying: asyncio.Task[None] | None = None
        self.stdin.write(program.line)

    async def begun(self) -> None:
        """The program begins now, as far as anybody can tell. Raises MachineUnreachable."""
        left, noise = _NOISE, b""
        try:
            while left > 0 and (line := await self._source.readline()):
                if line == self._mark + b"\n":
                    self._copying = asyncio.create_task(self._copy())
                    return
                left, noise = left - len(line), (noise + line)[-SAID:]
        except ValueError:
            left = 0
        if left <= 0:
            raise MachineUnusable(f"{self._machine}: the login shell there prints without end")
        code = await super().wait()
        self._tail += noise  # a login shell says on stdout why it runs nothing
        raise self._failure(code)

    async def wait(self) -> int:
        """See machine.Stream. What comes on stdout is to be read meanwhile, as with any program."""
        await super().wait()
        if self._copying:
            await asyncio.wait({self._copying})
        if self._code < 0:
            raise MachineUnreachable(f"{self._machine}: {last_words(self.said()) or 'the connection was lost'}")
        return self._code

    def said(self) -> str:
        """What the program said, and the client after it; not what the login shell said before."""
        mark = self._mark + b"\n"
        said = self._tail.removeprefix(mark).rpartition(b"\n" + mark)[2]
        return said.decode("utf-8", "replace").strip()

    async def _copy(self) -> None:
        """What the program says on stdout, and not our mark behind it."""
        held, mark = b"", b"\1" + self._mark
        while data := await self._source.read(_CHUNK):
            await self._reading.allowed.wait()
            data = held + data
            begin = data.rfind(b"\1", -len(mark) - 4)  # with it the mark may begin
            held = data[begin:] if begin >= 0 and mark.startswith(data[begin:][: len(mark)]) else b""
            self.stdout.feed_data(data[: len(data) - len(held)])
        if found := re.fullmatch(rb"%b (\d{1,3})" % mark, held):
            self._code = int(found[1])
        else:
            self.stdout.feed_data(held)
        self.stdout.feed_eof()

    async def _discard(self) -> None:
        if self._copying and not self._copying.done():
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)
            self.stdout.feed_eof()
        await super()._discard()

    def _failure(self, code: int) -> MachineUnreachable:
        said = self._tail.decode("utf-8", "replace")
        found = failure(self._machine, said)
        if isinstance(found, MachineUnusable) or code == _LOST:
            return found
        if code in (0, 126, 127):  # a command that is forced on us, or no shell
            words = last_words(said)
            why = "is a command forced on this key, or /bin/sh missing?"
            return MachineUnusable(
                f"{self._machine}: no shell was run there (exit code {code}): {why} {words}".rstrip()
            )
        return MachineUnreachable(f"{found} (exit code {code})")


class _Valve(asyncio.ReadTransport):
    """What a StreamReader sees of its source: it holds back a flood until somebody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = asyncio.Event()
        self.allowed.set()

    def pause_reading(self) -> None:
        self.allowed.clear()

    def resume_reading(self) -> None:
        self.allowed.set()


class Program:
    """What SHELL reads: one line, whatever is in the arguments. Raises ValueError for what no argument can hold."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        mark = secrets.token_hex(8)
        self.mark, self.line = mark.encode(), _line(mark, argv)


def _line(mark: str, argv: tuple[str, ...]) -> bytes:
    if any("\0" in word for word in argv):
        raise ValueError("embedded null byte")
    program = " ".join(map(shlex.quote, argv))
    before = ""
    if "\n" in program:  # always between single quotes
        before, program = "n=$(printf '\\n.');n=${n%.};", program.replace("\n", "'\"$n\"'")
    said = f"printf '\\n%s\\n' {mark}"
    return os.fsencode(f"{before}{said};{said}>&2;{program};printf '\\001%s %d' {mark} $?\n")
