"""Programs that list what is left to do: bounded, and nothing of one survives."""

import asyncio
import os
import stat
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.loops.items.programs import MAX_OUTPUT, ProgramFailed, run_program
from activities.shim.client import is_alive
from tests.support.processes import kill_marked, marked, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

SOON = timedelta(seconds=0.5)


class Stand:
    """Where programs run in a test."""

    def __init__(self, directory: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.place, self.work = directory / "programs", directory / "work"
        self.work.mkdir()

    async def run(self, *argv: str, timeout: timedelta = timedelta(seconds=30)) -> bytes:
        """Its output."""
        environment = {"PATH": os.environ["PATH"], "STAND_MARK": self.mark}
        return await run_program(argv, self.work, environment, self.place, timeout)

    async def problem(self, *argv: str, timeout: timedelta = timedelta(seconds=30)) -> str:
        """Why there was none."""
        with pytest.raises(ProgramFailed) as failed:
            await self.run(*argv, timeout=timeout)
        return str(failed.value)

    def alive(self) -> dict[int, str]:
        """Everything of it that lives."""
        return {pid: line for pid, line in marked(self.mark).items() if "steersman-shim" not in line}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    kill_marked(stand.mark)


async def test_what_it_prints_and_nothing_else(stand: Stand) -> None:
    assert await stand.run("sh", "-c", "echo one; printf two; echo noise >&2") == b"one\ntwo\n"
    assert list(stand.place.iterdir()) == []
    assert stat.S_IMODE(stand.place.stat().st_mode) == 0o700


async def test_it_runs_in_the_workspace_with_the_environment_it_was_given(stand: Stand) -> None:
    said = (await stand.run("sh", "-c", "pwd; env | cut -d= -f1 | sort")).decode().split()
    assert said[0] == str(stand.work)
    assert set(said[1:]) - {"PWD", "OLDPWD", "SHLVL", "_"} <= {"PATH", "STAND_MARK", "STEERSMAN_SHIM", *said}
    assert {"PATH", "STAND_MARK"} <= set(said)
    assert "HOME" not in said


async def test_long_lines_come_whole(stand: Stand) -> None:
    code = "print('x' * 3_000_000)"
    assert await stand.run(sys.executable, "-c", code) == b"x" * 3_000_000 + b"\n"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 3", "ended with exit code 3"),
        ("echo out; echo 'it \033[31mbroke' >&2; exit 1", "ended with exit code 1: it ?[31mbroke"),
        ("echo only out; exit 2", "ended with exit code 2: only out"),
        ("kill -9 $$", "ended with signal 9"),
    ],
)
async def test_one_that_ends_badly(stand: Stand, script: str, problem: str) -> None:
    assert await stand.problem("sh", "-c", script) == problem


async def test_one_that_is_not_there(stand: Stand) -> None:
    assert (await stand.problem("no-such-program")).startswith("could not be run: ")


async def test_one_that_takes_too_long_is_gone_with_all_it_started(stand: Stand) -> None:
    script = "setsid sh -c 'trap \"\" TERM; sleep 600' & echo begun; sleep 600"
    assert await stand.problem("sh", "-c", script, timeout=SOON) == "took longer than 0.5 s and was stopped"
    assert stand.alive() == {}
    assert list(stand.place.iterdir()) == []


@pytest.mark.exhaustive
async def test_one_that_says_too_much_is_stopped(stand: Stand) -> None:
    assert await stand.problem("yes") == "printed more than 200000 lines and was stopped"
    assert await stand.problem("yes", "x" * 10_000) == "printed more than 4 MiB and was stopped"
    assert stand.alive() == {}
    assert len(await stand.run("head", "-c", str(MAX_OUTPUT - 1), "/dev/zero")) == MAX_OUTPUT


async def test_what_it_leaves_behind_goes_too(stand: Stand) -> None:
    assert await stand.run("sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo done") == b"done\n"
    assert stand.alive() == {}


async def test_a_cancel_leaves_nothing(stand: Stand) -> None:
    work = asyncio.create_task(stand.run("sh", "-c", "trap '' TERM; sleep 600"))
    await until(stand.alive)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert stand.alive() == {}
    assert list(stand.place.iterdir()) == []


@pytest.mark.exhaustive
async def test_the_death_of_the_worker_leaves_nothing(stand: Stand) -> None:
    script = (
        "import asyncio, os, sys; from datetime import timedelta; from pathlib import Path\n"
        "from activities.loops.items.programs import run_program\n"
        "env = dict(os.environ)\n"
        f"asyncio.run(run_program(['sleep', '600'], Path('/'), env, Path({str(stand.place)!r}), timedelta(600)))"
    )
    environment = {**os.environ, "STAND_MARK": stand.mark, "PYTHONPATH": str(Path(__file__).parents[2])}
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=environment)
    await until(lambda: any(line.startswith("sleep 600") for line in stand.alive().values()))
    worker.kill()
    await worker.wait()
    await until(lambda: not stand.alive(), 30)
    (left,) = stand.place.iterdir()
    await until(lambda: not is_alive(left / "shim"), 30)
    os.utime(left, (0, 0))
    await stand.run("true")
    assert list(stand.place.iterdir()) == []
