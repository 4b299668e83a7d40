"""`steer` and the client where Python has no POSIX: they follow and talk, and say what is not to be had there."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.cli.steer import ROOT, Steer, line_with
from tests.cli.terminal import Terminal
from tests.cli.test_commands import begin
from tests.client.fake_host import FakeHost, init, said, succeeded

pytestmark = pytest.mark.acceptance
PLACE = ROOT / "tests" / "support" / "windows"


@pytest.fixture
def there(steer: Steer) -> Steer:
    """`steer` without POSIX."""
    steer.env["PYTHONPATH"] = f"{PLACE}:{steer.env['PYTHONPATH']}"
    return steer


async def python(there: Steer, code: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=there.env
    )
    there.started.append(process)
    out, _ = await process.communicate()
    return out.decode()


async def test_it_is_a_python_without_posix(there: Steer) -> None:
    assert "ModuleNotFoundError" in await python(there, "import termios")
    assert "AttributeError" in await python(there, "import os; os.getuid()")


@pytest.mark.parametrize(
    "module",
    ["steersman.client", "steersman.loops", "steersman.hosts", "steersman.encryption", "steersman.cli.main"],
)
async def test_what_others_import_imports(there: Steer, module: str) -> None:
    assert await python(there, f"import {module}; print('imported')") == "imported\n"


async def test_help_and_versions(there: Steer) -> None:
    answer = await there("--help")
    assert answer.code == 0
    assert "attach" in answer.out
    assert (await there("loop", "--help")).code == 0
    assert (await there("agents")).code == 0


@pytest.mark.exhaustive
async def test_runs_are_shown_steered_followed_and_stopped(
    there: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("first words"))
    shown = await there("show", run)
    assert (shown.code, "running" in shown.out) == (0, True)
    assert (await there("steer", run, "look left")).code == 0
    assert [each.text for each in fake_host.fake_run(run).messages] == ["look left"]
    assert run in (await there("list")).out
    following = await there.start("attach", run)
    await line_with(following, "first words")
    following.send_signal(signal.SIGINT)
    assert await following.wait() == 130
    fake_host.finish(run, succeeded("all done"))
    followed = await there("attach", run)
    assert (followed.code, "first words" in followed.out) == (0, True)


@pytest.mark.exhaustive
async def test_at_a_console_nobody_is_asked(
    there: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("first words"))
    path = there.env.pop("PYTHONPATH")  # the terminal itself is a POSIX one
    terminal = await Terminal.open(["/usr/bin/env", f"PYTHONPATH={path}", *there.words, "attach", run], there.env)
    there.terminals.append(terminal)
    await terminal.until("first words")
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    await terminal.until(f"steer attach {run}")
    assert "[K]eep" not in terminal.text


@pytest.mark.parametrize("words", [("worker",), ("dev",)])
async def test_workers_are_refused_in_a_sentence(there: Steer, words: tuple[str, ...]) -> None:
    answer = await there(*words)
    assert answer.code == 2
    assert "workers run on Linux and macOS" in answer.err
    assert "Traceback" not in answer.err


async def test_the_codecs_keys_are_refused_in_a_sentence(there: Steer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    answer = await there("codec", "new-key", str(keys))
    assert answer.code != 0
    assert "not on Windows" in answer.err
    assert not keys.exists()
