"""A worker that is killed while a workspace is carried, at any git of it: the next try comes to the same end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspaces.carrying import Carrying, files
from tests.workspaces.test_carry import STATE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

KILLER = """#!/bin/sh
n=$(($(cat {counter}) + 1))
echo $n > {counter}
[ $n != {at} ] || kill -9 {whom}
exec {git} "$@"
"""
WORK = """
import asyncio, json, os, sys
from pathlib import Path
from activities.workspaces.carry.carrier import Carried
from tests.workspaces.carrying import Carrying

async def main(root, path, what, carried):
    os.environ["PATH"] = path
    work = Carrying(Path(root))
    if what == "out":
        await work.out()
        carried = {**work.carried.__dict__, "top": str(work.carried.top)}
    else:
        work.carried = Carried(**{**carried, "top": Path(carried["top"])})
        back = await work.back()
        carried = [back.changed, [os.fsdecode(each) for each in back.conflicts], back.kept]
    await work.close()
    print(json.dumps(carried))

asyncio.run(main(*json.loads(sys.argv[1])))
"""
THERE = (
    "git add -A; git commit -qm theirs; git mv a z; git rm -q run; mkdir new; echo n > new/n; git add new; "
    "echo t > both; git tag v2; git branch topic; git switch -qc side; echo 3 >> z; rmdir empty; ln -s z l2"
)  # fmt: skip
HERE = "echo ours > both; echo mine > mine"


class Killed(Exception):
    """The worker was killed."""


def work(root: Path, what: str, carried: object, at: int) -> object:
    """What carrying came to, in a process of its own, which is killed at its `at`th git."""
    directory = root.parent / f"bin-{what}-{at}"
    directory.mkdir(exist_ok=True)
    counter = directory / "counter"
    counter.write_text("0")
    git = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    whom = f"$(cat {directory / 'pid'})"  # not its parent: that may be the program of the place
    (directory / "git").write_text(KILLER.format(counter=counter, at=at, whom=whom, git=git))
    (directory / "git").chmod(0o755)
    asked = json.dumps([str(root), f"{directory}:{os.environ['PATH']}", what, carried])
    with subprocess.Popen(
        [sys.executable, "-c", WORK, asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        (directory / "pid").write_text(str(process.pid))
        out, errors = process.communicate(timeout=60)
    if process.returncode == -signal.SIGKILL:
        raise Killed
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


def prepared(root: Path) -> Carrying:
    made = Carrying(root)
    made.git()
    made.here(STATE)
    return made


def seen(made: Carrying) -> tuple[object, ...]:
    commands = ("status --porcelain=2 --branch", "log --branches --tags --format=%s%d", "diff", "diff --cached")
    return files(made.top), *(made.here(f"git {command}") for command in commands)


def there_and_back(root: Path, out_at: int, back_at: int) -> tuple[Carrying, object, int]:
    """Both ways, killed once on each; how many of the two it was killed on."""
    made, kills = prepared(root), 0
    try:
        carried = work(root, "out", None, out_at)
    except Killed:
        kills += 1
        carried = work(root, "out", None, 0)
    assert isinstance(carried, dict)
    subprocess.run(["bash", "-ec", THERE], cwd=carried["directory"], env=made.environ, check=True, capture_output=True)
    made.here(HERE)
    try:
        back = work(root, "back", carried, back_at)
    except Killed:
        kills += 1
        back = work(root, "back", carried, 0)
    return made, back, kills


def test_at_every_fourth_git(tmp_path: Path) -> None:
    undisturbed, wanted, kills = there_and_back(tmp_path / "calm" / "root", 0, 0)
    assert (wanted, kills) == ([True, ["both"], "refs/steersman/conflicts/run"], 0)
    expected, at, kills = seen(undisturbed), 1, 1
    total = 0
    while kills:
        made, back, kills = there_and_back(tmp_path / str(at) / "root", at, at)
        assert (back, seen(made)) == (wanted, expected), f"killed at the {at}th git"
        assert not (made.top / ".git" / "index.lock").exists()
        total, at = total + kills, at + 4
    assert total > 10
