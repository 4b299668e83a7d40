"""An undo of what was done between two commits of a work tree's files: nothing that no commit holds is ever lost."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.checkpoint_commits import NoCheckpoint, UndoneFiles
from activities.workspaces.git.runner import GitFailed

BEFORE, AFTER, RESCUE = (f"refs/steersman/r/{name}" for name in ("before", "after", "undone"))
MANY = 1 << 30
IGNORES_LOGS = "printf '*.log\\n' > .gitignore; "
COMMIT = "; git add -A; git commit -qm first"
KILLED = f"""
import asyncio, os, pathlib, sys
from activities.workspaces.checkpoints import WorkspaceCheckpoints
root, step = pathlib.Path(sys.argv[1]), sys.argv[2]
does = getattr(os, step)
def killed(source, *arguments, **options):
    if str(source).startswith("b'.steersman-"):
        if step == "link":
            does(source, *arguments, **options)
        os._exit(9)
    does(source, *arguments, **options)
setattr(os, step, killed)
checkpoints = WorkspaceCheckpoints({{**os.environ, "HOME": str(root)}}, [root])
asyncio.run(checkpoints.undo(root / "shadow", root / "top", *sys.argv[3:], "{RESCUE}", "rescue\\n"))
"""
"""An undo that is killed at that step."""


@dataclass
class Tree:
    """A repository `top`, and a person's home beside it."""

    root: Path

    def __post_init__(self) -> None:
        self.top = self.root / "top"
        self.top.mkdir()
        (self.root / "shadow").mkdir()
        self.sh("git init -q; git config user.name Person; git config user.email person@example.invalid")
        self.checkpoints = WorkspaceCheckpoints({**os.environ, "HOME": str(self.root)}, [self.root])

    def sh(self, script: str) -> str:
        return subprocess.run(
            ["sh", "-ec", script],
            cwd=self.top,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(self.root)},
        ).stdout

    async def keep(self, name: str, most: int = MANY) -> str:
        return await self.checkpoints.commit(self.root / "shadow", self.top, name, "kept\n", most)

    async def undone(self, before: str, run: str, since: str = "") -> UndoneFiles:
        """A person prepares, the run works, the person goes on, and then the run is undone."""
        self.sh(before)
        older = await self.keep(BEFORE)
        self.sh(run)
        newer = await self.keep(AFTER)
        self.sh(since)
        return await self.checkpoints.undo(self.root / "shadow", self.top, older, newer, RESCUE, "rescue\n")

    def rescued(self, path: str) -> str:
        return self.sh(f"git show {RESCUE}:{path}")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("before", "run", "since", "path"),
    [
        ("echo old > .env" + COMMIT, "git rm -q --cached .env; echo .env > .gitignore", "", ".env"),
        ("echo old > .env; echo .env > .gitignore; git add -f .env" + COMMIT, "git rm -q --cached .env", "", ".env"),
        ("mkdir data; echo v1 > data/x; touch k; git add k; git commit -qm k", "echo data/ > .gitignore", "", "data/x"),
        ("echo old > conf" + COMMIT, "rm conf", "echo conf > .git/info/exclude; ", "conf"),
        ("echo old > conf" + COMMIT, "rm conf", "mkdir -p ../.config/git; echo conf > ../.config/git/ignore; ", "conf"),
        ("mkdir logs; echo a > logs/a" + COMMIT, "rm -r logs", "echo logs > .git/info/exclude; ", "logs"),
    ],
)
async def test_ignored_files_in_the_way_are_left(tree: Tree, before: str, run: str, since: str, path: str) -> None:
    undone = await tree.undone(before, run, f"{since}echo PERSON > {path}")
    assert (tree.top / path).read_text() == "PERSON\n"
    assert any(os.fsdecode(each).startswith(path) for each in undone.conflicts)


async def test_a_repository_in_the_way_is_left_whole(tree: Tree) -> None:
    begins = "mkdir ../t; ln -s ../t vendor; echo build > build; printf 'vendor/\\nbuild/\\n' > .gitignore" + COMMIT
    clones = "for each in vendor build; do mkdir $each; git -C $each init -q; echo mine > $each/precious; done"
    undone = await tree.undone(begins, "rm vendor build", clones)
    assert undone.conflicts == {b"vendor", b"build"}
    for name in ("vendor", "build"):
        assert (tree.top / name / "precious").read_text() == "mine\n"
        assert (tree.top / name / ".git" / "HEAD").exists()


