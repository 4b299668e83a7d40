"""The real `worker.py` as a process that tests kill, freeze, end and replace.

Knows how to run the program and read its log; what it does for runs is looked at from outside.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.forked_worker import forked_worker
from tests.support.forkserver import Forked, counts_earlier
from tests.support.processes import until

PROGRAM = Path(__file__).parents[2] / "worker.py"
KEPT = ("PATH", "LANG", "SSL_CERT_FILE")
"""Of the tests' environment; all else a worker is given by its test."""
OTHER_PYTHON = "STEERSMAN_TEST_OTHER_PYTHON"
"""Names the Python of another environment (its `bin/python`): every second worker runs under it."""

_started = itertools.count()


class WorkerProcess:
    """One worker. Made running; `ready` waits until it polls."""

    def __init__(
        self,
        log: Path,
        flags: tuple[str, ...],
        env: Mapping[str, str],
        *,
        forked: bool = False,
        within: tuple[str, ...] = (),
    ) -> None:
        """`forked`: see tests.support.forkserver; one whose variables an interpreter itself reads is executed.

        `within`: a command that runs the one behind it.
        """
        self.log = log
        log.touch()
        environment = {**{name: os.environ[name] for name in KEPT if name in os.environ}, **env}
        self._process: subprocess.Popen[bytes] | Forked
        other = os.environ.get(OTHER_PYTHON)
        if forked and not within and not other and not counts_earlier(env):
            self._process = forked_worker(flags, environment, log)
            return
        python = other if other and next(_started) % 2 else sys.executable
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*within, python, str(PROGRAM), *flags],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def said(self, action: str) -> dict[str, Any] | None:
        """The first log line with that `action`."""
        for line in self.log.read_text(encoding="utf-8").splitlines():
            if f'"action": "{action}"' in line:
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    async def ready(self) -> str:
        """Wait until it polls; the host's name."""

        def polling() -> dict[str, Any] | None:
            assert self._process.poll() is None, f"the worker ended: {self.log.read_text(encoding='utf-8')}"
            return self.said("worker_ready")

        line = await until(polling, 60)
        return str(line["host"])

    def freeze(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait(10)

    async def terminate(self) -> int:
        """SIGTERM, as a deploy does; the exit code."""
        self._process.terminate()
        await until(lambda: self._process.poll() is not None, 30)
        code = self._process.returncode
        assert code is not None
        return code
