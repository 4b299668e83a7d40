"""Whatever a person does in a workspace and an agent in its copy: nothing of either side is lost."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from activities.workspaces.carry.carrier import Returned
from tests.workspaces.carrying import NAMES, Carrying

pytestmark = [pytest.mark.integration, pytest.mark.property, pytest.mark.timeout(0)]

PATHS = [b"a", b"b", b"d", b"d/a", b"d/e/f", b"\xff\n", b"-x", b"x.log", b"A", b".gitignore", b"d/.gitignore"]
LINES = b"l1\nl2\nl3\nl4\nl5\nl6\nl7\n"
CONTENTS = [b"", b"1\n", b"2\n", b"3\n", b"*.log\n", b"a\n", LINES, b"L" + LINES[1:], LINES[:-3] + b"L7\n", b"\0\xff"]
Do = Callable[[Path], None]
Entry = tuple[str, bytes]


def git(top: Path, *arguments: str | bytes, check: bool = False) -> bytes:
    environment = {**os.environ, "HOME": str(top.parent), "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true"}
    return subprocess.run(["git", *arguments], cwd=top, env=environment, capture_output=True, check=check).stdout


def _clear(path: bytes) -> None:
    """Make room: what is there goes, and what lies above it becomes a directory."""
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        _clear(parent)
        os.mkdir(parent)
    if os.path.isdir(path) and not os.path.islink(path):
        subprocess.run(["rm", "-rf", "--", path], check=True)
    elif os.path.lexists(path):
        os.unlink(path)


@dataclass(frozen=True)
class Write:
    path: bytes
    content: bytes
    executable: bool = False

    def __call__(self, top: Path) -> None:
        place = os.path.join(os.fsencode(top), self.path)
        _clear(place)
        with open(place, "wb") as file:
            file.write(self.content)
        os.chmod(place, 0o755 if self.executable else 0o644)


@dataclass(frozen=True)
class Link:
    path: bytes
    target: bytes

    def __call__(self, top: Path) -> None:
        place = os.path.join(os.fsencode(top), self.path)
        _clear(place)
        os.symlink(self.target, place)


@dataclass(frozen=True)
class Remove:
    path: bytes

    def __call__(self, top: Path) -> None:
        subprocess.run(["rm", "-rf", "--", self.path], cwd=top, check=True)


@dataclass(frozen=True)
class Directory:
    path: bytes

    def __call__(self, top: Path) -> None:
        place = os.path.join(os.fsencode(top), self.path)
        if not os.path.isdir(place):
            _clear(place)
            os.mkdir(place)


@dataclass(frozen=True)
class Git:
    command: tuple[str | bytes, ...]

    def __call__(self, top: Path) -> None:
        git(top, *self.command)


paths, contents = st.sampled_from(PATHS), st.sampled_from(CONTENTS)
EDITS = st.one_of(
    st.builds(Write, paths, contents, st.booleans()),
    st.builds(Link, paths, st.sampled_from([b"a", b"d/a", b"nowhere"])),
    st.builds(Remove, paths),
    st.builds(Directory, paths),
)
COMMITS = st.one_of(
    paths.map(lambda path: Git(("add", "-A", "--", path))),
    paths.map(lambda path: Git(("rm", "-r", "-q", "--cached", "--", path))),
    st.tuples(paths, paths).map(lambda two: Git(("mv", "-f", "--", *two))),
    st.sampled_from([
        Git(("add", "-A")),
        Git(("commit", "-qam", "some")),
        Git(("commit", "-q", "--amend", "--allow-empty", "-m", "better")),
        Git(("commit", "-q", "--allow-empty", "-m", "empty")),
        Git(("switch", "-qc", "topic")),
        Git(("switch", "-q", "topic")),
        Git(("switch", "-q", "main")),
        Git(("checkout", "-q", "--detach")),
        Git(("tag", "-f", "v1")),
        Git(("tag", "-f", "-a", "-m", "v", "v2")),
        Git(("reset", "-q", "--soft", "HEAD~1")),
        Git(("branch", "-f", "side")),
        Git(("gc", "-q", "--prune=now")),
    ]),
)  # fmt: skip
DOES = st.lists(st.one_of(EDITS, EDITS, COMMITS), max_size=8)


FIRST: list[Do] = [Write(b"a", b"0\n"), Write(b"d/a", b"0\n"), Git(("add", "-A")), Git(("commit", "-qm", "first"))]


def do(top: Path, acts: list[Do]) -> None:
    for act in acts:
        act(top)


def disk(top: Path) -> dict[bytes, Entry]:
    """The files of a tree: of which kind, and with what content."""
    found: dict[bytes, Entry] = {}
    for directory, names, here in os.walk(os.fsencode(top)):
        names[:] = [name for name in names if name != b".git"]
        for name in (*names, *here):
            path = os.path.join(directory, name)
            shown = os.path.relpath(path, os.fsencode(top))
            if os.path.islink(path):
                found[shown] = ("link", os.readlink(path))
            elif os.path.isfile(path) and shown != b".git":
                with open(path, "rb") as file:
                    found[shown] = ("program" if os.stat(path).st_mode & 0o100 else "file", file.read())
    return found


def ignored(top: Path, there: dict[bytes, Entry]) -> set[bytes]:
    """What is ignored and not in the index."""
    listed = git(top, "ls-files", "-z", "-o", "-i", "--exclude-standard").split(b"\0")
    return set(listed) & set(there)


def kept(top: Path, ref: str, path: bytes) -> Entry | None:
    line = git(top, "--literal-pathspecs", "ls-tree", "-z", f"{ref}^{{tree}}", "--", path).split(b"\0")[0]
    if not line:
        return None
    mode, _, blob = line.split(b"\t")[0].split(b" ")
    kinds = {b"120000": "link", b"100755": "program", b"100644": "file"}
    return (kinds[mode], git(top, "cat-file", "blob", blob)) if mode in kinds else None


class Sides(NamedTuple):
    base: dict[bytes, Entry]
    ours: dict[bytes, Entry]
    theirs: dict[bytes, Entry]
    after: dict[bytes, Entry]


def check(work: Carrying, back: Returned, sides: Sides, *, both_moved: bool) -> None:
    """Each path is as one side has it, and what is not taken of theirs is named and kept."""
    for path in set().union(*sides):
        base, ours, theirs, after = (each.get(path) for each in sides)
        shown = (path, base, ours, theirs, after)
        if after not in (ours, theirs):
            assert both_moved, shown  # a merge of both
            continue
        if ours not in (base, theirs) and not both_moved:
            assert after == ours, shown
        if theirs not in (after, base) and not both_moved:
            assert path in back.conflicts, shown
        if path in back.conflicts:
            assert after == ours, shown
            assert back.kept == NAMES.conflicts
            assert kept(work.top, NAMES.conflicts, path) == theirs, shown


async def carried(directory: Path, before: list[Do], there: list[Do], here: list[Do]) -> None:
    work = Carrying(directory)
    try:
        work.git()
        do(work.top, [*FIRST, *before])
        copy = await work.out()
        base = disk(copy)
        was = {path: entry for path, entry in disk(work.top).items() if path not in ignored(work.top, disk(work.top))}
        assert base == was
        assert git(copy, "status", "--porcelain=2", "-z") == git(work.top, "status", "--porcelain=2", "-z")
        base_head = git(copy, "rev-parse", "HEAD")
        do(copy, there)
        do(work.top, here)
        theirs, ours = disk(copy), disk(work.top)
        unseen = ignored(copy, theirs) - base.keys()
        theirs = {path: entry for path, entry in theirs.items() if path not in unseen}
        commits = {each: set(git(each, "rev-list", "--all", "HEAD", "--").split()) for each in (copy, work.top)}
        both_moved = git(copy, "rev-parse", "HEAD") != base_head != git(work.top, "rev-parse", "HEAD")
        back = await work.back()
        after = disk(work.top)
        event(f"conflicts: {bool(back.conflicts)}, both have committed: {both_moved}")
        assert git(work.top, "remote") == b""
        assert git(work.top, "fsck", "--strict", "--no-dangling", check=True) == b""
        left = commits[copy] | commits[work.top]
        left -= set(git(work.top, "rev-list", "--all", "HEAD", "--").split())
        assert not left, "a commit is in no ref"
        check(work, back, Sides(base, ours, theirs, after), both_moved=both_moved)
        again = await work.back()
        assert disk(work.top) == after
        assert (again.conflicts, again.kept) == (back.conflicts, back.kept)
    finally:
        await work.close()


@given(before=DOES, there=DOES, here=DOES)
def test_nothing_is_lost(before: list[Do], there: list[Do], here: list[Do]) -> None:
    with tempfile.TemporaryDirectory(prefix="steersman-carry-", ignore_cleanup_errors=True) as directory:
        asyncio.run(carried(Path(directory), before, there, here))


@pytest.mark.exhaustive
@given(before=DOES, there=DOES)
def test_all_that_the_agent_did_arrives(before: list[Do], there: list[Do]) -> None:
    with tempfile.TemporaryDirectory(prefix="steersman-carry-", ignore_cleanup_errors=True) as directory:
        asyncio.run(carried(Path(directory), before, there, []))