@pytest.mark.parametrize(
    ("before", "run", "since"),
    [
        (IGNORES_LOGS + "echo pre > my.log" + COMMIT, "git add -f my.log", ""),
        (IGNORES_LOGS + "echo pre > my.log" + COMMIT, "echo '# none' > .gitignore", "echo '# mine' >> .gitignore"),
    ],
)
async def test_what_was_ignored_before_is_not_taken_for_new(tree: Tree, before: str, run: str, since: str) -> None:
    await tree.undone(before, run, since)
    assert (tree.top / "my.log").read_text() == "pre\n"


async def test_a_file_changed_since_is_left_and_the_others_are_not(tree: Tree) -> None:
    undone = await tree.undone("echo a > a; echo b > b" + COMMIT, "echo A > a; echo B > b", "echo mine > a")
    assert (undone.changed, undone.conflicts) == (1, {b"a"})
    assert [(tree.top / name).read_text() for name in "ab"] == ["mine\n", "b\n"]
    assert [tree.rescued(name) for name in "ab"] == ["mine\n", "B\n"]


async def test_an_undo_that_changes_nothing_keeps_nothing(tree: Tree) -> None:
    undone = await tree.undone("echo a > a; echo b > b" + COMMIT, "echo A > a; echo B > b", "echo a > a; echo mine > b")
    assert (undone.changed, undone.conflicts, undone.rescue) == (0, {b"b"}, "")
    assert RESCUE not in tree.sh("git for-each-ref")


async def test_files_and_directories_take_each_others_place(tree: Tree) -> None:
    begins = "echo a > a; mkdir d; echo x > d/x; ln -s a link" + COMMIT
    run = "rm a; mkdir a; echo y > a/y; rm -r d; echo d > d; rm link; mkdir -p link/deep; echo z > link/deep/z"
    undone = await tree.undone(begins, run)
    assert undone.conflicts == set()
    assert (tree.top / "a").read_text() == "a\n"
    assert (tree.top / "d" / "x").read_text() == "x\n"
    assert (tree.top / "link").readlink() == Path("a")
    assert tree.sh("git status --porcelain") == ""


async def test_a_persons_file_keeps_the_directory_that_the_run_made(tree: Tree) -> None:
    undone = await tree.undone("echo a > a" + COMMIT, "rm a; mkdir a; echo y > a/y", "echo mine > a/mine")
    assert undone.conflicts == {b"a"}
    assert [path.name for path in (tree.top / "a").iterdir()] == ["mine"]


@pytest.mark.parametrize("step", ["rename", "link"])
async def test_what_a_killed_undo_left_is_no_file_of_the_next_one(tree: Tree, step: str) -> None:
    tree.sh("mkdir d; echo 1 > d/changed; echo 1 > d/gone")
    older = await tree.keep(BEFORE)
    tree.sh("echo 2 > d/changed; rm d/gone")
    newer = await tree.keep(AFTER)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tree.root), step, older, newer], check=False)
    assert killed.returncode == 9
    assert ".steersman" in tree.sh("ls -A d; echo 2 > d/changed")
    undone = await tree.checkpoints.undo(tree.root / "shadow", tree.top, older, newer, f"{RESCUE}-2", "rescue\n")
    assert not undone.conflicts
    assert tree.sh("ls -A d; cat d/*").split() == ["changed", "gone", "1", "1"]
    assert ".steersman" not in tree.sh(f"git ls-tree -r --name-only {RESCUE}-2")


async def test_links_are_not_followed(tree: Tree) -> None:
    since = "mkdir ../out; echo PERSON > ../out/f; rm -r d; ln -s ../out d"
    undone = await tree.undone("mkdir d; echo a > d/f" + COMMIT, "echo b > d/f", since)
    assert (tree.root / "out" / "f").read_text() == "PERSON\n"
    assert (tree.top / "d").is_symlink()
    assert undone.conflicts == {b"d/f"}


async def test_a_pipe_or_a_new_repository_in_the_way_holds_up_nothing_else(tree: Tree) -> None:
    run = "rm p r; echo c > c"
    undone = await tree.undone("echo p > p; echo r > r; echo b > c" + COMMIT, run, "mkfifo p; git init -q r")
    assert undone.conflicts == {b"p", b"r"}
    assert (tree.top / "c").read_text() == "b\n"


