"""The process from which tests fork workers and `steer`, once it has loaded their modules.

Each is a process of its own all the same. What differs: /proc says what that process was started with, as nothing was
executed since; and what an interpreter reads of its environment before a program begins does not count.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import steersman.cli

FOR_INTERPRETER = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_")
"""What variables begin with that count before a program begins."""

_CLI = Path(steersman.cli.__file__).parent
_STEER = [
    ".".join(("steersman.cli", *path.relative_to(_CLI).with_suffix("").parts))
    for path in sorted(_CLI.rglob("*.py"))
    if not path.stem.startswith("__")
]
_WORKER = ["activities.agents.claude.conversation", "worker"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.forked_worker", "tests.cli.forked_steer", *_STEER, *_WORKER])


def counts_earlier(variables: Iterable[str]) -> bool:
    """Whether one of these variables is read before a program begins: it has to be executed then."""
    return any(name.startswith(FOR_INTERPRETER) for name in variables)


class Forked:
    """A function in a process of its own, as subprocess.Popen has a program's, as far as a test needs it."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._process = _context.Process(target=function, args=arguments, daemon=True)
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

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            with contextlib.suppress(
                ProcessLookupError
            ):  # its parent is the fork server, which takes its exit at any moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Descriptor:
    """An open file among the arguments of such a function, which gets its number there."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _received, (reduction.DupFd(self._number),)


def _received(passed: Any) -> int:
    number: int = passed.detach()
    return number
