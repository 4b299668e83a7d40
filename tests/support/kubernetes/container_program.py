"""The program that makes a container: its child is process 1 of namespaces of its own, and it ends as that one does.

`unshare` would do, but says of a process that was killed that it has ended with 1. The child makes the root, a writable
layer in memory over the machine's own root, mounts the volumes there and runs the command in it. What it is to do comes
as JSON from a descriptor. The child's number goes to a FIFO, and why there is no command; that is closed once there is.
The standard library alone is used: each container waits for its imports.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x4000000, 0x8000000, 0x20000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 1, 24, 38, 47, 4
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
OLD = "/.machine"
"""Where the machine's root is until the container has all that it needs of it."""
KEPT = ("/proc", "/sys", "/dev", "/run")
"""Mounts of the machine that are handled by name, or not at all."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """`program SPEC_FD STATUS_FIFO`."""
    status = os.open(sys.argv[2], os.O_WRONLY | os.O_CLOEXEC)
    with os.fdopen(int(sys.argv[1]), "rb") as given:
        spec = json.load(given)
    _unshare(CLONE_NEWPID)
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.write(status, f"{pid}\n".encode())
        os.close(tell)
        os.close(status)
        os.closerange(0, 3)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    os.close(tell)
    os.read(told, 1)  # its number comes first, then why there is no command
    try:
        become(spec)
    except OSError as error:
        os.write(status, (error.strerror or str(error)).encode())
    os._exit(128)


def become(spec: dict[str, Any]) -> None:
    """Raises OSError; what it says is the runtime's message."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
    _mount("", "/", "", MS_REC | MS_PRIVATE)
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    socket.sethostname(spec["hostname"])
    make_root(spec["root"], spec["hidden"])
    for volume in spec["mounts"]:
        mount_volume(volume)
    if spec["read_only_root"]:
        _mount("", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY)
    _detach(OLD)
    os.umask(0o022)
    run(spec)


def make_root(scratch: str, hidden: list[str]) -> None:
    """A layer in memory over `/` and what is mounted below it, with the machine's devices and processes of its own."""
    mounted = _mounts(scratch)
    _mount("container", scratch, "tmpfs", 0, "mode=755")
    for name in ("root", "layers"):
        Path(scratch, name).mkdir()
    root = f"{scratch}/root"
    _overlay("/", root, f"{scratch}/layers/root")
    Path(f"{root}{OLD}").mkdir(exist_ok=True)
    for number, place in enumerate(mounted):
        _layer(place, f"{root}{place}", f"{scratch}/layers/{number}")
    _pivot(root)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in ("/sys", "/dev"):
        _mount(f"{OLD}{name}", name, "", MS_BIND | MS_REC)
    _mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    _open_up("/root")
    for place in hidden:
        Path(place).mkdir(parents=True, exist_ok=True)
        _mount("hidden", place, "tmpfs", 0, "mode=755")


def mount_volume(volume: dict[str, Any]) -> None:
    """Bind a directory, or a file, of the machine."""
    source, target = Path(f"{OLD}{volume['source']}"), Path(volume["target"])
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(source), str(target), "", MS_BIND | MS_REC)
    if volume["read_only"]:
        _mount("", str(target), "", MS_REMOUNT | MS_BIND | MS_RDONLY)


def run(spec: dict[str, Any]) -> None:
    """Become the command, as its user, in its directory."""
    directory = Path(spec["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(directory)
    environment, argv = spec["environment"], spec["argv"]
    path = _program(argv[0], environment)
    if spec["drop_capabilities"]:
        _drop_capabilities()
    if spec["no_new_privileges"]:
        _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups(spec["groups"])
    os.setgid(spec["gid"])
    os.setuid(spec["uid"])
    try:
        os.execve(path, argv, environment)
    except OSError as error:
        raise OSError(0, f'exec: "{argv[0]}": {_lowered(error)}') from error


def _program(name: str, environment: dict[str, str]) -> str:
    if "/" in name:
        if not Path(name).exists():
            raise OSError(0, f'exec: "{name}": stat {name}: no such file or directory')
        return name
    for place in environment.get("PATH", "").split(":"):
        candidate = Path(place or ".", name)
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    raise OSError(0, f'exec: "{name}": executable file not found in $PATH')


def _drop_capabilities() -> None:
    """None can be had again: a program that root runs has no more than are in the bounding set."""
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    keep = {6, 7}  # setgid and setuid are needed to become the container's user; `_libc.prctl` refuses unknown ones
    for number in range(64):
        if number not in keep and _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0):
            break


def _open_up(place: str) -> None:
    """The container's user may have to reach a program that lies there, as it can in an image."""
    if Path(place).is_dir():
        Path(place).chmod(0o755)


def _mounts(scratch: str) -> list[str]:
    """Directories and files of the machine that are mounted below `/` and hold what programs may need."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place = line.split()[4].encode().decode("unicode_escape")
        if place != "/" and not place.startswith(scratch) and not f"{place}/".startswith(tuple(f"{k}/" for k in KEPT)):
            found.append(place)
    return found


def _layer(place: str, target: str, layers: str) -> None:
    """A directory gets a layer of its own where the file system below can bear one; anything else is bound."""
    try:
        if Path(place).is_dir():
            _overlay(place, target, layers)
            return
    except OSError:
        pass
    try:
        _mount(place, target, "", MS_BIND)
    except OSError:
        pass  # covered by a mount above it


def _overlay(lower: str, target: str, layers: str) -> None:
    for name in ("upper", "work"):
        Path(layers, name).mkdir(parents=True)
    mode = Path(lower).stat().st_mode & 0o7777
    Path(layers, "upper").chmod(mode)
    _mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={layers}/upper,workdir={layers}/work")


def _pivot(root: str) -> None:
    number = SYS_PIVOT_ROOT[os.uname().machine]
    if _libc.syscall(number, root.encode(), f"{root}{OLD}".encode()):
        raise _error("pivot_root")
    os.chdir("/")


def _detach(place: str) -> None:
    if _libc.umount2(place.encode(), MNT_DETACH):
        raise _error(f"unmount {place}")
    try:
        Path(place).rmdir()
    except OSError:
        pass  # a root that is read-only keeps the empty directory


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        raise _error("unshare")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()):
        raise _error(f"mount {source or kind} at {target}")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number).lower()}")


def _lowered(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


if __name__ == "__main__":
    main()