async def test_permissions_stay(tree: Tree) -> None:
    run = "echo t > key; printf 'exit 1\\n' > tool; chmod 700 tool"
    begins = "echo s > key; chmod 600 key; echo : > tool; chmod 640 tool" + COMMIT
    assert (await tree.undone(begins, run)).conflicts == set()
    assert oct((tree.top / "key").stat().st_mode) == oct(0o100600)
    assert oct((tree.top / "tool").stat().st_mode) == oct(0o100600)
    again = await tree.keep(BEFORE)
    (tree.top / "tool").chmod(0o755)
    newer = await tree.keep(AFTER)
    (tree.top / "tool").chmod(0o750)
    await tree.checkpoints.undo(tree.root / "shadow", tree.top, again, newer, RESCUE, "rescue\n")
    assert oct((tree.top / "tool").stat().st_mode) == oct(0o100600), "as closed as it was before"


async def test_what_is_put_back_is_readable_by_nobody_who_could_not_read_it_before(tree: Tree) -> None:
    begins = (
        "umask 022; echo s > .env.local; chmod 600 .env.local; echo g > group; chmod 640 group; mkdir -m 700 own; "
        "echo k > own/key; mkdir all; echo a > all/a; echo b > all/b; chmod 600 all/*; echo t > tool; chmod 700 tool; "
        "echo w > written; chmod 600 written; echo o > open; echo p > 'p é%'; chmod 600 p*"
    )
    run = "rm -r .env.local group own all tool open p*; echo more >> written; chmod 644 written"
    assert (await tree.undone(begins, run)).conflicts == set()
    found = {path.name: oct(path.stat().st_mode & 0o777) for path in tree.top.rglob("*") if ".git/" not in str(path)}
    assert found.pop("open") == oct(0o644)
    assert found.pop("group") == oct(0o640)
    assert found.pop("tool") == oct(0o700)
    del found["own"], found["all"], found[".git"]
    assert set(found.values()) == {oct(0o600)}, found
    assert len(found) == 6


async def test_many_closed_files_are_noted_by_their_directories(tree: Tree) -> None:
    tree.sh(f"umask 077; for n in $(seq 200); do mkdir -p d$n/{'x' * 100}; echo $n > d$n/{'x' * 100}/f; done")
    tree.sh("umask 022; for n in $(seq 2 2 200); do echo > d$n/open; chmod 755 d$n; done; echo > open")
    commit = await tree.keep(BEFORE)
    assert len(tree.sh(f"git cat-file commit {commit}")) < 20_000
    assert (await tree.undone("", "rm -r d*")).conflicts == set()
    assert {path.stat().st_mode & 0o077 for path in tree.top.rglob("f")} == {0}


async def test_what_was_written_over_in_the_repository_is_not_restored(tree: Tree) -> None:
    """Git does not look whether a loose object still has the content that its name says."""
    tree.sh("echo good > a" + COMMIT)
    older = await tree.keep(BEFORE)
    tree.sh("echo changed > a")
    newer = await tree.keep(AFTER)
    blob = tree.sh(f"git rev-parse {older}:a").strip()
    forged = tree.sh("echo BACKDOOR | git hash-object -w --stdin").strip()
    objects = tree.top / ".git" / "objects"
    target = objects / blob[:2] / blob[2:]
    target.chmod(0o644)
    target.write_bytes((objects / forged[:2] / forged[2:]).read_bytes())
    undone = await tree.checkpoints.undo(tree.root / "shadow", tree.top, older, newer, RESCUE, "rescue\n")
    assert (tree.top / "a").read_text() == "changed\n"
    assert undone.conflicts == {b"a"}


@pytest.mark.exhaustive
async def test_deep_trees_and_large_files_are_no_surprise(tree: Tree) -> None:
    deep = "/".join(["a"] * 1300)
    tree.sh("touch k" + COMMIT)
    (tree.top / "big").write_bytes(b"x" * 2_000_000)
    with pytest.raises(GitFailed, match="2 MiB of files are in no index"):
        await tree.keep(BEFORE, most=1_000_000)
    tree.sh("git add big")
    await tree.keep(BEFORE, most=1_000_000)
    directory = os.open(tree.top, os.O_RDONLY)
    for name in deep.split("/"):
        os.mkdir(name, dir_fd=directory)
        below = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    await tree.keep(AFTER)
    os.unlink("f", dir_fd=directory)
    os.close(directory)
    await tree.keep(RESCUE)


async def test_commits_that_are_gone_are_named(tree: Tree) -> None:
    commit = tree.sh("touch k" + COMMIT + "; git rev-parse HEAD").strip()
    for wrong in ("0" * 40, "HEAD", "--output=x", commit[:39]):
        with pytest.raises(NoCheckpoint):
            await tree.checkpoints.undo(tree.root / "shadow", tree.top, commit, wrong, RESCUE, "rescue\n")
