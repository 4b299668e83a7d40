"""Small programs that behave as badly as agents and their tools do, and ways to look at them from outside."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

from activities.shim.client import Record, RecordStream


def python(code: str) -> list[str]:
    """A program in Python that starts quickly."""
    return [sys.executable, "-I", "-S", "-u", "-c", code]


SLEEP = ["sleep", "600"]

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
while True:
    time.sleep(600)
"""
"""Ignores SIGTERM."""

FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = sys.argv[1]
def settle(name):
    with open(os.path.join(here, name + ".new"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.path.join(here, name + ".new"), os.path.join(here, name + ".pid"))
    while True:
        time.sleep(600)
if os.fork() == 0:
    os.setsid()
    settle("own_session")
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            settle("double_forked")
        os._exit(0)
    os._exit(0)
os.wait()
settle("agent")
"""
"""Ignores SIGTERM, and so do its child in a session of its own and its double-forked grandchild."""


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def pid_in(path: Path) -> int:
    """The process id that an agent has written into a file."""
    return int(path.read_text())


async def family(here: Path) -> list[int]:
    """The process ids of FAMILY, when all of it is there."""
    names = ["agent", "own_session", "double_forked"]
    await until(lambda: all((here / f"{name}.pid").exists() for name in names))
    return [pid_in(here / f"{name}.pid") for name in names]


async def collect(stream: RecordStream, *, until_line: bytes | None = None) -> list[Record]:
    """The stream's records, to its end or to a line of output."""
    found: list[Record] = []
    async with asyncio.timeout(60):
        async for record in stream:
            found.append(record)
            if until_line is not None and record.data == until_line and record.stream in {"out", "err"}:
                await stream.aclose()
                break
    return found


def output(records: list[Record], stream: str = "out") -> list[bytes]:
    """The data of one stream's records."""
    return [record.data for record in records if record.stream == stream]
