"""Running git: however it is ended, neither a process nor a descriptor of it is left."""

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from activities.workspaces.git.runner import GitFailed, GitOutput, GitRunner
from tests.support.processes import lives, marked, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

# It does not end when it is asked to.
START = "#!/bin/sh\ntrap '' TERM\necho $$ > pid\n"
FLOOD, SILENCE = "exec yes\n", "exec sleep 600\n"

Make = Callable[[str, float], GitRunner]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A program in the place of git, and when it is to have ended."""
    lock_descriptor = os.open(tmp_path, os.O_RDONLY)

    def made(script: str, seconds: float) -> GitRunner:
        program = tmp_path / "git"
        program.write_text(START + script)
        program.chmod(0o755)
        return GitRunner(
            str(program), tmp_path, dict(os.environ), asyncio.get_running_loop().time() + seconds, lock_descriptor
        )

    yield made
    os.close(lock_descriptor)


def pipes() -> set[str]:
    """Those that this process has open, by their names. One that an earlier test had left may go at any time."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(each.readlink()))
    return {each for each in found if each.startswith("pipe:")}


def pid(git: GitRunner) -> int:
    file = git.directory / "pid"
    return int((file.exists() and file.read_text()) or 0)


@pytest.mark.exhaustive
async def test_one_that_says_more_than_is_wanted(make: Make) -> None:
    before, git = pipes(), make(FLOOD, 60)
    assert await git.read("log", limit=4) == GitOutput(b"y\ny\n", cut=True)
    assert pipes() <= before
    assert not lives(pid(git))


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", [FLOOD, SILENCE], ids=["flood", "silence"])
async def test_one_that_takes_too_long(make: Make, script: str) -> None:
    before, git = pipes(), make(script, 0.5)
    with pytest.raises(GitFailed, match=r"git log (took too long|printed more)"):
        await git.run("log")
    assert pipes() <= before
    assert not lives(pid(git))


async def test_one_that_nobody_waits_for_any_more(make: Make) -> None:
    before, git = pipes(), make(SILENCE, 60)
    asked = asyncio.create_task(git.run("log"))
    await until(lambda: pid(git))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert pipes() <= before
    assert not lives(pid(git))


async def test_a_cancel_in_the_moment_of_a_start_leaves_nothing(tmp_path: Path) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nsleep 1000 & wait\n")
    program.chmod(0o755)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    environment = {"PATH": os.environ["PATH"], "MARK": mark}
    for pause in range(20):
        git = GitRunner(str(program), tmp_path, environment, asyncio.get_running_loop().time() + 60, lock)
        running = asyncio.create_task(git.run("status"))
        await asyncio.sleep(pause * 0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert marked(mark) == {}, pause
    os.close(lock)
