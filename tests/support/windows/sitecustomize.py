# ruff: noqa: INP001 - Python imports it by this name, from a directory of its own
"""What a Python on Windows does not have, taken from this one: on PYTHONPATH it acts at the interpreter's start.

Not what Windows has instead: paths, consoles and the loop are those of the system at hand.
"""

import asyncio
import os
import signal
import sys
from typing import Any

for module in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[module] = None  # type: ignore[assignment]
for name in ("fork", "forkpty", "getegid", "geteuid", "getgid", "getuid", "killpg", "setsid", "uname"):
    delattr(os, name)
for name in ("SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGWINCH"):
    delattr(signal, name)


def missing(*_: Any) -> Any:
    """As loops of Windows answer."""
    raise NotImplementedError


for name in ("add_reader", "remove_reader", "add_signal_handler", "remove_signal_handler"):
    setattr(asyncio.SelectorEventLoop, name, missing)
