"""Agents at work whose directories are gone: found by the tag that their marks begin with, and by the names of shims.

A shim whose directory is gone stops its agent by itself; here is what is left to do where it could not. By /proc; where
there is none, only what carries a known tag is found. What must not live here: what still has its directory.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time

from .census import has_proc, shims
from .leftovers import Clearance
from .shim import MARK, ProcTable, PsTable, kill_all, read_small, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOM, _TAG = 8, 20
"""Digits of a tag that all of one root share, and all of its digits."""
_NOBODY = -1


def tag_of(root: str | os.PathLike[str], name: str) -> str:
    """The tag for the agents whose directories lie in `name`, a path within `root`: 20 hexadecimal digits."""
    return (_room(root) + hashlib.sha256(os.fsencode(name)).hexdigest())[:_TAG]


def _room(root: str | os.PathLike[str]) -> str:
    return hashlib.sha256(os.fsencode(os.path.abspath(root))).hexdigest()[:_ROOM]


def find_strays(root: str | os.PathLike[str], depth: int) -> set[str]:
    """The tags under which agents and shims work now that were started below `root` and see the file systems that this
    process sees.

    Args:
        root: where directories of agents are.
        depth: of how many parts the names are that tags are made of.
    """
    if not has_proc():
        return set()
    wanted = f"\0{MARK}={_room(root)}".encode()
    here = _view("self")
    found = {tag for tag, pid in _named(root, depth) if _view(pid) == here}
    for name in os.listdir("/proc"):
        environ = b"\0" + read_small(f"/proc/{name}/environ") if name.isdigit() else b""
        start = environ.find(wanted)
        if start >= 0 and _view(name) == here:
            value = environ[start + len(MARK) + 2 :]
            found.add(value[:_TAG].decode("ascii", "replace"))
    return found


def _view(pid: int | str) -> str:
    """Which file systems a process sees: what is gone for us may be there for one of another container."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _named(root: str | os.PathLike[str], depth: int) -> Iterator[tuple[str, int]]:
    """Tag and process id of the shims whose command lines name a directory below."""
    above = os.fsencode(os.path.realpath(root)) + b"/"
    for pid, directory in shims() if has_proc() else ():
        if directory.startswith(above):
            name = b"/".join(directory[len(above) :].split(b"/")[:depth])
            yield tag_of(root, os.fsdecode(name)), pid


def kill_strays(root: str | os.PathLike[str], depth: int, tag: str, timeout_s: float = 5.0) -> Clearance:
    """Kill what works under this tag, and look until nothing of it is there. Never proven: the files that would tell
    what else there was are gone.
    """
    table = ProcTable(tag, tag=True) if has_proc() else PsTable(tag)
    killed: set[int] = set()
    until = time.monotonic() + timeout_s
    while True:
        alive = set(table.alive(_NOBODY)) - {os.getpid()}
        owners = {pid for each, pid in _named(root, depth) if each == tag} | _owners(alive)
        if not alive and not owners:
            return Clearance(len(killed))
        if time.monotonic() > until:
            return Clearance(len(killed), tuple(sorted(alive | owners)))
        for pid in owners:
            killed |= _end_shim(pid)
        for pid in alive:
            send(pid, signal.SIGKILL)
        killed |= alive
        time.sleep(0.005)


def _owners(alive: set[int]) -> set[int]:
    """The shims that these processes descend from, each the nearest."""
    if not has_proc():
        return set()
    table = ProcTable()
    here = table.lineage(os.getpid()) or {}
    nearest = (next((above for above, is_shim in (table.lineage(pid) or {}).items() if is_shim), None) for pid in alive)
    return {pid for pid in nearest if pid is not None and pid not in here}


def _end_shim(pid: int) -> set[int]:
    """While the shim is there, orphans of its agent are its children: it goes last. What was killed below it."""
    table = ProcTable()
    killed = set(kill_all(table, pid))
    if not table.alive(pid):
        send(pid, signal.SIGKILL)
    return killed
