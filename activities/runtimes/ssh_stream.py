"""A program that OpenSSH's client runs on another machine, told apart from the client and from the login shell there.

The client hands one string to the user's login shell, which may be any (csh, fish) and may print what it likes. So that
string is always the same: a POSIX shell that takes one line from stdin and runs it. That line says a mark on stdout and
stderr, runs the program on what follows on stdin, and says its exit code: the client's own code is 255 for whatever
went wrong with the connection, and for a program that ended with 255. Which connection it takes must not live here.
"""

import os
import re
import secrets
import shlex
from asyncio.subprocess import Process

from activities.runtimes.machine import SAID, ProcessStream
from activities.runtimes.ssh_failure import failure, last_words
from activities.shim.client import MachineUnreachable, MachineUnusable

SHELL = "exec /bin/sh -c 'IFS= read -r x&&eval \"$x\"'"
"""Means the same to sh, bash, zsh, csh, tcsh and fish."""
_NOISE = 1 << 20
"""How many bytes a login shell may print before the program begins."""
_LOST = 255


class SshStream(ProcessStream):
    """See machine.Stream. `process`: the client, told to run SHELL on the machine of this name."""

    def __init__(self, process: Process, machine: str, argv: tuple[str, ...]) -> None:
        super().__init__(process)
        self._machine, self._mark = machine, secrets.token_hex(8).encode()
        self.stdin.write(_line(self._mark.decode(), argv))

    async def begun(self) -> None:
        """The program begins now, as far as anybody can tell. Raises MachineUnreachable."""
        left, noise = _NOISE, b""
        try:
            while left > 0 and (line := await self.stdout.readline()):
                if line == self._mark + b"\n":
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
        """See machine.Stream."""
        code = await super().wait()
        if said := re.search(rb"(?:\A|\n)%b (\d{1,3})\n" % self._mark, self._tail):
            return int(said[1])
        if code < 0 or code == _LOST:
            raise MachineUnreachable(f"{self._machine}: {self.said() or 'the connection was lost'}")
        return code

    def said(self) -> str:
        """What the program said, and the client after it; not what the login shell said before, nor our marks."""
        said = self._tail.rpartition(b"\n" + self._mark + b"\n")[2]
        return re.sub(rb"\n?%b( \d{1,3})?\n" % self._mark, b"", said).decode("utf-8", "replace").strip()

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


def _line(mark: str, argv: tuple[str, ...]) -> bytes:
    """What SHELL reads: one line, whatever is in the arguments. Raises ValueError for what no argument can hold."""
    if any("\0" in word for word in argv):
        raise ValueError("embedded null byte")
    program = " ".join(map(shlex.quote, argv))
    before = ""
    if "\n" in program:  # always between single quotes
        before, program = "n=$(printf '\\n.');n=${n%.};", program.replace("\n", "'\"$n\"'")
    said = f"printf '\\n%s\\n' {mark}"
    return os.fsencode(f"{before}{said};{said}>&2;{program};printf '\\n%s %d\\n' {mark} $?>&2\n")
