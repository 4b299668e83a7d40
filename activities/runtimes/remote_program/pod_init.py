"""Process 1 of an agent's container: waits, reaps what ends, and has shims stop their agents before the container ends.

`python -I -S -c SOURCE GRACE_S KEEP_S`. Shims, and what asks for them, come by exec. A container that is killed is
started again with the same files: shims are lost then, agents gone, and what they wrote is still there.

What must not live here: anything that is not in the standard library of Python 3.9.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

SHIM = b"steersman-shim"
ENDING = "steersman-end"
"""The name of process 1 once the container is to end."""
MARGIN_S = 3.0
"""Seconds before the end of the container's grace: whatever is still there is killed then."""
LINGER_S = 2.0
"""Seconds that the leader has, once the agents have been stopped, to begin to fetch what they have done."""
LOOK_S = 30.0


def main(grace_s: float, keep_s: float) -> int:
    """The exit code: 0 where nobody has asked for anything for `keep_s`, else as of a process that a signal ended."""
    wakeup, signals = os.pipe()
    for fd in (wakeup, signals):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    used_at = time.monotonic()
    until = agents_seen = None
    while True:
        others = reap_and_list()
        now = time.monotonic()
        if others:
            used_at = now
        if until is not None and shims(others):
            agents_seen = now
        if until is not None and (now > until or not is_wanted(others, agents_seen, now)):
            end_all()
            return 128 + signal.SIGTERM
        if until is None and now - used_at > keep_s:
            return 0
        if select.select([wakeup], [], [], 0.05 if until is not None else min(LOOK_S, keep_s))[0]:
            came = os.read(wakeup, 4096)
            if until is None and (signal.SIGTERM in came or signal.SIGINT in came):
                until = time.monotonic() + max(grace_s - MARGIN_S, grace_s / 2)
                rename(ENDING)  # first: whoever is ended by it can be known not to be worth a next one here
                for pid in shims(reap_and_list()):
                    send(pid, signal.SIGTERM)


def reap_and_list() -> list[int]:
    """All other processes of the container."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def shims(pids: list[int]) -> list[int]:
    """Those of them that are shims. In a namespace that is not ours they would be others', too."""
    found: list[int] = []
    if os.getpid() != 1:
        return found
    for pid in pids:
        try:
            with open("/proc/%d/comm" % pid, "rb") as file:
                if file.read().strip().startswith(SHIM):
                    found.append(pid)
        except OSError:
            pass
    return found


def is_wanted(pids: list[int], agents_seen: float | None, now: float) -> bool:
    """Whether something is still to be done in a container that is to end, in which agents were seen last then."""
    return agents_seen is not None and (now - agents_seen < LINGER_S or bool(programs(pids)))


def programs(pids: list[int]) -> list[int]:
    """Those of them that what came by exec has started. Their parent is neither us nor outside of the container."""
    found: list[int] = []
    for pid in pids:
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) > 1:
                    found.append(pid)
        except (OSError, ValueError, IndexError):
            pass
    return found


def rename(name: str) -> None:
    """Be shown by this name: nobody else can write it."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name)
    except OSError:
        pass


def end_all() -> None:
    """SIGKILL to whatever is left."""
    if os.getpid() == 1:
        send(-1, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """A signal, to a process that may have ended."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2])))
