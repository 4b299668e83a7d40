"""Programs that behave as badly as agents and their tools do. Each prints `ready` once it is all there."""

import sys


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """A program in Python that starts quickly."""
    return (sys.executable, "-I", "-S", "-u", "-c", code, *arguments)


OBEDIENT = "import time; print('ready'); time.sleep(600)"

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
here, there = os.pipe()
for _ in range(3):
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(there, b"x")
            while True:
                time.sleep(600)
        os._exit(0)
    os.waitpid(middle, 0)
while len(os.read(here, 1)) and (count := globals().get("count", 0) + 1) < 3:
    pass
print("ready")
while True:
    time.sleep(600)
"""
"""Ignores SIGTERM, and so do its three double-forked grandchildren, each in a session of its own."""

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
print("ready")
while True:
    time.sleep(600)
"""
"""Says that it has heard SIGTERM, and stays."""

FLOOD = """
import sys
print("ready")
while True:
    sys.stdout.write("x" * 10_000 + "\\n")
"""
"""Says more than anybody can read, for ever."""

PIPES_HELD = """
import os, signal, sys, time
here, there = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(there, b"x")
    time.sleep(600)
os.read(here, 1)
print("ready")
time.sleep(600)
"""
"""Its child keeps stdout and stderr open whatever becomes of it."""

CRASH = """
import sys
print("about to fail")
print("the reason is", sys.argv[1], file=sys.stderr)
sys.exit(7)
"""
"""Ends with exit code 7 and says why on stderr."""

LISTENING = """
import sys
print("ready")
for line in iter(sys.stdin.readline, ""):
    print("read", repr(line))
    if "bye" in line:
        break
print("done with it")
"""
"""Reads its stdin line by line, says so of each line, and ends by itself once one has "bye" in it."""
