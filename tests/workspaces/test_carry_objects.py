"""Objects that a machine has from earlier copies of a workspace are not sent again; without them all is sent."""

import asyncio
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.runtimes.machine import ChildMachine
from activities.workspaces.carry import copy_program
from activities.workspaces.carry.copies import CopyFailed
from activities.workspaces.carry.copy_program import KEPT_SNAPSHOTS, MANY_PACKS, UNUSED_S
from tests.workspaces.carrying import COMMIT, Carrying, CountedMachine, files

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SIZE = 300_000
TALK = 20_000 + 2 * Path(copy_program.__file__).stat().st_size
"""Bytes that one way may take beside what has changed: headers, commits and trees, and the program, if brought."""
RANDOM = f"head -c {SIZE} /dev/urandom > "
STATE = f"echo a > a; {RANDOM} big; {RANDOM} big2{COMMIT}first; rm big2; git commit -qam second; git tag -a v1 -m v1; "
STATE += f"{RANDOM} untracked; {RANDOM} staged; git add staged; {RANDOM} staged"


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[Carrying]:
    made = Carrying(tmp_path, borrow=False, stores=True)
    made.git()
    yield made
    await made.close()


def counted(work: Carrying) -> dict[str, int]:
    assert isinstance(work.machine, CountedMachine)
    return work.machine.taken()


def store(work: Carrying) -> Path:
    (found,) = (work.there / "stores").iterdir()
    return found


def packs(work: Carrying) -> list[Path]:
    return sorted((store(work) / "objects" / "pack").glob("*.pack"))


async def check(work: Carrying) -> None:
    """The copy is what the workspace is, with all of its history."""
    assert files(work.copy) == files(work.top)
    for command in ("git status --porcelain=2 --branch", "git log --branches --tags --decorate", "git diff HEAD"):
        assert work.in_copy(command) == work.here(command)
    work.in_copy("git fsck --full --strict")


async def whole(work: Carrying, name: str) -> Carrying:
    """A copy more, which is right; the one after it costs next to nothing."""
    made, after = work.another(name), work.another(f"{name}-after")
    await made.out()
    await check(made)
    counted(work)
    await after.out()
    await check(after)
    assert counted(work)["out"] < TALK
    return after


@pytest.mark.exhaustive
async def test_only_what_has_changed_is_sent_there_and_back(work: Carrying) -> None:
    await work.out(STATE)
    assert counted(work)["out"] > 5 * SIZE
    assert store(work).stat().st_mode & 0o777 == 0o700
    assert not (await work.back()).changed
    assert counted(work)["back"] < TALK
    second = work.another("second")
    await second.out(RANDOM + "new")
    await check(second)
    assert SIZE < counted(work)["out"] < SIZE + TALK
    await second.back(f"{RANDOM} theirs; {RANDOM} theirs2; git add theirs2; git commit -qm theirs; git tag v2")
    assert 2 * SIZE < counted(work)["back"] < 2 * SIZE + TALK
    third = work.another("third")
    await third.out()
    await check(third)
    counts = counted(work)
    assert counts["out"] < TALK
    assert counts["back"] < TALK


async def test_what_the_leader_has_forgotten_is_found_by_its_branches(work: Carrying) -> None:
    await work.out(STATE)
    await work.carrier.forget(work.top, work.names)
    work.here("rm untracked; git reset -q --hard; git gc -q --prune=now")
    counted(work)
    await work.another("second").out(RANDOM + "new")
    assert SIZE < counted(work)["out"] < SIZE + TALK


