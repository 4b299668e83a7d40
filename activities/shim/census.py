"""Which processes of this machine are shims, whose, and what may be left of one that was killed. By /proc alone.

What must not live here: stopping anything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from activities.shim.shim import NAME, ProcTable, peer_credentials, read_small

_OLDER_SHIM = b"import shim; sys.exit(shim.main"
"""In the command line of a shim of a release that did not name its processes."""


def has_proc() -> bool:
    """Whether this machine shows its processes in /proc."""
    return Path("/proc/self/stat").exists()


def is_impostor(sock: socket.socket) -> bool:
    """Whether a listener is no shim of ours: another user's process, or one that descends from an agent."""
    uid, pid = peer_credentials(sock)
    return uid not in (os.geteuid(), 0) or (has_proc() and _is_agents(pid))


def shim_of(directory: str | os.PathLike[str]) -> int | None:
    """The process id of the shim that works for this directory, found by its name; whatever became of its files."""
    if not has_proc():
        return None
    wanted = os.fsencode(os.path.realpath(directory))
    for pid, fields in _processes():
        if fields[0] == NAME and fields[1] not in "ZX":
            words = read_small(f"/proc/{pid}/cmdline").split(b"\0")
            if words[:2] == [NAME.encode(), wanted] and not _is_agents(pid):
                return pid
    return None


def unexplained(state: Mapping[str, Any]) -> tuple[int, ...] | None:
    """What may be left of a killed shim's agent though it does not carry its mark: processes of this user that are
    younger, and have the parent that orphans of that shim get. Some may have nothing to do with it.

    Args:
        state: the shim's state.json.

    Returns:
        None where nobody can tell: an older shim's state, or a machine without /proc.
    """
    born, reapers = state.get("start_time"), state.get("reapers")
    if type(born) is not int or not isinstance(reapers, list) or not has_proc():
        return None
    parents = {"1", *map(str, reapers)}
    here = ProcTable().lineage(os.getpid()) or {}
    found = []
    for pid, fields in _processes():
        orphaned = fields[2] in parents and int(fields[20]) >= born and fields[1] not in "ZX" and pid not in here
        if orphaned and _is_ours(pid) and not _is_shim(pid, fields[0]):
            found.append(pid)
    return tuple(sorted(found))


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Each process with its name and the fields of its stat from the state on."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            head, _, rest = read_small(f"/proc/{name}/stat").decode("utf-8", "replace").rpartition(")")
            if rest:
                yield int(name), [head.partition("(")[2], *rest.split()]


def _is_shim(pid: int, name: str) -> bool:
    return name == NAME or _OLDER_SHIM in read_small(f"/proc/{pid}/cmdline")


def _is_agents(pid: int) -> bool:
    table = ProcTable()
    lineage = table.lineage(pid) or {}
    return bool(_shims(lineage) - {pid} - _shims(table.lineage(os.getpid()) or {}))


def _shims(lineage: Mapping[int, bool]) -> set[int]:
    return {pid for pid, is_shim in lineage.items() if is_shim}


def _is_ours(pid: int) -> bool:
    """By real, effective and saved user id: a process that is not dumpable looks like root's in /proc."""
    lines: Iterable[bytes] = read_small(f"/proc/{pid}/status").splitlines()
    ids = next((line.split()[1:4] for line in lines if line.startswith(b"Uid:")), [])
    return str(os.geteuid()).encode() in ids
