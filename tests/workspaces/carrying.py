"""A workspace, a copy of it that is reached by programs alone, and what a person and an agent do to the two."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from activities.ports.machine import Machine, Stream
from activities.runtimes.machine import ChildMachine
from activities.workspaces.carry.carrier import Carried, RefNames, Returned, WorkspaceCarrier
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.git.shadows import Shadows

NAMES = RefNames("refs/steersman/runs%2F00/run-", "refs/steersman/conflicts/run")
COMMIT = "; git add -A; git commit -qm "


class CountedStream:
    """A stream that counts its bytes in `counts`."""

    def __init__(self, stream: Stream, counts: dict[str, int]) -> None:
        self.stream, self.counts = stream, counts
        self.stdin: Any = self
        self.stdout: Any = self

    def write(self, data: bytes) -> None:
        self.counts["out"] += len(data)
        self.stream.stdin.write(data)

    async def drain(self) -> None:
        await self.stream.stdin.drain()

    def close(self) -> None:
        self.stream.stdin.close()

    async def read(self, most: int) -> bytes:
        data = await self.stream.stdout.read(most)
        self.counts["back"] += len(data)
        return data

    async def readline(self) -> bytes:
        line = await self.stream.stdout.readline()
        self.counts["back"] += len(line)
        return line

    async def wait(self) -> int:
        return await self.stream.wait()

    def said(self) -> str:
        return self.stream.said()

    def kill(self) -> None:
        self.stream.kill()


class CountedMachine:
    """Another machine, and the bytes that went `out` to it and came `back` since `counts` were taken."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.counts = {"out": 0, "back": 0}

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        self.counts["out"] += len(stdin or b"")
        return CountedStream(await self.machine.exec(*argv, stdin=stdin), self.counts)

    def taken(self) -> dict[str, int]:
        counted = dict(self.counts)
        self.counts.update(out=0, back=0)
        return counted

    async def aclose(self) -> None:
        await self.machine.aclose()


class Carrying:
    """`top`: the workspace. `copy`: the copy, once it was carried out.

    `of`: another one, of whose workspace this is one more copy. `stores`: copies share objects.
    """

    def __init__(
        self, root: Path, *, borrow: bool = True, stores: bool = False, of: "Carrying | None" = None, name: str = "run"
    ) -> None:
        self.root, self.borrow = root, borrow
        self.names = RefNames(f"refs/steersman/runs%2F00/{name}-", f"refs/steersman/conflicts/{name}")
        self.top = root / "work" / "top"
        self.top.mkdir(parents=True, exist_ok=True)
        self.home, self.there = root / "home", root / "there"
        for each in (self.home, self.there):
            each.mkdir(exist_ok=True)
        dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-01-01T00:00:00Z")
        self.environ = {**os.environ, **dates, "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}
        shadows = Shadows(self.environ, [root / "work"])
        self.carrier = WorkspaceCarrier(shadows, root / "state")
        self.machine: Machine = (
            of.machine if of else CountedMachine(ChildMachine(self.there, {"PATH": os.environ["PATH"]}))
        )
        place = self.there / ("place" if name == "run" else name)
        self.place = WorkspaceCopy(self.machine, str(place), sys.executable, stores="stores" if stores else None)
        self.carried: Carried | None = None

    def git(self) -> None:
        """Make the workspace a repository."""
        self.here("git init -q -b main; git config user.name Person; git config user.email person@example.invalid")

    def another(self, name: str) -> "Carrying":
        """One more copy of the same workspace, on the same machine."""
        stores = self.place.stores is not None
        return Carrying(self.root, borrow=self.borrow, stores=stores, of=self, name=name)

    @property
    def copy(self) -> Path:
        assert self.carried
        return Path(self.carried.directory)

    async def out(self, script: str = "", include: tuple[str, ...] = ()) -> Path:
        """A person prepares the workspace, and it is carried out."""
        self.here(script)
        self.carried = await self.carrier.carry_out(
            self.top, self.place, self.names, borrow=self.borrow, include=include
        )
        return self.copy

    async def back(self, there: str = "", here: str = "") -> Returned:
        """An agent works in the copy, a person in the workspace, and the copy is carried back."""
        self.in_copy(there)
        self.here(here)
        assert self.carried
        return await self.carrier.carry_back(self.carried, self.place, self.names, "run", self.root / "kept")

    def here(self, script: str) -> str:
        return self._sh(script, self.top)

    def in_copy(self, script: str) -> str:
        return self._sh(script, self.copy)

    def _sh(self, script: str, directory: Path) -> str:
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=directory,
            check=False,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env=self.environ,
        )
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout

    async def close(self) -> None:
        await self.machine.aclose()


def files(top: Path) -> dict[str, object]:
    """What is in a tree, but for its repository: content and the right to execute, targets of links, directories."""
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if name.split("/", maxsplit=1)[0] == ".git":
            continue
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found
