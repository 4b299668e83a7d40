"""Programs of ours on a machine. One comes along with each command, so nothing has to be there, and what is there
cannot be of another version.
"""

import functools
from pathlib import Path

from activities.ports.machine import Machine, Stream

_BEGIN = """
import sys
program = sys.stdin.buffer.read(int(sys.argv.pop(1)))
exec(compile(program, "steersman", "exec"))
"""
"""Runs there: the program is what comes first on stdin. It finds its own name to be __main__."""


async def start(machine: Machine, python: str, program: Path, *arguments: str) -> Stream:
    """Start a program, which is one file of standard-library Python. `python`: the interpreter there.

    Raises MachineUnreachable.
    """
    text = _read(program)
    stream = await machine.exec(python, "-I", "-S", "-c", _BEGIN, str(len(text)), *arguments)
    stream.stdin.write(text)
    return stream


@functools.cache
def _read(program: Path) -> bytes:
    return program.read_bytes()
