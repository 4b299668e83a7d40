"""Commands with which a worker looks after shims on a machine where it can run programs and nothing else.

    dial DIRECTORY [SECONDS]       stdin and stdout become a connection to the shim there; exit code 3 where no shim
                                   lives, 4 where one does not answer within SECONDS or what listens is none
    alive DIRECTORY                {"alive", "used", "ended", "stopped", "stray"}; the last: nothing of a shim is
                                   there, and one works for it all the same
    entomb DIRECTORY               {"entombed", "used"}: false where a shim lives, which has to be stopped instead;
                                   whether one began its work there
    clear DIRECTORY                kill what a dead shim left: {"processes", "left", "suspects", "proven"}
    kill DIRECTORY                 the same of a shim that lives and does not answer, the shim with it
    thaw DIRECTORY                 SIGCONT to the shim: {"waits_for_disk"}
    journal DIRECTORY AFTER OFFSET what a dead shim wrote: {"offset"}, then the journal from that byte on
    home                           {"home", "time_ms"}: the directory of the user, and the clock
    info NAMES                     {"environ", "programs", "root", "python", "time_ms", "free"}: what a login has; of
                                   the programs with NAMES, a JSON list, those on its PATH; bytes free in the home
    remove ROOT                    delete a directory of directories of shims, unless one of them lives
    strays ROOT DEPTH              agents at work whose directories are gone: {"tags"}
    kill-strays ROOT DEPTH TAG     stop them: as clear

Each answers with one line of JSON, {"ok": true, ...}, or {"ok": false, "error", "message"} with exit code 1. What must
not live here: anything that is not in the standard library of Python 3.9; decisions about when to start or stop.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import sys
import time

from .census import is_impostor
from .leftovers import ShimAlive, has_ended, has_stray, kill_marked, kill_unresponsive, thaw, waits_for_disk
from .lock import entomb, is_alive
from .sockets import connect_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .leftovers import Clearance

GONE = 3
UNRESPONSIVE = 4
DIAL_S = 10.0
_CHUNK = 64 * 1024
_HEADER = re.compile(rb"(\d{1,19}) \d{1,19} [a-z+]{2,4} \d{1,12} [!-~]{1,200}\n")
_HEADER_LIMIT = 512


def main(arguments: list[str]) -> int:
    """One command; its exit code."""
    name, words = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name == "dial" and len(words) in (1, 2):
        return dial(words[0], float(words[1]) if words[1:] else DIAL_S)
    if name == "journal" and len(words) == 3:
        return journal(words[0], int(words[1]), int(words[2]))
    if name not in COMMANDS or len(words) != COMMANDS[name][0]:
        sys.stderr.write(__doc__ or "")
        return 2
    said = answer(name, *words)
    _say(said)
    return 0 if said["ok"] else 1


def answer(name: str, *words: str) -> dict[str, Any]:
    """What a command that looks or stops has to say; also within a worker, for its own machine."""
    try:
        return {"ok": True, **COMMANDS[name][1](*words)}
    except ShimAlive as error:
        return {"ok": False, "error": "already_running", "message": str(error)}
    except OSError as error:
        return {"ok": False, "error": "os_error", "errno": error.errno, "message": str(error)}


def dial(directory: str, patience_s: float) -> int:
    """Be the connection between who runs this program and the shim of a directory, until one of them has ended.

    Whether the shim answers is judged here, where it is: from elsewhere a slow way looks like a shim that does not.
    """
    import threading

    found = _connected(directory, patience_s)
    if isinstance(found, int):
        return found
    try:
        said = _first_line()
        if not said:
            return 0
        found.settimeout(patience_s)
        found.sendall(said)
        answer = found.recv(_CHUNK)
        found.settimeout(None)
        # Two threads, so that neither direction ever waits for the other one.
        threading.Thread(target=_send, args=(found,), daemon=True).start()
        while answer:
            _write(answer)
            answer = found.recv(_CHUNK)
    except socket.timeout:  # no TimeoutError before Python 3.10
        return UNRESPONSIVE
    except OSError:
        pass  # whoever listened is gone, or the shim is: both see it
    return 0


def _connected(directory: str, patience_s: float) -> socket.socket | int:
    """A connection to the shim, or the exit code that says why there is none."""
    until = time.monotonic() + patience_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connect_socket(sock, directory)
            break
        except OSError:
            sock.close()
            if not is_alive(directory):
                return GONE
            if time.monotonic() > until:
                return UNRESPONSIVE
            time.sleep(0.01)
    return UNRESPONSIVE if is_impostor(sock, directory) else sock


def journal(directory: str, after: int, offset: int) -> int:
    """Copy a journal to stdout, from the record after `after`: from byte `offset` where that record begins there, else
    from the first. Which byte that is comes first.
    """
    try:
        fd = os.open(os.path.join(directory, "journal"), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        _say({"ok": False, "error": "gone", "message": f"no journal is in {directory}"})
        return 1
    except OSError as error:
        _say({"ok": False, "error": "corrupt", "message": f"the journal cannot be opened: {error.strerror}"})
        return 1
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        _say({"ok": False, "error": "corrupt", "message": "the journal is no file"})
        return 1
    if offset != found.st_size:
        begin = _HEADER.match(os.pread(fd, _HEADER_LIMIT, offset))
        offset = offset if begin and int(begin[1]) == after + 1 else 0
    _say({"ok": True, "offset": offset})
    os.lseek(fd, offset, os.SEEK_SET)
    try:
        while True:
            data = os.read(fd, _CHUNK)
            if not data:
                return 0
            _write(data)
    except OSError:
        return 1  # cut short: the reader sees that the last record is not `exit`, or not whole


def _alive(directory: str) -> dict[str, Any]:
    alive, used = is_alive(directory), os.path.lexists(os.path.join(directory, "journal"))
    return {
        "alive": alive,
        "used": used,
        "ended": used and has_ended(directory),
        "stopped": os.path.lexists(os.path.join(directory, "stopped")),
        "stray": not alive and not used and has_stray(directory),
    }


def _entomb(directory: str) -> dict[str, Any]:
    barred = os.path.lexists(directory) and not os.path.isdir(directory)  # no shim can make its directory there
    entombed = barred or entomb(directory)
    return {"entombed": entombed, "used": os.path.lexists(os.path.join(directory, "journal"))}


def _info(names: str) -> dict[str, Any]:
    import shutil

    from . import login  # it takes as long to load as all else here

    environ = login.environment()
    return {
        "environ": environ,
        "programs": login.programs(json.loads(names), environ),
        "root": os.geteuid() == 0,
        "python": "%d.%d.%d" % sys.version_info[:3],  # noqa: UP031 - short
        "time_ms": time.time_ns() // 1_000_000,
        "free": shutil.disk_usage(_home()).free,
    }


def _remove(root: str) -> dict[str, Any]:
    import contextlib
    import shutil

    for name in sorted(os.listdir(root)) if os.path.lexists(root) else ():
        each = os.path.join(root, name)
        if is_alive(each):
            raise ShimAlive(f"a shim lives in {each}")
    for path, names, _ in os.walk(root):  # an agent may have made them unwritable, as package caches are
        for inner in (os.path.join(path, name) for name in names):
            with contextlib.suppress(OSError):
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
    shutil.rmtree(root, ignore_errors=True)
    if os.path.lexists(root):
        shutil.rmtree(root)  # to hear why
    return {}


def _strays(root: str, depth: str) -> dict[str, Any]:
    from .strays import find_strays

    return {"tags": sorted(find_strays(root, int(depth)))}


def _kill_strays(root: str, depth: str, tag: str) -> dict[str, Any]:
    from .strays import kill_strays

    return _report(kill_strays(root, int(depth), tag))


def _home() -> str:
    return os.path.expanduser("~")


def _thaw(directory: str) -> dict[str, Any]:
    thaw(directory)
    return {"waits_for_disk": waits_for_disk(directory)}


def _report(cleared: Clearance) -> dict[str, Any]:
    return {
        "processes": cleared.processes,
        "left": list(cleared.left),
        "suspects": list(cleared.suspects),
        "proven": cleared.proven,
    }


COMMANDS: dict[str, tuple[int, Callable[..., dict[str, Any]]]] = {
    "alive": (1, _alive),
    "entomb": (1, _entomb),
    "home": (0, lambda: {"home": _home(), "time_ms": time.time_ns() // 1_000_000}),
    "info": (1, _info),
    "remove": (1, _remove),
    "clear": (1, lambda directory: _report(kill_marked(directory))),
    "kill": (1, lambda directory: _report(kill_unresponsive(directory))),
    "thaw": (1, _thaw),
    "strays": (2, _strays),
    "kill-strays": (3, _kill_strays),
}
"""How many words each takes, and what it does."""


def _first_line() -> bytes:
    """The first words from stdin, up to the end of a line; empty where nobody says any."""
    said = b""
    while b"\n" not in said and len(said) < _CHUNK:
        data = os.read(0, _CHUNK)
        if not data:
            break
        said += data
    return said


def _send(sock: socket.socket) -> None:
    try:
        while True:
            data = os.read(0, _CHUNK)
            if not data:
                sock.shutdown(socket.SHUT_RDWR)  # whoever asked has let go, or the way to them is cut
                return
            sock.sendall(data)
    except OSError:
        pass  # the shim is gone: its end of the connection says so


def _say(said: dict[str, Any]) -> None:
    _write(json.dumps(said).encode() + b"\n")


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
