"""Workers that are forked from a process which has loaded their modules: a start takes a fifth of the processor time.

Each is a process of its own all the same, with the flags, environment and log that it is given. What differs: /proc
says what that process was started with, as nothing was executed since; and what an interpreter reads of its
environment before a program begins (PYTHON*, the locale, the loader's variables) does not count.
"""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_LOADED = ("tests.support.forked_worker", "activities.agents.claude.conversation")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*_LOADED, "worker"])


class ForkedWorker:
    """As subprocess.Popen, as far as a test needs it."""

    def __init__(self, flags: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._process = _context.Process(target=_run, args=(tuple(flags), dict(env), str(log)), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker.py", timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _run(flags: tuple[str, ...], env: dict[str, str], log: str) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for descriptor, source in enumerate((nowhere, nowhere, said)):
        os.dup2(source, descriptor)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["worker.py", *flags]
    code: int = importlib.import_module("worker").main(flags)
    sys.stderr.flush()
    os._exit(code)  # as worker.py ends
