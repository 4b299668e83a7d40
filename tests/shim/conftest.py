"""Shims for tests: real ones, started in a temporary directory, and gone when the test is over."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from activities.shim.client import Connection, Input, ShimError, Spec, Status, connect, is_alive, kill_marked, start
from tests.shim.agents import until


def oldest_python() -> str | None:
    """Python 3.9, the oldest that the shim has to run under, where this machine has one."""
    return next(iter(pythons("3.9")), None)


def pythons(version: str) -> list[str]:
    """Interpreters of a version, as "3.9", on this machine."""
    found = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    others = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    return [*map(str, others), *([found] if found else [])]


class Shims:
    """Starts shims and remembers them."""

    def __init__(self, root: Path, python: str, processes: str | None) -> None:
        self.root = root
        self.python = python
        self.processes = processes
        self._used: list[Path] = []

    def directory(self, name: str | None = None) -> Path:
        path = self.root / (name or f"shim{len(self._used)}")
        self._used.append(path)
        return path

    async def start(
        self,
        argv: Sequence[str],
        *,
        directory: Path | None = None,
        env: dict[str, str] | None = None,
        input: Sequence[Input] = (),
        close_stdin: bool = False,
        lease: timedelta = timedelta(seconds=60),
    ) -> "Running":
        directory = directory or self.directory()
        environment = dict(os.environ) if env is None else env
        spec = Spec(argv, self.root, environment, input=input, close_stdin=close_stdin, lease=lease)
        status = await start(directory, spec, python=self.python, processes=self.processes)
        return Running(directory, status)

    async def end(self) -> None:
        for directory in filter(is_alive, self._used):
            with contextlib.suppress(ShimError):
                async with await connect(directory, epoch=None) as connection:
                    await connection.stop(terminate_after=timedelta(0), kill_after=timedelta(0))
                    await connection.release()
        await until(lambda: not any(map(is_alive, self._used)))
        for directory in filter(Path.exists, self._used):
            await kill_marked(directory)  # of a shim that the test has killed


class Running:
    """One started shim."""

    def __init__(self, directory: Path, status: Status) -> None:
        self.directory = directory
        self.status = status

    @contextlib.asynccontextmanager
    async def controller(self, epoch: int = 1) -> AsyncIterator[Connection]:
        async with await connect(self.directory, epoch=epoch) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def observer(self) -> AsyncIterator[Connection]:
        async with await connect(self.directory, epoch=None) as connection:
            yield connection

    async def release(self) -> None:
        async with self.observer() as connection:
            await connection.release()
        await until(lambda: not is_alive(self.directory))

    async def kill_shim(self) -> None:
        os.kill(self.status.shim_pid, signal.SIGKILL)
        await until(lambda: not is_alive(self.directory))

    async def stopped(self, terminate_after: float = 0.0, kill_after: float = 0.3) -> object:
        async with self.observer() as connection:
            return await asyncio.wait_for(
                connection.stop(
                    terminate_after=timedelta(seconds=terminate_after), kill_after=timedelta(seconds=kill_after)
                ),
                20,
            )


@pytest.fixture
async def shims(tmp_path: Path) -> AsyncIterator[Shims]:
    """Shims of this Python, with the process table that they choose."""
    made = Shims(tmp_path, sys.executable, None)
    yield made
    await made.end()


@pytest.fixture(params=["here", "python3.9", "ps"])
async def every_shim(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shims]:
    """Each way to run a shim: this Python, the oldest one, and the process table of a machine without /proc."""
    python: str | None = sys.executable
    if request.param == "python3.9":
        python = oldest_python()
    if python is None:
        pytest.skip("no Python 3.9 on this machine")
    if request.param == "ps" and not Path("/bin/ps").exists():
        pytest.skip("no ps on this machine")
    made = Shims(tmp_path, python, "ps" if request.param == "ps" else None)
    yield made
    await made.end()
