"""`steer` as a process, on pipes or at a terminal."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.forked_steer import at_terminal, forked
from tests.cli.terminal import Terminal
from tests.support.forkserver import counts_earlier

ROOT = Path(__file__).resolve().parents[2]
STEER = [sys.executable, "-m", "steersman.cli"]


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Steer:
    """Runs the command with an environment of the test's own."""

    def __init__(self, address: str, home: Path, namespace: str = "default") -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "STEERSMAN_"))}
        self.env = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "TEMPORAL_ADDRESS": address,
            "TEMPORAL_NAMESPACE": namespace,
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "TERM": "xterm-256color",
            "COLUMNS": "100",
            "LINES": "40",
        }
        self.env.pop("NO_COLOR", None)
        self._first = dict(self.env)
        self.terminals: list[Terminal] = []
        self.started: list[asyncio.subprocess.Process] = []

    async def start(self, *words: str, **env: str) -> asyncio.subprocess.Process:
        """The command on pipes, still going."""
        process = await asyncio.create_subprocess_exec(
            *STEER,
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.env | env,
        )
        self.started.append(process)
        return process

    async def __call__(self, *words: str, stdin: str = "", **env: str) -> Said:
        """The command on pipes, to its end."""
        if self._counts_earlier(env):
            return await ended(await self.start(*words, **env), stdin)
        code, out, err = await forked(words, self.env | env, stdin.encode())
        return Said(code, out.decode(), err.decode())

    words = STEER
    """How the command is called."""

    async def at_terminal(self, *words: str, cwd: str | None = None, **env: str) -> Terminal:
        """The command at a terminal of its own."""
        if self._counts_earlier(env):
            terminal = await Terminal.open([*STEER, *words], self.env | env, cwd)
        else:
            terminal = Terminal.of(lambda slave: at_terminal(words, self.env | env, cwd, slave))
        self.terminals.append(terminal)
        return terminal

    def _counts_earlier(self, env: dict[str, str]) -> bool:
        return counts_earlier(dict((self.env | env).items() - self._first.items()))

    async def close(self) -> None:
        for terminal in self.terminals:
            await terminal.close()
        for process in self.started:
            if process.returncode is None:
                process.kill()
                await process.communicate()


async def ended(process: asyncio.subprocess.Process, stdin: str = "") -> Said:
    async with asyncio.timeout(60):
        out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


async def line_with(process: asyncio.subprocess.Process, words: str) -> str:
    """The next line of its output that has these words."""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while line := (await process.stdout.readline()).decode():
            if words in line:
                return line
    raise AssertionError(f"the output ended without {words!r}")
