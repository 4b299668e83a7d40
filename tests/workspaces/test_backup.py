"""Snapshots of a copy, taken while somebody works in it: after the loss of its machine there is one as it was then."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from activities.ports.machine import Machine, Stream
from activities.workspaces.carry.backup import CopyBackup, CopyBackups
from activities.workspaces.carry.copies import CopyFailed
from activities.workspaces.carry.snapshots import NoSnapshot
from activities.workspaces.git.runner import GitFailed
from tests.workspaces.carrying import COMMIT, Carrying, CountedMachine, CountedStream


class Backed:
    """A copy on another machine, and its backups."""

    def __init__(self, root: Path) -> None:
        self.work = Carrying(root, borrow=False)
        self.directory = root / "backup"
        self.last: CopyBackup | None = None

    async def out(self, script: str, include: tuple[str, ...] = ()) -> None:
        await self.work.out(script, include)
        carried = self.work.carried
        assert carried
        self.backups = CopyBackups(self.work.carrier, carried, self.work.names, self.directory)

    async def take(self, there: str = "", *, anew: bool = False) -> CopyBackup:
        self.work.in_copy(there)
        self.last = await self.backups.take(self.work.place, None if anew else self.last)
        await self.backups.keep_only(self.last.packs)
        return self.last

    async def lose(self) -> None:
        """The machine is lost, and another one has what the last backup has."""
        assert self.last
        shutil.rmtree(self.work.place.root)
        await self.backups.restore(self.last.snapshot.id, self.work.top, self.work.place)

    def objects_here(self) -> set[str]:
        return {path.name for path in (self.work.top / ".git" / "objects").rglob("*") if path.is_file()}


class CutStream(CountedStream):
    """One of which so many bytes come, and no more."""

    async def read(self, most: int) -> bytes:
        return await super().read(min(most, max(self.counts["left"] - self.counts["back"], 0)))

    async def readline(self) -> bytes:
        return await super().readline() if self.counts["left"] else b""


class CutMachine(CountedMachine):
    """Another machine, from which each stream brings so many bytes."""

    def __init__(self, machine: Machine, after: int) -> None:
        super().__init__(machine)
        self.after = after

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        return CutStream(await self.machine.exec(*argv, stdin=stdin), {"out": 0, "back": 0, "left": self.after})


@pytest.fixture
async def backed(tmp_path: Path) -> AsyncIterator[Backed]:
    found = Backed(tmp_path)
    found.work.git()
    yield found
    await found.work.machine.aclose()


FILES = f"printf one > a; mkdir sub; echo two > sub/b; ln -s a link; echo build > .gitignore{COMMIT} first"
WORK = (
    "echo stashed > a; git stash -q; echo more >> a; echo new > new; chmod +x new; rm sub/b;"
    f"git checkout -qb side{COMMIT} second; git tag v1;"
    "echo staged > staged; git add staged; echo loose > loose; mkdir -p empty build; echo 3 > build/o; chmod 600 loose"
)


async def test_a_copy_that_is_lost_is_made_again_as_it_was_then(backed: Backed) -> None:
    await backed.out(FILES)
    await backed.take(WORK)
    looks = (
        "git status --porcelain; git log --format=%s --all; git for-each-ref; ls -lR --time-style=+ . | grep -v ^total"
    )
    backed.work.in_copy("rm -r build")
    before = backed.work.in_copy(looks)
    backed.work.in_copy("echo later > later")
    await backed.lose()
    assert backed.work.in_copy(looks) == before
    assert not (backed.work.copy / "later").exists()
    assert (backed.work.copy / "empty").is_dir()


async def test_what_is_done_after_a_loss_is_merged_with_what_was_done_before(backed: Backed) -> None:
    await backed.out(FILES)
    await backed.take(WORK)
    await backed.lose()
    returned = await backed.work.back("echo after > after", here="echo mine > mine")
    assert (returned.changed, returned.conflicts) == (True, [])
    assert returned.kept == backed.work.names.conflicts  # has the stash
    assert backed.work.here("cat a new after mine loose; git branch --show-current") == (
        "onemore\nnew\nafter\nmine\nloose\nside\n"
    )
    assert not (backed.work.top / "sub" / "b").exists()


@pytest.mark.exhaustive
async def test_each_further_one_brings_what_is_new_alone(backed: Backed) -> None:
    await backed.out("head -c 300000 /dev/urandom > big" + COMMIT + "first")
    assert isinstance(backed.work.machine, CountedMachine)
    sizes = []
    for number in range(4):
        taken = await backed.take(f"head -c 100000 /dev/urandom > {number}")
        sizes.append(taken.size)
    assert all(100_000 < size < 110_000 for size in sizes)
    assert (await backed.take(anew=True)).size > 400_000
    assert len(list((backed.directory / "pack").glob("*.pack"))) == 1
    await backed.lose()
    assert all((backed.work.copy / str(number)).stat().st_size == 100_000 for number in range(4))


@pytest.mark.exhaustive
async def test_the_place_keeps_no_more_than_since_the_last_whole_one(backed: Backed) -> None:
    await backed.out("touch a" + COMMIT + "first")
    root = Path(backed.work.place.root)

    def used() -> int:
        return sum(path.lstat().st_size for path in root.rglob("*"))

    await backed.take("head -c 1000000 /dev/urandom > log")
    before = used()
    for _ in range(5):
        await backed.take("head -c 1000000 /dev/urandom > log", anew=True)
    assert used() < before + 100_000


async def test_what_git_commits_in_the_copy_does_not_build_upon_a_backup(backed: Backed) -> None:
    """What a backup has is thrown away again: a commit of the same bytes has them itself."""
    await backed.out(FILES)
    await backed.take("echo the same bytes > new")
    backed.work.in_copy("git add -A; git commit -qm theirs")
    shutil.rmtree(Path(backed.work.place.root) / "backup")
    backed.work.in_copy("git fsck --full --strict; git cat-file -p HEAD:new")
    await backed.take(anew=True)
    await backed.lose()
    assert backed.work.in_copy("git fsck --no-dangling --full --strict; cat new") == "the same bytes\n"


async def test_the_workspaces_repository_has_nothing_of_a_backup(backed: Backed) -> None:
    await backed.out(FILES)
    before = backed.objects_here()
    await backed.take(WORK)
    await backed.take("echo 2 > a")
    assert backed.objects_here() == before
    assert "side" not in backed.work.here("git for-each-ref")


async def test_what_is_ignored_and_was_asked_for_is_in_it_and_nothing_else_that_is(backed: Backed) -> None:
    await backed.out(FILES + "; mkdir build; echo 1 > build/o; echo 2 > build/p", include=("build/o",))
    await backed.take("echo 3 > build/o; echo 4 > build/p")
    await backed.lose()
    assert backed.work.in_copy("cat build/o; ls build") == "3\no\n"


async def test_files_without_a_repository(tmp_path: Path) -> None:
    backed = Backed(tmp_path)
    await backed.out("echo one > a; mkdir sub; echo two > sub/b")
    await backed.take("echo more >> a; rm -r sub; echo new > new")
    await backed.lose()
    returned = await backed.work.back("echo after > after")
    assert (returned.changed, returned.conflicts) == (True, [])
    assert backed.work.here("cat a new after; ls") == "one\nmore\nnew\nafter\na\nafter\nnew\n"
    await backed.work.machine.aclose()


async def test_a_repository_without_a_commit(backed: Backed) -> None:
    await backed.out("echo one > a")
    await backed.take("echo two > b; git add b")
    await backed.lose()
    assert backed.work.in_copy("git status --porcelain") == "A  b\n?? a\n"
    await backed.work.back("git add -A; git commit -qm first")
    assert backed.work.here("git log --format=%s; git ls-files") == "first\na\nb\n"


async def test_what_is_lost_for_good_is_kept_at_a_ref(backed: Backed) -> None:
    await backed.out(FILES)
    taken = await backed.take(WORK + "; echo now > now")
    shutil.rmtree(backed.work.place.root)
    kept = await backed.backups.keep(taken.snapshot.id, backed.work.root / "kept")
    assert kept == backed.work.names.conflicts
    shutil.rmtree(backed.directory)
    names = backed.work.here(f"git fsck --full --strict; git show --format= --name-only {kept}^1 | cat; git log {kept}")
    assert "now" in names
    assert "second" in names
    assert "WIP on main" in names
    assert backed.work.here("git status --porcelain; git branch --show-current") == "main\n"


async def test_what_is_lost_for_good_without_a_repository_is_kept_in_a_directory(tmp_path: Path) -> None:
    backed = Backed(tmp_path)
    await backed.out("echo one > a; echo two > b")
    taken = await backed.take("echo more >> a")
    kept = backed.work.root / "kept"
    assert await backed.backups.keep(taken.snapshot.id, kept) == str(kept)
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"a": "one\nmore\n"}
    await backed.work.machine.aclose()


async def test_of_a_copy_in_which_nothing_was_done_nothing_is_kept(backed: Backed) -> None:
    await backed.out(FILES)
    taken = await backed.take()
    assert await backed.backups.keep(taken.snapshot.id, backed.work.root / "kept") is None


@pytest.mark.exhaustive
async def test_one_that_was_cut_leaves_the_one_before(backed: Backed) -> None:
    await backed.out(FILES)
    first = await backed.take("echo 1 > a")
    backed.work.in_copy("echo 2 > a; head -c 3000000 /dev/urandom > big")
    for after in (0, 1, 100_000, 2_999_999):
        cut = replace(backed.work.place, machine=CutMachine(backed.work.machine, after))
        with pytest.raises(CopyFailed):
            await backed.backups.take(cut, first)
    await backed.lose()
    assert (backed.work.copy / "a").read_text() == "1\n"
    assert [path.name for path in backed.directory.iterdir()] == ["pack"]
    await backed.take("echo 3 > a", anew=True)
    await backed.lose()
    assert (backed.work.copy / "a").read_text() == "3\n"


async def test_two_at_once_are_one_after_another_or_refused(backed: Backed) -> None:
    await backed.out(FILES)
    backed.work.in_copy("head -c 3000000 /dev/urandom > big")
    assert backed.work.carried
    other = CopyBackups(backed.work.carrier, backed.work.carried, backed.work.names, backed.directory / "other")
    both = await asyncio.gather(
        backed.backups.take(backed.work.place, None), other.take(backed.work.place, None), return_exceptions=True
    )
    taken = [each for each in both if isinstance(each, CopyBackup)]
    assert taken
    assert all("another worker takes a snapshot" in str(each) for each in both if not isinstance(each, CopyBackup))


async def test_a_place_that_has_lost_the_last_one_says_so_and_a_whole_one_follows(backed: Backed) -> None:
    await backed.out(FILES)
    await backed.take("echo 1 > new")
    shutil.rmtree(Path(backed.work.place.root) / "backup")
    with pytest.raises(CopyFailed):
        await backed.take("echo 2 > new")
    await backed.take(anew=True)
    await backed.lose()
    assert (backed.work.copy / "new").read_text() == "2\n"


async def test_an_agent_in_the_middle_of_a_rebase_is_backed_up_all_the_same(backed: Backed) -> None:
    await backed.out(FILES)
    conflict = f"git checkout -qb side; echo side > a{COMMIT} side; git checkout -q main; echo main > a{COMMIT} main"
    backed.work.in_copy(f"{conflict}; git rebase side || true")
    await backed.take("echo resolved > a")
    await backed.lose()
    assert (backed.work.copy / "a").read_text() == "resolved\n"
    assert "side" in backed.work.in_copy("git branch")


async def test_hostile_objects_never_reach_the_repository(backed: Backed) -> None:
    await backed.out(FILES)
    before = backed.objects_here()
    objects = Path(backed.work.place.root) / "copy" / "top" / ".git"
    made = subprocess.run(
        ["git", "--git-dir", str(objects), "hash-object", "-t", "tree", "--stdin", "--literally", "-w"],
        input=b"40000 .git\0" + bytes(20),
        capture_output=True,
        check=True,
    )
    tree = made.stdout.decode().strip()
    backed.work.in_copy(f"git update-ref refs/heads/evil $(git commit-tree {tree} -m evil)")
    with pytest.raises((CopyFailed, GitFailed, NoSnapshot)):
        await backed.take()
    assert backed.objects_here() == before
    assert list((backed.directory / "pack").glob("*")) == [] if (backed.directory / "pack").exists() else True
