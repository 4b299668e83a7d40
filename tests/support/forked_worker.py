"""Workers forked from a process that has loaded their modules: a start takes a fifth of the processor time."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.forkserver import Forked


def forked_worker(flags: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
    """A worker with these flags, this environment and this log."""
    return Forked(_run, tuple(flags), dict(env), str(log))


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
