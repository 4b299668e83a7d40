"""A repository of 500 MB carried to another machine and back, 50 files changed on each way; beside rsync and git.

Of the machine only its programs are used, so it may be any; here it is a directory that child processes reach by pipes.
"""

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from activities.ports.machine import Machine
from activities.runtimes.machine import ChildMachine
from activities.workspaces.carry.carrier import Carried, RefNames, WorkspaceCarrier
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.git.shadows import Shadows
from bench.agents import Bench
from bench.figures import Figure, Goal, spread
from tests.workspaces.carrying import CountedMachine

FILES, SIZE = 250, 1_000_000
"""Files in the tree, and as many that are in the history alone: of SIZE bytes each, incompressible."""
CHANGED, REGION = 50, 100_000
"""Files in which REGION bytes are changed on each way."""
CHANGE = CHANGED * REGION
SAMPLES = 5


class Way(Protocol):
    """A way to bring `tree` to `there` and back."""

    tree: Path
    there: Path

    async def out(self) -> None:
        """Bring what has changed in `tree`."""

    async def back(self) -> None:
        """Bring what has changed there."""

    def wire(self) -> int:
        """Bytes that went over the wire the last time; 0 where it cannot say."""


class Carry:
    """Copies of a workspace on a machine, each trip one. `refresh`: always the same one. `there`: the copy."""

    def __init__(self, tree: Path, machine: Machine, place: str, *, refresh: bool = False) -> None:
        self.tree, self.there, self.place, self.refresh = tree, tree, place, refresh
        self.machine = CountedMachine(machine)
        self.carrier = WorkspaceCarrier(Shadows(os.environ, [tree.parent]), tree.with_name(f"{tree.name}-state"))
        self.number = 0
        self.carried: Carried | None = None

    async def out(self) -> None:
        self.number += 1
        self.carried = await self.carrier.carry_out(
            self.tree, self._copy, self._names, borrow=False, refresh=self.refresh
        )
        self.there = Path(self.carried.directory)

    async def back(self) -> None:
        assert self.carried
        back = await self.carrier.carry_back(self.carried, self._copy, self._names, "bench", self.tree / "kept")
        if back.conflicts:
            raise AssertionError(f"{len(back.conflicts)} conflicts")
        if not self.refresh:
            await self._copy.remove()

    def wire(self) -> int:
        return sum(self.machine.taken().values())

    @property
    def _copy(self) -> WorkspaceCopy:
        root, stores = f"{self.place}/copy{0 if self.refresh else self.number}", f"{self.place}/stores"
        return WorkspaceCopy(self.machine, root, sys.executable, stores=stores)

    @property
    def _names(self) -> RefNames:
        return RefNames(f"refs/steersman/bench/{self.number}-", f"refs/steersman/conflicts/bench{self.number}")


class Rsync:
    """`rsync -a` of all files, the repository's too, over pipes."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.there = tree, tree.with_name("rsync-there")
        self.shell = tree.with_name("shell")
        self.shell.write_text('#!/bin/sh\nshift; exec "$@"\n')
        self.shell.chmod(0o755)
        self.counted = 0

    async def out(self) -> None:
        await self._sync(f"{self.tree}/", f"there:{self.there}/")

    async def back(self) -> None:
        await self._sync(f"there:{self.there}/", f"{self.tree}/")

    def wire(self) -> int:
        return self.counted

    async def _sync(self, *ends: str) -> None:
        # By all digits of a file's time: what was changed within a second of the last time is else passed over.
        stats = await run(
            self.tree, "rsync", "-a", "--modify-window=-1", "--delete", "--stats", "-e", str(self.shell), *ends
        )
        told = [line.split(":")[1] for line in stats.splitlines() if line.startswith("Total bytes ")]
        self.counted = sum(int(each.replace(",", "")) for each in told)


class Git:
    """A commit, pushed into a repository with a work tree; one there, fetched and merged."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.there = tree, tree.with_name("git-there")

    async def out(self) -> None:
        if not self.there.exists():
            await run(self.tree, "git", "init", "-q", "-b", "main", str(self.there))
            await run(self.there, "git", "config", "receive.denyCurrentBranch", "updateInstead")
        await self._commit(self.tree)
        # steersman: allow-git-push: what git takes for the same is measured
        await run(self.tree, "git", "push", "-q", str(self.there), "main")

    async def back(self) -> None:
        await self._commit(self.there)
        await run(self.tree, "git", "fetch", "-q", str(self.there), "main")
        await run(self.tree, "git", "merge", "-q", "--ff-only", "FETCH_HEAD")

    def wire(self) -> int:
        return 0

    async def _commit(self, tree: Path) -> None:
        await run(tree, "git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-qam", "changed")