@pytest.mark.exhaustive
async def test_packs_are_consolidated_while_copies_are_at_work(work: Carrying) -> None:
    copy = await work.out(STATE)
    work.in_copy(RANDOM + "begun; git add begun")
    most = 0
    for number in range(MANY_PACKS):
        run, beside = work.another(f"run{number}"), work.another(f"beside{number}")
        await run.out(f"echo {number} > a; git commit -qam {number}")
        await run.back(f"echo {number} > of-run{number}")
        # What another copy has brought is in the store only: git writes no object that it finds.
        (copy / f"same{number}").write_bytes((run.copy / f"of-run{number}").read_bytes())
        work.in_copy("git add -A; git commit -qm same")
        await asyncio.gather(beside.out(), run.place.remove())
        await check(beside)
        await beside.place.remove()
        most = max(most, len(packs(work)))
    assert most <= 2 * MANY_PACKS
    assert len(packs(work)) < MANY_PACKS
    assert len(json.loads((store(work) / "state.json").read_text())["snapshots"]) == KEPT_SNAPSHOTS
    assert not (store(work) / "consolidation").exists()
    work.in_copy("git fsck --full --strict; git cat-file -e :begun")
    back = await work.back()
    assert back.kept is None or set(back.conflicts) <= {f"same{number}".encode() for number in range(MANY_PACKS)}
    await whole(work, "last")


@pytest.mark.exhaustive
async def test_two_at_once_into_one_store(work: Carrying) -> None:
    work.here(STATE)
    runs = [work.another(f"run{number}") for number in range(4)]
    await asyncio.gather(*(run.out() for run in runs))
    for run in runs:
        await check(run)
    await asyncio.gather(*(run.back() for run in runs))
    await whole(work, "next")


def lose(work: Carrying) -> None:
    shutil.rmtree(store(work))


def truncate(work: Carrying) -> None:
    packs(work)[0].chmod(0o600)
    os.truncate(packs(work)[0], 1000)


def remove_index(work: Carrying) -> None:
    packs(work)[0].with_suffix(".idx").unlink()


def forge_state(work: Carrying) -> None:
    (store(work) / "state.json").write_text('{"files": {"../../x": 1}, "snapshots": [[]], "tips": 3}')


def claim_nothing(work: Carrying) -> None:
    """The state says that nothing is there."""
    (store(work) / "state.json").write_text("[" * 100_000)


def flip(work: Carrying) -> None:
    """Other bytes of the same size."""
    for pack in packs(work):
        pack.chmod(0o600)
        with pack.open("r+b") as file:
            size = pack.stat().st_size
            for offset in range(200, size, 1000):
                file.seek(offset)
                file.write(b"\xaa\x55")


