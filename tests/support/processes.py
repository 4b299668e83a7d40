"""Looking at this machine's processes from outside, and waiting for what is to become true.

Nothing of Steersman is imported here but three of its errors: what it says of its processes is held against what the
system says.
"""

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar, overload

from steersman.errors import HostUnreachable, NoWorker, ServerUnreachable

T = TypeVar("T")

PATIENCE_S = 60.0
"""What `until` waits for at most: what a busy machine takes ten times as long for as an idle one is true in the end."""
MIN_PAUSE_S = 0.02
MAX_PAUSE_S = 0.2
PAUSE_SHARE = 0.1
"""Of the time that was waited already: what `until` pauses, within these bounds."""


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def environment(pid: int) -> bytes:
    """Of a process that lets nobody but root look into it (a shim, by prctl) an empty one where we are not root."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        assert os.geteuid() != 0
        return b""


def stopped(pid: int) -> bool:
    """Whether a process is frozen by SIGSTOP."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()[0] == "T"


def parent(pid: int) -> int | None:
    """The process that a process descends from; None of one that is gone."""
    stat = _stat(pid)
    return int(stat[1]) if stat else None


def children(of: Collection[int]) -> dict[int, list[int]]:
    """The processes that live directly below each of these, in the order of their numbers."""
    found: dict[int, list[int]] = {}
    for pid in sorted(_pids()) if of else ():
        stat = _stat(pid)
        if stat and int(stat[1]) in of and stat[0] not in "ZX":
            found.setdefault(int(stat[1]), []).append(pid)
    return found


def inhabitant(member: int, number: int) -> int | None:
    """The process that has this number in the PID namespace in which `member` lives, as this machine numbers it."""
    space = _namespace(member)
    for pid in _pids() if space else ():
        numbers = _read(pid, "status").partition("NSpid:")[2].partition("\n")[0].split()
        if numbers[-1:] == [str(number)] and _namespace(pid) == space:
            return pid
    return None


def command_lines() -> dict[int, str]:
    """Pid -> arguments of every process but this one, as any user of the machine can read them."""
    return {pid: text for pid in _pids() if (text := _read(pid, "cmdline"))}


def marked(mark: str) -> dict[int, str]:
    """Pid -> arguments of every living process that has `mark` in its arguments or its environment, but this one."""
    found = {}
    for pid in _pids():
        arguments = _read(pid, "cmdline")
        if mark in f"{arguments}{_read(pid, 'environ')}" and lives(pid):
            found[pid] = arguments
    return found


def kill_marked(mark: str) -> None:
    """End what a failed test may have left: everything that carries the mark."""
    deadline = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@overload
async def until(condition: Callable[[], Awaitable[T | None]], timeout_s: float = PATIENCE_S) -> T: ...
@overload
async def until(condition: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T: ...
async def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait until a condition, asynchronous or not, holds; what it then said. Raises AssertionError.

    It is looked at the more rarely the longer it has not held: a query costs server, worker and test 10 ms of processor
    together, and what a test waits for needs it, too. That nobody answered is not the end: clients give up after 5 s,
    and a busy machine's worker may need more.
    """
    begun = time.monotonic()
    deadline = begun + timeout_s
    while True:
        value: Any
        try:
            said = condition()
            value = await said if inspect.isawaitable(said) else said
        except (HostUnreachable, NoWorker, ServerUnreachable) as error:
            value = error
        else:
            if value:
                return value
        now = time.monotonic()
        assert now < deadline, f"not true after {timeout_s:g} s; it last said {value!r}"
        await asyncio.sleep(min(max(MIN_PAUSE_S, (now - begun) * PAUSE_SHARE), MAX_PAUSE_S, deadline - now))


def _pids() -> list[int]:
    own = os.getpid()
    with os.scandir("/proc") as found:
        return [pid for each in found if each.name.isdigit() and (pid := int(each.name)) != own]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """From its state on (proc(5)), as its name may hold anything; nothing of one that is gone."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, what: str) -> str:
    try:
        # Hundreds are read, several times a second: a Path and a buffer would be half of it.
        with open(f"/proc/{pid}/{what}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""
