"""A worker that is killed while a workspace is carried, at any git of it: the next try comes to the same end."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.workspaces.carry.carrier import Carried
from activities.workspaces.git.checkpoint_commits import hashed
from tests.workspaces.carrying import Carrying, files
from tests.workspaces.forks import Forks
from tests.workspaces.test_carry import STATE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

KILLER = """#!/bin/sh
n=$(($(cat {counter}) + 1))
echo $n > {counter}
[ $n != {at} ] && ! {when} || kill -9 {whom}
exec {git} "$@"
"""
THERE = (
    "git add -A; git commit -qm theirs; git mv a z; git rm -q run; mkdir new; echo n > new/n; git add new; "
    "echo t > both; git tag v2; git branch topic; git switch -qc side; echo 3 >> z; rmdir empty; ln -s z l2"
)  # fmt: skip
HERE = "echo ours > both; echo mine > mine"


class Killed(Exception):
    """The worker was killed."""


async def carry(directory: str, root: str, what: str, carried: Any) -> None:
    """A worker's part, in a process of its own."""
    Path(directory, "pid").write_text(str(os.getpid()))
    os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"
    work = Carrying(Path(root))
    if what == "out":
        await work.out()
        assert work.carried
        carried = {**work.carried.__dict__, "top": str(work.carried.top)}
    else:
        work.carried = Carried(**{**carried, "top": Path(carried["top"])})
        back = await work.back()
        carried = [back.changed, [os.fsdecode(each) for each in back.conflicts], back.kept]
    await work.close()
    Path(directory, "carried").write_text(json.dumps(carried))


def work(workers: Forks, root: Path, what: str, carried: object, at: int, when: str = "false") -> object:
    """What carrying came to, in a process of its own, killed at its `at`th git or where `when` succeeds."""
    directory = root.parent / f"bin-{what}-{at}"
    directory.mkdir(exist_ok=True)
    counter = directory / "counter"
    counter.write_text("0")
    whom = f"$(cat {directory / 'pid'})"  # not its parent: that may be the program of the place
    (directory / "git").write_text(KILLER.format(counter=counter, at=at, when=when, whom=whom, git=shutil.which("git")))
    (directory / "git").chmod(0o755)
    if workers.call("carry", str(directory), str(root), what, carried) == -signal.SIGKILL:
        raise Killed
    return json.loads((directory / "carried").read_text())


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Forks]:
    made = Forks(__name__, tmp_path / "errors")
    yield made
    made.close()


def prepared(root: Path) -> Carrying:
    made = Carrying(root)
    made.git()
    made.here(STATE)
    return made


def seen(made: Carrying) -> tuple[object, ...]:
    commands = ("status --porcelain=2 --branch", "log --branches --tags --format=%s%d", "diff", "diff --cached")
    return files(made.top), *(made.here(f"git {command}") for command in commands)


def left(made: Carrying) -> set[str]:
    """What is in the state directory but for our git directories: files and packs of a moment."""
    state, ours = made.root / "state", f"{hashed(os.fsencode(made.top))}-carry"
    return {each.name for each in (*state.iterdir(), *(state / ours).iterdir())} - {ours, "git", "lock"}


def there_and_back(workers: Forks, root: Path, out_at: int, back_at: int) -> tuple[Carrying, object, int]:
    """Both ways, killed once on each; how many of the two it was killed on."""
    made, kills = prepared(root), 0
    try:
        carried = work(workers, root, "out", None, out_at)
    except Killed:
        kills += 1
        carried = work(workers, root, "out", None, 0)
    assert isinstance(carried, dict)
    subprocess.run(["bash", "-ec", THERE], cwd=carried["directory"], env=made.environ, check=True, capture_output=True)
    made.here(HERE)
    try:
        back = work(workers, root, "back", carried, back_at)
    except Killed:
        kills += 1
        back = work(workers, root, "back", carried, 0)
    return made, back, kills


def test_what_a_killed_worker_has_left_of_it_goes(workers: Forks, tmp_path: Path) -> None:
    """The files that it was about to write, and all of the pack."""
    made = prepared(tmp_path / "root")
    carried = work(workers, made.root, "out", None, 0)
    assert isinstance(carried, dict)
    subprocess.run(["bash", "-ec", THERE], cwd=carried["directory"], env=made.environ, check=True)
    with pytest.raises(Killed):
        work(workers, made.root, "back", carried, -1, f"ls -d {made.root}/state/*/tmp* >/dev/null 2>&1")
    assert {name[:3] for name in left(made)} == {"pac", "tmp"}
    work(workers, made.root, "back", carried, 0)
    assert not left(made)


@pytest.mark.exhaustive
def test_at_every_fourth_git(workers: Forks, tmp_path: Path) -> None:
    undisturbed, wanted, kills = there_and_back(workers, tmp_path / "calm" / "root", 0, 0)
    assert (wanted, kills) == ([True, ["both"], "refs/steersman/conflicts/run"], 0)
    expected, at, kills = seen(undisturbed), 1, 1
    total = 0
    while kills:
        made, back, kills = there_and_back(workers, tmp_path / str(at) / "root", at, at)
        assert (back, seen(made)) == (wanted, expected), f"killed at the {at}th git"
        assert not (made.top / ".git" / "index.lock").exists()
        assert not left(made)
        total, at = total + kills, at + 4
    assert total > 10