def lie(work: Carrying) -> None:
    """What should be `a` is something else, in a pack that is good by itself."""
    at = store(work) / "objects" / "pack"
    git = ["git", "-C", str(work.root / "forge")]
    subprocess.run(["git", "init", "-q", "--bare", str(work.root / "forge")], check=True)
    good = work.here("git rev-parse :a").strip()
    for pack in packs(work):
        subprocess.run([*git, "unpack-objects", "-q"], input=pack.read_bytes(), check=True)
    listed = subprocess.run([*git, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"],
                            check=True, capture_output=True, text=True).stdout.split()  # fmt: skip
    evil = subprocess.run([*git, "hash-object", "-w", "--stdin"], input="evil", capture_output=True, text=True,
                          check=True).stdout.strip()  # fmt: skip
    shutil.rmtree(at)
    at.mkdir()
    for objects in ([each for each in listed if each != good], [evil]):
        subprocess.run([*git, "pack-objects", "-q", str(at / "pack")], input="\n".join(objects) + "\n", text=True,
                       check=True, capture_output=True)  # fmt: skip
    index = next(each for each in at.glob("*.idx") if bytes.fromhex(evil) in each.read_bytes())
    data = index.read_bytes().replace(bytes.fromhex(evil), bytes.fromhex(good))[:-20]
    fan = b"".join(struct.pack(">I", int(first >= int(good[:2], 16))) for first in range(256))
    data = data[:8] + fan + data[8 + 1024 :]
    index.chmod(0o600)
    index.write_bytes(data + hashlib.sha1(data, usedforsecurity=False).digest())
    state = json.loads((store(work) / "state.json").read_text())
    state["files"] = {each.name: each.stat().st_size for each in at.iterdir()}
    (store(work) / "state.json").write_text(json.dumps(state))


DAMAGES = [lose, truncate, remove_index, forge_state, claim_nothing, flip, lie]


@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
async def test_a_store_that_is_not_what_it_was_is_made_anew(work: Carrying, damage: object) -> None:
    work.here(STATE)
    first = work.another("first")
    await first.out()
    await first.place.remove()
    counted(work)
    assert callable(damage)
    damage(work)
    await whole(work, "second")


@pytest.mark.exhaustive
async def test_a_store_that_is_locked_is_done_without(work: Carrying) -> None:
    impatient = work.root / "copy_program.py"
    text = Path(copy_program.__file__).read_text()
    assert "\nLOCK_S = 5.0\n" in text
    impatient.write_text(text.replace("\nLOCK_S = 5.0\n", "\nLOCK_S = 1.0\n"))
    work.place = dataclasses.replace(work.place, program=str(impatient))
    first = work.another("first")
    await first.out(STATE)
    with (store(work) / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await work.out()
        await check(work)
        await work.place.remove()
    await whole(work, "second")


async def test_a_store_that_nobody_has_used_for_long_goes(work: Carrying) -> None:
    at_work = work.another("at-work")
    await at_work.out(STATE)
    old = work.there / "stores" / ("0" * 32)
    shutil.copytree(store(work), old)
    long_ago = time.time() - UNUSED_S - 60
    for each in (*(work.there / "stores").iterdir(),):
        os.utime(each / "state.json", (long_ago, long_ago))
    run = work.another("run")
    await run.out()
    await run.place.remove()
    assert not old.exists()
    assert store(work) != old
    at_work.in_copy("git fsck --full --strict")


async def test_a_store_that_cannot_be_used_is_done_without(work: Carrying) -> None:
    (work.there / "stores").write_text("no directory")
    await work.out(STATE)
    await check(work)
    back = await work.back(RANDOM + "theirs")
    assert back.conflicts == []
    await work.place.remove()


@pytest.mark.exhaustive
async def test_what_a_machine_says_that_it_has_is_not_trusted(work: Carrying) -> None:
    await work.out(STATE)
    state = json.loads((store(work) / "state.json").read_text())
    state["tips"] = [work.here("git rev-parse HEAD:a").strip(), "0" * 40]
    state["snapshots"] += [work.here("git commit-tree HEAD^{tree} -m unknown").strip(), "--all", "f" * 64]
    (store(work) / "state.json").write_text(json.dumps(state))
    await whole(work, "second")


KILLER = """#!/bin/sh
n=$(($(cat {counter}) + 1))
echo $n > {counter}
[ $n != {at} ] || kill -9 $PPID
exec {git} "$@"
"""


class KilledMachine(ChildMachine):
    """The program there is killed when it runs its `at`th git."""

    def __init__(self, home: Path, at: int) -> None:
        bin_, git = home / f"bin{at}", shutil.which("git")
        bin_.mkdir()
        self.counter = bin_ / "counter"
        self.counter.write_text("0")
        (bin_ / "git").write_text(KILLER.format(counter=self.counter, at=at, git=git))
        (bin_ / "git").chmod(0o755)
        super().__init__(home, {"PATH": f"{bin_}:{os.environ['PATH']}"})


@pytest.mark.exhaustive
async def test_a_receive_that_is_killed_leaves_nothing_wrong(work: Carrying) -> None:
    await work.out(STATE)
    at, kills = 1, 1
    while kills:
        run = work.another(f"run{at}")
        run.here(f"{RANDOM} new{at}")
        machine, kills = KilledMachine(work.there, at), 0
        calm, run.place = run.place, type(run.place)(machine, run.place.root, sys.executable, stores="stores")
        try:
            await run.out()
            await check(run)
            await run.back("echo theirs >> a")
        except CopyFailed as failed:
            if f"exit code {-signal.SIGKILL}" not in str(failed):
                raise
            kills += 1
        run.place = calm
        counted(work)
        await run.out()
        await run.back("echo theirs >> a")
        run.here("git checkout -q a")
        assert counted(work)["out"] < 2 * SIZE
        await machine.aclose()
        await run.place.remove()
        at += 1
    assert at > 8
    await whole(work, "last")
    listed = json.loads((store(work) / "state.json").read_text())["files"]
    assert sorted(listed) == sorted(each.name for each in (store(work) / "objects" / "pack").iterdir())
