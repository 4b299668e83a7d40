"""Which processes of this machine are shims, whose, and what may be left of one that was killed. By /proc alone.

What must not live here: stopping anything.
"""

from __future__ import annotations

import os

from .lock import is_alive
from .shim import NAME, ProcTable, peer_credentials, read_small
from .state import state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

_OLDER_SHIM = b"import shim; sys.exit(shim.main"
"""In the command line of a shim of a release that did not name its processes."""


def has_proc() -> bool:
    """Whether this machine shows its processes in /proc."""
    return os.path.exists("/proc/self/stat")


def is_impostor(sock: socket.socket, directory: str | os.PathLike[str]) -> bool:
    """Whether a listener is not the shim of this directory: another user's process, one that descends from an agent, or
    another than the state names, if there is one (a shim listens before it writes its state).
    """
    uid, pid = peer_credentials(sock)
    if uid not in (os.geteuid(), 0):
        return True
    return has_proc() and (_is_agents(pid) or (state_of(directory) is not None and not is_vouched(pid, directory)))


def is_vouched(pid: int, directory: str | os.PathLike[str]) -> bool:
    """Whether the state in this directory names this process as its shim, which is never younger than its agent."""
    state = state_of(directory) or {}
    born = state.get("start_time")
    return state.get("shim_pid") == pid and type(born) is int and ProcTable().start_time(pid) <= born


def shim_of(directory: str | os.PathLike[str]) -> int | None:
    """The process id of the shim that works for this directory, found by its name; whatever became of its files.

    Anybody can take such a name: where more than one has it, the one that the state names is taken.
    """
    if not has_proc():
        return None
    wanted = os.fsencode(os.path.realpath(directory))
    found = [pid for pid, named in shims() if named == wanted and not _is_agents(pid)]
    return next((pid for pid in found if is_vouched(pid, directory)), found[0] if found else None)


def shims() -> Iterator[tuple[int, bytes]]:
    """Process id and directory of what works under a shim's name, which anybody can take."""
    for pid, fields in _processes():
        if fields[0] == NAME and fields[1] not in "ZX":
            words = read_small(f"/proc/{pid}/cmdline").split(b"\0")
            if words[0] == NAME.encode() and len(words) > 1:
                yield pid, words[1]


def unexplained(state: Mapping[str, Any]) -> tuple[int, ...] | None:
    """What may be left of a killed shim's agent though it does not carry its mark: processes of this user that are
    younger, and have the parent that orphans of that shim get. Some may have nothing to do with it.

    Not among them: who is of a session that was there before the agent, or of ours, since nobody can join a session (a
    worker's own programs are of its session); and shims, where their directory bears them out.

    Args:
        state: the shim's state.json; of an older shim, without `reapers`, whoever is older than the agent may be one.

    Returns:
        None where nobody can tell: a state of no shim, or a machine without /proc.
    """
    born, reapers = state.get("start_time"), state.get("reapers")
    if type(born) is not int or not has_proc():
        return None
    processes = dict(_processes())
    older = {str(pid) for pid, fields in processes.items() if int(fields[20]) < born}
    known = map(str, reapers) if isinstance(reapers, list) else older - {str(os.getpid())}  # we adopt only as process 1
    parents = {"1", *known}
    sessions = {"0", *older, str(os.getsid(0))}  # 0: the kernel's own, and of whoever came into this namespace
    here = ProcTable().lineage(os.getpid()) or {}
    found = []
    for pid, fields in processes.items():
        orphaned = fields[2] in parents and int(fields[20]) >= born and pid not in here and fields[4] not in sessions
        if orphaned and _works(fields) and _is_ours(pid) and not _is_shim(pid, fields[0]):
            found.append(pid)
    return tuple(sorted(found))


def _works(fields: list[str]) -> bool:
    """Whether it has not ended: a leader that has, while other threads of it work, is shown as a zombie too."""
    return fields[1] not in "ZX" or int(fields[18]) > 1


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Each process with its name and the fields of its stat from the state on."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            head, _, rest = read_small(f"/proc/{name}/stat").decode("utf-8", "replace").rpartition(")")
            if rest:
                yield int(name), [head.partition("(")[2], *rest.split()]


def _is_shim(pid: int, name: str) -> bool:
    """Its name alone says nothing: the lock of the directory that its command line names is held, and the state there
    names this process.
    """
    words = read_small(f"/proc/{pid}/cmdline").split(b"\0")
    if name == NAME and words[0] == NAME.encode():
        directory = words[1] if len(words) > 1 else b""
    elif any(_OLDER_SHIM in word for word in words) and b"run" in words[:-1]:
        directory = words[words.index(b"run") + 1]
    else:
        return False
    path = os.fsdecode(directory)
    return path.startswith("/") and is_alive(path) and is_vouched(pid, path)


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
