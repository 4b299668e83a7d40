"""Agents that number what they say and keep a record of their own, so that loss, doubling and a second agent show."""

import sys
from pathlib import Path

COUNTING = """
import fcntl, os, signal, sys, time
record, lines, pause_s, stubborn = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "stubborn"
token = f"{os.getpid()}-{time.time_ns()}"
lock = os.open(record + "/lock", os.O_CREAT | os.O_RDWR)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(record + "/overlap-" + token, "w").close()
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for _ in range(3):
        middle = os.fork()
        if middle == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                while True:
                    time.sleep(600)
            os._exit(0)
        os.waitpid(middle, 0)
said = os.open(record + "/said-" + token, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.write(1, f"begin {token}\\n".encode())
number = 0
while number < lines or stubborn:
    number += 1
    os.write(1, f"line {number}\\n".encode())
    os.write(said, f"{number}\\n".encode())
    time.sleep(pause_s)
"""
"""Holds a lock while it, or a process of its own, lives; notes each line after it was said. Stubborn: ignores SIGTERM,
never ends, and leaves three double-forked grandchildren in sessions of their own."""


def counting(record: Path, lines: int, pause_s: float, *, stubborn: bool = False) -> tuple[str, ...]:
    """The command of a program that says `lines` numbered lines."""
    manner = "stubborn" if stubborn else "obedient"
    return (sys.executable, "-I", "-S", "-c", COUNTING, str(record), str(lines), str(pause_s), manner)