class Trips:
    """What going there and back took. Of the first time, when all is sent, the way there alone counts."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.first = (0.0, 0)
        self.seconds: dict[str, list[float]] = {"out": [], "back": []}
        self.wire: dict[str, list[float]] = {"out": [], "back": []}
        self.lost = ""

    async def go(self, sample: int) -> None:
        """Once there and back."""
        change(self.way.tree, f"here {sample}")
        took, wire = await self._timed(self.way.out())
        if sample:
            self._keep("out", took, wire)
        else:
            self.first = took, wire
        if content(self.way.there) != content(self.way.tree):
            self.lost = f"{type(self.way).__name__} {sample}: not all arrived there"
        change(self.way.there, f"there {sample}")
        wanted = content(self.way.there)
        self._keep("back", *await self._timed(self.way.back()))
        if content(self.way.tree) != wanted:
            self.lost = f"{type(self.way).__name__} {sample}: not all came back"

    def _keep(self, way: str, took: float, wire: int) -> None:
        self.seconds[way].append(took)
        self.wire[way].append(wire / CHANGE)

    async def _timed(self, doing: Coroutine[Any, Any, None]) -> tuple[float, int]:
        begun = time.monotonic()
        await doing
        return time.monotonic() - begun, self.way.wire()


async def carry(bench: Bench) -> list[Figure]:
    """A copy on another machine, made and merged; the same change by rsync and by git."""
    home = bench.workspace.with_name("carry")
    there = home / "there"
    there.mkdir(parents=True)
    trees = [home / name for name in ("ours", "git", "rsync", "again")]
    await asyncio.to_thread(lay_out, trees[0])
    for tree in trees[1:]:
        await run(home, "cp", "-a", str(trees[0]), str(tree))
    machine = ChildMachine(there, {"PATH": os.environ["PATH"]})
    ours, others = Trips(Carry(trees[0], machine, str(there))), {"git (push, fetch)": Trips(Git(trees[1]))}
    if shutil.which("rsync"):
        others["rsync -a"] = Trips(Rsync(trees[2]))
    again = Trips(Carry(trees[3], machine, str(there), refresh=True))
    for sample in range(SAMPLES + 1):
        for trips in (ours, again, *others.values()):
            await trips.go(sample)
    await machine.aclose()
    await asyncio.to_thread(shutil.rmtree, home)
    return figures(ours, again, others)


def figures(ours: Trips, again: Trips, others: dict[str, Trips]) -> list[Figure]:
    """The rows."""
    of = f"{CHANGED} changed files, {CHANGE / 1e6:g} MB of {2 * FILES * SIZE / 1e6:g} MB"
    firsts = "".join(f"; {name}: {each.first[0]:.1f} s" for name, each in others.items())
    note = f"the first time {ours.first[0]:.1f} s, {ours.first[1] / 1e6:.0f} MB{firsts}"
    lost = "; ".join(filter(None, (each.lost for each in (ours, again, *others.values()))))
    rows = []
    for way, what in (("out", "to another machine"), ("back", "back from there, merged")):
        beside = (f"{name}: {spread(_ms(each.seconds[way]))}" for name, each in others.items())
        wires = (
            f"{name}: {max(each.wire[way]):.2f} of the change" for name, each in others.items() if any(each.wire[way])
        )
        rows += [
            Figure(f"{of}, {what}", "ms", tuple(_ms(ours.seconds[way])), None, "; ".join(beside), note, lost=lost),
            Figure(f"the same: bytes on the wire, {what}", "% of the change",
                   tuple(100 * each for each in ours.wire[way]), Goal(p50=120, p99=120), "; ".join(wires)),
        ]  # fmt: skip
        note = ""
    same = f"{of}, into the copy that is there"
    return [*rows, Figure(same, "ms", tuple(_ms(again.seconds["out"])), None, rows[0].baseline)]


def _ms(seconds: list[float]) -> list[float]:
    return [1000 * each for each in seconds]


def lay_out(tree: Path) -> None:
    """A repository with FILES files, and others that its history has."""
    tree.mkdir()
    source = random.Random(1)
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tree, check=True)
    for commit in ("first", "second"):
        for number in range(FILES):
            (tree / f"d{number % 10}").mkdir(exist_ok=True)
            (tree / f"d{number % 10}" / f"f{number}").write_bytes(source.randbytes(SIZE))
        for words in (("add", "."), ("commit", "-qm", commit)):
            subprocess.run(["git", *identity, *words], cwd=tree, check=True)
    subprocess.run(["git", "repack", "-adq"], cwd=tree, check=True)


def change(tree: Path, seed: str) -> None:
    """Write REGION bytes into the middle of CHANGED files."""
    source = random.Random(seed)
    for number in range(CHANGED):
        with (tree / f"d{number % 10}" / f"f{number}").open("r+b") as file:
            file.seek(SIZE // 2)
            file.write(source.randbytes(REGION))


def content(tree: Path) -> list[bytes]:
    """Of the files that change."""
    return [(tree / f"d{number % 10}" / f"f{number}").read_bytes() for number in range(CHANGED)]


async def run(directory: Path, *words: str) -> str:
    """What a program prints."""
    process = await asyncio.create_subprocess_exec(*words, cwd=directory, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise AssertionError(f"{' '.join(words)}: exit code {process.returncode}")
    return output.decode()
