"""`steer` whose output goes where nobody reads it, and in directories that are not there."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.cli.steer import STEER, Steer
from tests.cli.test_commands import begin
from tests.client.fake_host import FakeHost, succeeded
from tests.client.fake_host import said as more

pytestmark = pytest.mark.integration


def said(script: str, home: Path, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a script of bash, in which "$@" is `steer` with these words."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TEMPORAL_ADDRESS": "127.0.0.1:9"}
    done = subprocess.run(
        ["bash", "-c", script, "bash", *STEER, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("script", "words", "code"),
    [
        ('"$@" 2>&-', ("show", "nobody"), 4),
        ('exec 3> >(true); wait $!; "$@" 2>&3', ("show", "nobody"), 4),
        ('"$@" >&-', ("show", "nobody"), 4),
        ('"$@" >&- 2>&-', ("agents",), 0),
        ('"$@" <&-', ("run", "process", "--", "true"), 4),
        ('"$@" <&-', ("run", "process", "-", "--", "cat"), 4),
        ('"$@" <&-', ("attach", "nobody"), 4),
        ('"$@" <&-', ("undo", "nobody", "--yes"), 4),
        ('"$@" <&- | cat; exit ${PIPESTATUS[0]}', ("acp",), 2),
        ('"$@" </dev/null | cat; exit ${PIPESTATUS[0]}', ("acp", "claude"), 2),
        (': | "$@" | cat; exit ${PIPESTATUS[1]}', ("acp",), 4),
        ('"$@" >&-', ("--help",), 0),
        ('"$@" | true; exit ${PIPESTATUS[0]}', ("schema",), 0),
        ('"$@" | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}', ("schema",), 0),
    ],
)
def test_streams_that_are_closed(tmp_path: Path, script: str, words: tuple[str, ...], code: int) -> None:
    found, err = said(script, tmp_path, *words)
    assert (found, "Traceback" in err) == (code, False), err


@pytest.mark.linux
@pytest.mark.parametrize("words", [("agents",), ("agents", "--json"), ("schema",)])
def test_a_full_disk_behind_its_output(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert said('"$@" >/dev/full', tmp_path, *words) == (1, "error: No space left on device\n")


@pytest.mark.linux
def test_a_full_disk_behind_its_remarks(tmp_path: Path) -> None:
    assert said('"$@" 2>/dev/full', tmp_path, "show", "nobody") == (4, "")


async def test_an_answer_is_printed_where_nobody_reads_the_remarks(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    words = ("bash", "-c", 'exec 3> >(true); wait $!; "$@" 2>&3', "bash", *STEER, "show", "-")
    process = await asyncio.create_subprocess_exec(*words, env=steer.env, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert (process.returncode, run in out.decode()) == (0, True)
    fake_host.finish(run, succeeded())


@pytest.mark.parametrize("words", [("run", "process", "--", "true"), ("checkpoints",), ("loop", "start", "x")])
def test_a_directory_that_is_gone(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, err = said(f'mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; "$@"', tmp_path, *words)
    assert (code, err) == (2, "error: the directory that this was called in is gone\n")


@pytest.mark.parametrize("words", [("attach",), ("attach", "--json")])
async def test_a_run_whose_reader_goes_is_left(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str, words: tuple[str, ...]
) -> None:
    """How it ends, nobody is told: neither that it has succeeded."""
    run = await begin(steersman, workspace)
    script = '"$@" | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}'
    process = await asyncio.create_subprocess_exec("bash", "-c", script, "bash", *STEER, *words, run, env=steer.env)
    ended = asyncio.ensure_future(process.wait())
    while not ended.done():
        fake_host.show(run, more("more"))
        await asyncio.sleep(0.05)
    assert await ended == 130
    fake_host.finish(run, succeeded())
