"""Workers that are killed: each call in a process of its own, forked from one that has loaded what it needs.

To load it takes a worker many times as long as what these tests have it do.
"""

import asyncio
import importlib
import json
import os
import select
import subprocess
import sys
import traceback
from pathlib import Path


class Forks:
    """`module`: where the functions are, which are coroutine functions. `errors`: a file for what goes wrong there."""

    def __init__(self, module: str, errors: Path) -> None:
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
            )

    def call(self, function: str, *arguments: object) -> int:
        """What became of a process that calls this function: 0, or minus the number of the signal that killed it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([function, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], 60)[0], "it takes too long"
        code = int(self._process.stdout.readline() or 1)
        assert code <= 0, self._errors.read_text()
        return code

    def close(self) -> None:
        self._process.communicate(timeout=60)


def main(module: str) -> None:
    functions = importlib.import_module(module)
    for line in sys.stdin:
        if not (pid := os.fork()):
            name, arguments = json.loads(line)
            try:
                asyncio.run(getattr(functions, name)(*arguments))
            except BaseException:  # noqa: BLE001 - nothing of it may go on as if it were the parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main(sys.argv[1])
