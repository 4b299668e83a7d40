"""Clearing away what a shim that was killed has left behind: processes that carry its mark in their environment.

Everything in the shim's directory may have been changed by its agent: nothing read here is believed further than it can
be checked, and nothing blocks. What must not live here: stopping the agent of a shim that lives and answers; the shim
does that itself, and better.
"""

from __future__ import annotations

import os
import signal
import time

from .census import has_proc, is_vouched, shim_of, unexplained
from .lock import lock
from .shim import ProcTable, PsTable, boot_id, kill_all, send
from .state import read_state, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NOBODY = -1
_LOOKS = 10
_PASSING_S = 0.5
"""How long a process that may be a leftover is given to end by itself."""


class ShimAlive(Exception):
    """A shim lives in this directory: its agent is stopped through it."""


class Clearance:
    """What became of a dead shim's processes.

    Attributes:
        processes: how many were killed.
        left: ids of those that carry the mark and are there all the same.
        suspects: ids of processes that may belong to them: they have no mark, but the age and parent of a leftover.
        proven: whether nothing can be left: the shim saw the agent's end, or the machine was restarted since, or there
            is no suspect. An agent that forges its run's files can deceive here.
    """

    __slots__ = ("left", "processes", "proven", "suspects")

    def __init__(
        self, processes: int, left: tuple[int, ...] = (), suspects: tuple[int, ...] = (), *, proven: bool = False
    ) -> None:
        self.processes, self.left, self.suspects, self.proven = processes, left, suspects, proven


def thaw(directory: str | os.PathLike[str]) -> None:
    """SIGCONT to the shim of this directory: its agent may have frozen it."""
    pid = shim_of(directory)
    if pid is not None:
        send(pid, signal.SIGCONT)


def has_ended(directory: str | os.PathLike[str]) -> bool:
    """Whether the shim of this directory saw its agent's end."""
    return isinstance((state_of(directory) or {}).get("exit"), dict)


def has_stray(directory: str | os.PathLike[str]) -> bool:
    """Whether a shim works for this directory though its lock says no: its agent has moved or replaced its files."""
    return shim_of(directory) is not None


def waits_for_disk(directory: str | os.PathLike[str]) -> bool:
    """Whether the shim of this directory is held up by the system (state D): it cannot answer, and will go on."""
    pid = shim_of(directory)
    for _ in range(_LOOKS if pid is not None else 0):
        if ProcTable().stat(pid or 0)[:1] == ["D"]:
            return True
        time.sleep(0.01)
    return False


def kill_marked(directory: str | os.PathLike[str], timeout_s: float = 5.0) -> Clearance:
    """Kill what is left of the agent of a shim that died, and look until none of it is there.

    A process that has cleared its environment and lost its parent is not found by the mark; it keeps the clearance from
    being proven. So does whatever cannot be read.

    Raises:
        ShimAlive: a shim lives in this directory: stop its agent through it.
    """
    try:
        with lock(directory) as held:
            if not held:
                raise ShimAlive(f"a shim lives in {directory}: stop its agent through it")
            if shim_of(directory) is not None:
                return kill_unresponsive(directory, timeout_s)  # its lock was taken away
            return _clear(directory, timeout_s)
    except OSError:
        return Clearance(0)


def _clear(directory: str | os.PathLike[str], timeout_s: float) -> Clearance:
    try:
        state = read_state(directory)
    except FileNotFoundError:
        # The shim died before it could have started anything, or somebody has removed its state.
        return Clearance(0, proven=not os.path.lexists(os.path.join(directory, "journal")))
    except (OSError, ValueError):
        return Clearance(0)
    killed, left = _kill(str(state["mark"]), timeout_s)
    if left or isinstance(state.get("exit"), dict) or _was_rebooted(directory, state):
        return Clearance(killed, left, proven=not left)
    suspects = _suspects(state)
    return Clearance(killed, (), suspects or (), proven=suspects == ())


def _kill(mark: str, timeout_s: float) -> tuple[int, tuple[int, ...]]:
    table = ProcTable(mark) if has_proc() else PsTable(mark)
    killed: set[int] = set()
    until = time.monotonic() + timeout_s
    while True:
        alive = table.alive(_NOBODY)
        if not alive or time.monotonic() > until:
            return len(killed), tuple(sorted(alive))
        for pid in alive:
            send(pid, signal.SIGKILL)
        killed.update(alive)
        time.sleep(0.005)


def _suspects(state: dict[str, Any]) -> tuple[int, ...] | None:
    until = time.monotonic() + _PASSING_S
    while (found := unexplained(state)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def kill_unresponsive(directory: str | os.PathLike[str], timeout_s: float = 5.0) -> Clearance:
    """Stop the agent of a shim that lives and does not answer, by hand: every descendant first, then the shim.

    While the shim is there, however frozen, orphans of its agent are its children: none left is proof, where the state
    says that it is the shim. Where none is found, what carries the mark is killed, and nothing is proven.
    """
    pid = shim_of(directory)
    if pid is None:
        cleared = _clear(directory, timeout_s)
        return Clearance(cleared.processes, cleared.left, cleared.suspects)
    # Of a directory that was moved only the shim itself knows where it is.
    vouched = is_vouched(pid, directory) or is_vouched(pid, f"/proc/{pid}/cwd")
    table = ProcTable()
    born, killed = table.start_time(pid), set(table.alive(pid))
    until = time.monotonic() + timeout_s
    while (alive := table.alive(pid)) and time.monotonic() < until:
        killed.update(alive, kill_all(table, pid))
        time.sleep(0.005)
    watched = table.start_time(pid) == born != 0  # had it gone meanwhile, its orphans would have gone elsewhere
    send(pid, signal.SIGKILL)
    while table.start_time(pid) == born and time.monotonic() < until + 1:
        time.sleep(0.005)
    if (watched and vouched) or alive:
        return Clearance(len(killed), tuple(sorted(alive)), proven=not alive and watched and vouched)
    cleared = _clear(directory, timeout_s)
    return Clearance(len(killed) + cleared.processes, cleared.left, cleared.suspects)


def _was_rebooted(directory: str | os.PathLike[str], state: dict[str, Any]) -> bool:
    """The boot id says so, and the time of the last change, which nobody can set back, agrees."""
    if state.get("boot_id") in (None, "", boot_id()) or not has_proc():
        return False
    with open("/proc/uptime", encoding="ascii") as file:
        up_s = float(file.read().split()[0])
    try:
        changed = os.lstat(os.path.join(directory, "state.json")).st_ctime
    except OSError:
        return False
    return changed < time.time() - up_s
