"""A program that is run with a parent which inherits its orphans: `python reaper.py PROGRAM [ARGUMENT...]`.

A stop that finds its shim killed looks among the orphans of whoever inherited that shim's. Where all of a machine's are
process 1's, it also meets those of tests that run beside it. Run as a file, by the standard library alone.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def command(program: list[str]) -> list[str]:
    """What runs this program so."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *program]


def main(program: list[str]) -> int:
    """The program's own exit code. Where there is no subreaper it is only run."""
    if sys.platform != "linux":
        os.execvp(program[0], program)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execvp(program[0], program)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the program gets it, too
    for each in PASSED_ON:
        signal.signal(each, lambda number, _: os.kill(child, number))
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
