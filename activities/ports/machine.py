"""The seam to a machine: a program is run there, with pipes, and that is all.

Which programs are run, and what follows from what they say, must not live here.
"""

import asyncio
from typing import Protocol


class Stream(Protocol):
    """A program at work on a machine."""

    stdin: asyncio.StreamWriter
    """Closing it ends the program's stdin."""
    stdout: asyncio.StreamReader

    async def wait(self) -> int:
        """Its exit code. Raises MachineUnreachable where the machine was lost before it was known."""

    def said(self) -> str:
        """The last that it said on stderr."""

    def kill(self) -> None:
        """Let go of it at once; whether it ends there too is the machine's to see to."""


class Machine(Protocol):
    """Where programs can be run."""

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        """Start a program. With `stdin` it gets these bytes and no more; what it says comes without anything else.

        Raises MachineUnreachable. A program that is not there may be that (MachineUnusable), or the exit code 127.
        """

    async def aclose(self) -> None:
        """Let go of the machine; what was started there works on."""
