"""A workspace is carried to a copy, and what became of it there is merged: nothing of either side is lost."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.shim.client import MachineUnreachable
from activities.workspaces.carry import work_tree
from activities.workspaces.carry.copies import CopyFailed, WorkspaceCopy
from activities.workspaces.carry.snapshots import NoSnapshot
from activities.workspaces.git.runner import GitFailed
from tests.workspaces.carrying import COMMIT, NAMES, Carrying, files

STATE = (
    "printf '*.log\\n' > .gitignore; echo one > a; mkdir -p d/e; echo two > d/b; ln -s a link; echo x > run; "
    "chmod +x run"
    + COMMIT + "first; git tag -a v1 -m v1; git branch other; "
    "echo staged > s; git add s; echo more >> s; echo dirty >> a; echo new > untracked; rm d/b; mkdir empty; "
    "echo secret > key; chmod 600 key; echo log > x.log; "
    "printf x > $'\\xff\\nname'"
)  # fmt: skip


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[Carrying]:
    made = Carrying(tmp_path)
    made.git()
    yield made
    await made.close()


@pytest.mark.parametrize("borrow", [True, False])
async def test_the_copy_is_what_the_workspace_is(work: Carrying, *, borrow: bool) -> None:
    work.borrow = borrow
    copy = await work.out(STATE)
    (work.top / "x.log").unlink()  # ignored
    assert files(copy) == files(work.top)
    for command in (
        "git status --porcelain=2 --branch",
        "git log --branches --tags --decorate",
        "git diff HEAD",
        "git diff --cached",
    ):
        assert work.in_copy(command) == work.here(command)
    assert work.in_copy("git remote; git config --get-regexp remote || :; git config user.name") == "Person\n"
    assert (copy / "key").stat().st_mode & 0o777 == 0o600
    work.in_copy("git fsck --full --strict")
    back = await work.back("git gc -q --prune=now")
    assert (back.changed, back.conflicts, back.kept) == (False, [], None)


async def test_everything_comes_back(work: Carrying) -> None:
    copy = await work.out(STATE)
    before = work.here("git rev-parse HEAD").strip()
    back = await work.back(
        "git add -A; git commit -qm second; git mv a z; git rm -q run; mkdir new; echo n > new/n; git add new; "
        "echo 2 > $'\\xfe'; chmod +x s; ln -sfn z link; rm untracked; mkdir untracked; echo f > untracked/f; "
        "git tag v2; git branch topic; echo k > k2; chmod 600 k2; rmdir empty; mkdir -p deep/er"
    )
    assert (back.changed, back.conflicts, back.kept) == (True, [], None)
    (work.top / "x.log").unlink()
    assert files(work.top) == files(copy)
    for command in (
        "git status --porcelain=2 --branch",
        "git log --branches --tags --decorate",
        "git diff HEAD",
        "git diff --cached",
    ):
        assert work.here(command) == work.in_copy(command)
    assert (work.top / "k2").stat().st_mode & 0o777 == 0o600
    assert back.commit == work.here("git rev-parse HEAD").strip() != before
    assert work.here("git rev-parse HEAD@{1} main@{1}").split() == [before, before]
    work.here("git fsck --full --strict")
    assert work.here("ls .git; ls -A").count("steersman") == 0


async def test_who_may_read_a_file_comes_back_where_the_run_has_closed_it(work: Carrying) -> None:
    await work.out(
        "umask 022; for each in changed closed opened mine both gone; do echo 1 > $each; done; chmod 600 opened mine"
        + COMMIT + "first; echo u > untracked"
    )  # fmt: skip
    back = await work.back(
        "chmod 600 changed closed both gone untracked; for each in changed opened mine both; do echo 2 > $each; done; "
        "chmod 644 opened; echo n > new; chmod 600 new",
        "chmod 640 mine; echo 3 > both; rm gone",
    )
    assert back.conflicts == [b"both"]
    found = {path.name: oct(path.stat().st_mode & 0o777) for path in work.top.iterdir() if path.is_file()}
    closed = dict.fromkeys(("changed", "closed", "opened", "untracked", "new"), "0o600")
    assert found == {**closed, "mine": "0o640", "both": "0o644"}


@pytest.mark.parametrize(
    ("lock", "commits"),
    [
        ("refs/heads/main.lock", "git commit -qm second"),
        ("refs/heads/new.lock", "git branch new"),
        ("HEAD.lock", "git switch -qc topic; git commit -qm second"),
        ("packed-refs.lock", ":"),
    ],
)
async def test_a_lock_in_the_way_is_named_before_anything_is_written(
    work: Carrying, monkeypatch: pytest.MonkeyPatch, lock: str, commits: str
) -> None:
    monkeypatch.setattr(work_tree, "LOCK_S", 0.1)
    await work.out("echo one > a" + COMMIT + "first")
    looks = "git status --porcelain; git for-each-ref refs/heads; cat .git/HEAD"
    before, there = files(work.top), work.here(looks)
    with pytest.raises(GitFailed, match=rf"{work.top}/\.git/{lock} is there"):
        await work.back(f"echo two > a; echo n > n; git add -A; {commits}", f"touch .git/{lock}")
    assert (files(work.top), work.here(looks)) == (before, there)
    work.here(f"rm .git/{lock}")
    back = await work.back()
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here("cat a n") == "two\nn\n"


async def test_a_lock_that_is_let_go_is_waited_for(work: Carrying) -> None:
    await work.out("echo one > a" + COMMIT + "first")
    held = "touch .git/refs/heads/main.lock; (sleep 0.5; rm .git/refs/heads/main.lock) > /dev/null 2>&1 &"
    back = await work.back("echo two > a; git commit -qam second", held)
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here("git log --format=%s; git status --porcelain") == "second\nfirst\n"


async def test_a_branch_is_switched(work: Carrying) -> None:
    await work.out("echo one > a" + COMMIT + "first")
    back = await work.back("git switch -qc topic; echo two > a; git commit -qam second")
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here(
        "git branch --show-current; git status --porcelain; git log --format=%s; git log --format=%s main"
    ) == ("topic\nsecond\nfirst\nfirst\n")


async def test_a_history_that_was_rewritten_there_comes_back_where_nobody_moved_it_here(work: Carrying) -> None:
    await work.out("echo one > a" + COMMIT + "first")
    back = await work.back("git commit -q --amend -m better; git checkout -q --detach")
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here("git log --format=%s main; git branch --show-current; git status --porcelain") == "better\n"


async def test_what_only_one_side_has_changed_wins(work: Carrying) -> None:
    await work.out("for f in a b c d; do echo $f > $f; done" + COMMIT + "first; echo u > u; echo w > w")
    back = await work.back(
        "echo theirs > a; rm b; echo n > n; echo same > both; rm u",
        "echo ours > c; rm d; echo m > m; echo same > both; rm w",
    )
    assert (back.conflicts, back.kept) == ([], None)
    assert files(work.top) == {
        "a": (b"theirs\n", False), "c": (b"ours\n", False), "n": (b"n\n", False), "m": (b"m\n", False),
        "both": (b"same\n", False),
    }  # fmt: skip
    assert work.here("git status --porcelain").splitlines() == [
        " M a",
        " D b",
        " M c",
        " D d",
        "?? both",
        "?? m",
        "?? n",
    ]


async def test_what_both_have_changed_stays_here_and_is_kept_from_there(work: Carrying) -> None:
    await work.out("for f in a b c; do echo $f > $f; done; echo i > .gitignore" + COMMIT + "first")
    back = await work.back(
        "echo theirs > a; rm b; echo theirs > c; echo theirs > n; git add -A; echo fine > d; echo theirs > l; mkdir i2",
        "echo ours > a; echo ours > b; rm c; mkdir n; echo x > n/x; echo ours > i; echo ours > l",
    )
    assert back.conflicts == [b"a", b"b", b"c", b"l", b"n"]
    assert back.kept == NAMES.conflicts
    assert work.here("cat a b d n/x i l") == "ours\nours\nfine\nx\nours\nours\n"
    assert not (work.top / "c").exists()
    assert work.here(f"git show {NAMES.conflicts}:a {NAMES.conflicts}:c {NAMES.conflicts}:n {NAMES.conflicts}:l") == (
        "theirs\n" * 4
    )


async def test_an_ignored_file_in_the_way_stays(work: Carrying) -> None:
    await work.out("echo secret > .gitignore" + COMMIT + "first; echo ours > secret")
    back = await work.back("echo theirs > secret; git add -f secret")
    assert back.conflicts == [b"secret"]
    assert work.here("cat secret") == "ours\n"


async def test_commits_of_both_sides_are_merged(work: Carrying) -> None:
    await work.out("seq 20 > a; echo b > b; echo r > renamed" + COMMIT + "first; echo dirty > c")
    back = await work.back(
        "sed -i 's/^3$/three/' a; echo t > t; echo more >> renamed; git add -A; git commit -qm theirs; echo 2 >> t",
        "sed -i 's/^18$/eighteen/' a; git commit -qam ours; git mv renamed moved; git commit -qam moved; echo x > x",
    )
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here("sed -n '3p;18p' a; cat t moved x c") == "three\neighteen\nt\n2\nr\nmore\nx\ndirty\n"
    assert work.here("git log --first-parent --format=%s").splitlines() == [
        "Merge main of run",
        "moved",
        "ours",
        "first",
    ]
    assert work.here("git status --porcelain").splitlines() == [" M t", "?? x"]
    again = await work.back()
    assert (again.conflicts, again.kept) == ([], None)
    assert work.here("git status --porcelain").splitlines() == [" M t", "?? x"]


async def test_commits_that_cannot_be_merged_are_kept_aside_whole(work: Carrying) -> None:
    await work.out("echo one > a; echo f > f" + COMMIT + "first")
    back = await work.back(
        "echo theirs > a; git commit -qam theirs; echo 2 > f", "echo ours > a; git commit -qam ours; git branch keep"
    )
    assert (back.conflicts, back.kept) == ([b"a", b"f"], NAMES.conflicts)
    assert work.here("cat a f; git status --porcelain; git log --format=%s") == "ours\nf\nours\nfirst\n"
    assert work.here(f"git log --format=%s {NAMES.conflicts}").splitlines() == ["files", "theirs", "first"] or (
        work.here(f"git log --format=%s {NAMES.conflicts}^2").splitlines() == ["theirs", "first"]
    )
    assert work.here(f"git show {NAMES.conflicts}:a {NAMES.conflicts}:f") == "theirs\n2\n"


async def test_another_branch_was_checked_out_here_meanwhile(work: Carrying) -> None:
    await work.out("echo one > a" + COMMIT + "first")
    back = await work.back("echo theirs > a; git commit -qam theirs", "git switch -qc elsewhere")
    assert work.here("git branch --show-current; cat a; git log --format=%s; git log --format=%s main") == (
        "elsewhere\none\nfirst\ntheirs\nfirst\n"
    )
    assert (back.conflicts, back.kept) == ([b"a"], NAMES.conflicts)


async def test_a_branch_that_another_work_tree_has_is_not_moved_under_it(work: Carrying) -> None:
    await work.out("echo one > a" + COMMIT + "first; git branch side; git worktree add -q ../side side")
    back = await work.back("git switch -q side; echo theirs > a; git commit -qam theirs")
    assert work.here("cd ../side; git status --porcelain; git log --format=%s") == "first\n"
    assert back.kept == NAMES.conflicts
    assert "theirs" in work.here(f"git log --format=%s {NAMES.conflicts}")


SEPARATE = "git init -q --separate-git-dir ../git"
SUBMODULE = "mv .git ../git; git -C ../git config core.worktree ../top; echo gitdir: ../git > .git"


@pytest.mark.parametrize("apart", [SEPARATE, SUBMODULE, ":"])
async def test_a_branch_that_the_main_work_tree_has_is_not_moved_under_it(work: Carrying, apart: str) -> None:
    work.here(f"{ALONE}; git branch side; {apart}; git worktree add -q ../linked side")
    work.top = work.top.with_name("linked")
    await work.out()
    back = await work.back("git switch -q main; echo theirs > a; git commit -qam theirs")
    assert back.kept == NAMES.conflicts
    assert work.here("cd ../top; git status --porcelain; git log --format=%s main") == "first\n"
    assert "theirs" in work.here(f"git log --format=%s {NAMES.conflicts}")


@pytest.mark.parametrize("name", ["alias", "alias/below"])
@pytest.mark.parametrize("target", ["main", "none"])
async def test_another_name_of_a_branch_stays_and_what_the_run_has_there_is_kept(
    work: Carrying, name: str, target: str
) -> None:
    await work.out(f"{ALONE}; git symbolic-ref refs/heads/alias refs/heads/{target}")
    back = await work.back(f"echo 2 > b; git add b; git commit -qm second; git branch {name}; echo 3 > c")
    assert (back.conflicts, back.kept) == ([], NAMES.conflicts)
    assert work.here("git log -1 --format=%s main; cat c; git symbolic-ref refs/heads/alias") == (
        f"second\n3\nrefs/heads/{target}\n"
    )
    assert "second" in work.here(f"git log --format=%s {NAMES.conflicts}")


async def test_files_without_a_repository(work: Carrying) -> None:
    shutil.rmtree(work.top / ".git")
    await work.out("echo a > a; echo b > b; mkdir -p d/empty; echo '*' > .gitignore; chmod +x b")
    assert files(work.copy) == files(work.top)
    assert not (work.copy / ".git").exists()
    back = await work.back("echo theirs > a; echo theirs > b; echo n > n; rmdir d/empty", "echo ours > b")
    assert (back.conflicts, back.kept) == ([b"b"], str(work.root / "kept"))
    assert work.here("cat a b n; ls d") == "theirs\nours\nn\n"
    assert (work.root / "kept" / "b").read_text() == "theirs\n"


async def test_what_was_kept_of_files_without_a_repository_is_collected(work: Carrying) -> None:
    shutil.rmtree(work.top / ".git")
    for number in range(3):
        run = work.another(f"run{number}")
        await run.out(f"echo {number} > a")
        (own,) = (work.root / "state").glob("*-carry/own")
        (unneeded := own / "objects" / "17").mkdir(exist_ok=True)
        for each in range(60):  # so many there are of some 15,000 objects
            (path := unneeded / f"{each:038x}").touch()
            os.utime(path, (0, 0))
        assert (await run.back(f"echo {number} >> b")).changed
        await work.carrier.forget(work.top, run.names)
        assert len(list(unneeded.glob("0*"))) == (60 if number == 1 else 0)  # once a day
        os.utime(own / "collected", (0, 0) if number else None)
    assert work.here("cat b") == "0\n1\n2\n"


async def test_without_a_commit(work: Carrying) -> None:
    await work.out("echo a > a; git add a")
    back = await work.back("git commit -qm first; echo b > b")
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here("git log --format=%s; git status --porcelain; git branch --show-current") == "first\n?? b\nmain\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "d/../../x", ".git/config", "../top"])
async def test_links_that_lead_out_stay_there(work: Carrying, target: str) -> None:
    await work.out("mkdir d; echo f > d/f" + COMMIT + "first")
    back = await work.back(f"ln -s {target} evil; ln -s d/f good")
    assert (back.conflicts, back.kept) == ([b"evil"], NAMES.conflicts)
    assert not os.path.lexists(work.top / "evil")
    assert work.here("cat good") == "f\n"


async def test_nothing_is_written_through_a_link(work: Carrying) -> None:
    await work.out("mkdir d; echo f > d/f" + COMMIT + "first")
    outside = work.root / "outside"
    outside.mkdir()
    back = await work.back("echo new > d/new; echo changed > d/f", f"rm -r d; ln -s {outside} d")
    assert back.conflicts == [b"d/f", b"d/new"]
    assert list(outside.iterdir()) == []


async def test_nothing_of_the_copy_is_run(work: Carrying) -> None:
    trap = work.root / "ran"
    await work.out("echo a > a" + COMMIT + "first")
    (work.copy / "trap").write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    back = await work.back(
        "chmod +x trap; git config core.fsmonitor $PWD/trap; git config core.hooksPath .git/h; mkdir .git/h; "
        "for h in reference-transaction post-index-change pre-commit; do cp trap .git/h/$h; done; "
        "git config filter.t.clean $PWD/trap; git config filter.t.smudge $PWD/trap; "
        "echo '* filter=t' > .gitattributes; "
        "git config core.sshCommand $PWD/trap; git config remote.o.url ext::$PWD/trap; "
        f"echo b > b; rm -f {trap}"
    )
    assert (back.conflicts, back.kept) == ([], None)
    assert not trap.exists()
    assert (work.top / ".gitattributes").exists()


async def test_a_repository_that_was_made_there_is_not_lost(work: Carrying) -> None:
    await work.out("echo a > a" + COMMIT + "first")
    with pytest.raises(CopyFailed, match="a repository of its own lies in the copy: lib/x"):
        await work.back(
            "git init -q lib/x; cd lib/x; echo f > f"
            + COMMIT.replace("git", "git -c user.name=a -c user.email=a")
            + "f"
        )
    assert (work.copy / "lib" / "x" / "f").exists()
    assert files(work.top) == {"a": (b"a\n", False)}


async def test_a_repository_within_the_workspace_is_named(work: Carrying) -> None:
    with pytest.raises(GitFailed, match="a repository of its own lies in the workspace, which cannot be carried: lib"):
        await work.out(
            "echo a > a"
            + COMMIT
            + "first; git init -q lib; cd lib; git -c user.name=a -c user.email=a@a commit -q --allow-empty -m x"
        )


@pytest.mark.exhaustive
async def test_another_git_at_work_is_waited_for(work: Carrying) -> None:
    await work.out("echo a > a" + COMMIT + "first")
    (work.top / ".git" / "index.lock").touch()
    with pytest.raises(GitFailed, match="another git is at work"):
        await work.back("echo b > a")
    assert work.here("cat a; rm .git/index.lock") == "a\n"
    assert (await work.back()).conflicts == []
    assert work.here("cat a") == "b\n"


async def test_a_lock_that_a_killed_worker_left_is_taken_over(work: Carrying) -> None:
    await work.out("echo a > a" + COMMIT + "first")
    work.here("touch .git/steersman-index; ln .git/steersman-index .git/index.lock")
    assert (await work.back("echo b > a")).conflicts == []
    assert work.here("cat a; ls .git/index.lock || :") == "b\n"


async def test_twice_is_once(work: Carrying) -> None:
    copy = await work.out(STATE)
    work.in_copy("echo agent > a")
    assert await work.out() == copy
    assert (copy / "a").read_text() == "agent\n"
    first = await work.back("git add -A; git commit -qm second; echo 3 >> a")
    seen, log = files(work.top), work.here("git log --branches --tags --format=%H")
    second = await work.back()
    assert (second.conflicts, second.kept, second.commit) == (first.conflicts, first.kept, first.commit)
    assert files(work.top) == seen
    assert work.here("git log --branches --tags --format=%H") == log


IGNORED = (
    "printf 'cache/\n.env\n*.log\n' > .gitignore; echo a > a"
    + COMMIT
    + "first; mkdir -p cache/deep; echo 1 > cache/one; "
    "echo 2 > cache/deep/two; ln -s one cache/link; echo secret > .env; chmod 600 .env; echo log > x.log"
)
INCLUDE = (".env", "cache", "nowhere", "a/below")


@pytest.mark.exhaustive
@pytest.mark.parametrize("borrow", [True, False])
async def test_what_is_listed_is_carried_although_it_is_ignored(work: Carrying, *, borrow: bool) -> None:
    work.borrow = borrow
    copy = await work.out(IGNORED, INCLUDE)
    assert files(copy) == {name: held for name, held in files(work.top).items() if name != "x.log"}
    assert (copy / ".env").stat().st_mode & 0o777 == 0o600
    assert work.in_copy("git status --porcelain --ignored") == "!! .env\n!! cache/\n"
    assert (await work.back()).changed is False
    back = await work.back(
        "echo theirs > .env; rm cache/one; echo new > cache/new; echo theirs > cache/deep/two; echo no > y.log",
        "echo ours > cache/deep/two; echo ours > cache/mine",
    )
    assert (back.conflicts, back.kept) == ([b"cache/deep/two"], NAMES.conflicts)
    assert work.here("cat .env cache/new cache/deep/two cache/mine; git status --porcelain") == (
        "theirs\nnew\nours\nours\n"
    )
    assert not (work.top / "cache" / "one").exists()
    assert not (work.top / "y.log").exists()
    assert (work.top / ".env").stat().st_mode & 0o777 == 0o600
    assert work.here(f"git show {NAMES.conflicts}:cache/deep/two") == "theirs\n"


async def test_a_run_that_changed_nothing_where_files_are_private(work: Carrying) -> None:
    """As under umask 077: those that git knows, and those that are listed."""
    await work.out(f"{IGNORED}; git ls-files -z | xargs -0 chmod go=; chmod -R go= cache .env", INCLUDE)
    assert (await work.back()).changed is False


async def test_what_is_listed_is_meant_in_the_workspace_not_in_its_repository(work: Carrying) -> None:
    work.here(
        IGNORED + "; mkdir -p sub/cache; echo s > sub/s; echo kept > sub/cache/x; git add sub/s; git commit -qm sub"
    )
    work.carried = await work.carrier.carry_out(
        work.top / "sub", work.place, NAMES, borrow=True, include=("cache", "../cache")[:1]
    )
    assert (work.copy / "cache" / "x").exists()
    assert not (work.copy.parent / "cache").exists()


async def test_a_repository_in_what_is_listed_is_named(work: Carrying) -> None:
    with pytest.raises(GitFailed, match=r"a repository of its own lies in the workspace, .*: cache/r"):
        await work.out(
            IGNORED
            + "; git init -q cache/r; git -C cache/r -c user.name=a -c user.email=a commit -q --allow-empty -m x",
            INCLUDE,
        )


SYMBOLIC = "git symbolic-ref refs/heads/s refs/heads/main; git symbolic-ref HEAD refs/heads/s"


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


TAGS = "h=$(git rev-parse HEAD); for n in $(seq {}); do echo $h refs/tags/t$n; done > .git/packed-refs"
ALONE = "echo a > a" + COMMIT + "first"


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ("mkfifo .gitignore", ".gitignore is no file"),
        ("mkdir q; mkfifo q/.gitattributes", "q/.gitattributes is no file"),
        ("rm .git/index; mkfifo .git/index", "index is no file"),
        ("rm -f .git/packed-refs; mkfifo .git/packed-refs", "packed-refs is no file"),
        ("mkdir -p .git/refs/heads; mkfifo .git/refs/heads/x", "x is no file"),
        ("mkdir -p .git/refs; rm -rf .git/refs/heads; ln -s / .git/refs/heads", "Too many levels of symbolic links"),
        ("rm a; mkfifo a", "a is neither a file nor a link nor a directory any more"),
        ("echo x > 'git~1'", "git takes no file of this name: git~1"),
        ("git worktree add -q ../other -b other", "a work tree of its own, which is not carried"),
        ("rm -rf .git; ln -s /tmp .git", "the copy's .git is no directory any more"),
        (SYMBOLIC, "is no branch of its own"),
        ("""python3 -c "
import os
for n in range(600): os.mkdir('dddddddd'); os.chdir('dddddddd')
open('f', 'w').close()" """, "git ls-files"),
        ("echo b > b; git add b; git commit -qm second; rm -f .git/objects/$(git rev-parse HEAD | sed 's,^..,&/,')",
         "git commit-tree"),
    ],
)  # fmt: skip
async def test_a_copy_that_cannot_be_read_whole_is_not_taken_for_less(work: Carrying, there: str, words: str) -> None:
    await work.out(ALONE)
    seen = files(work.top)
    with pytest.raises(CopyFailed, match=words):
        await work.back(there)
    assert files(work.top) == seen


async def test_a_repository_in_a_copy_of_files_without_one_is_not_lost(work: Carrying) -> None:
    shutil.rmtree(work.top / ".git")
    await work.out("echo a > a")
    with pytest.raises(CopyFailed, match="a repository was made in the copy"):
        await work.back("git init -q")


async def test_half_a_copy_is_none(work: Carrying) -> None:
    copy = await work.out("mkdir d; echo f > d/f; touch u" + COMMIT + "first")
    (copy.parent.parent / "ready").unlink()
    shutil.rmtree(copy / "d")
    with pytest.raises(CopyFailed, match="there is no copy"):
        await work.back()
    assert (work.top / "d" / "f").exists()


@pytest.mark.parametrize(
    ("here", "words"),
    [
        ("git sparse-checkout set --no-cone x", "cannot be carried: a; `git sparse-checkout disable`"),
        ("git update-index --skip-worktree x/x", "carried: x/x; .* `git update-index --no-skip-worktree FILE`"),
        ("printf '%040d\n' 1 > .git/refs/tags/broken", "refs/tags/broken names an object that is not there"),
        ("git config filter.secret.clean cat", "filters that a copy would not have"),
        ("git config include.path more; git config -f .git/more filter.secret.clean cat", "filters that a copy would"),
        (
            "git config --global includeIf.gitdir:$PWD/.path more; git config -f ~/more filter.secret.clean cat",
            "filters that a copy would not have",
        ),
        (SYMBOLIC, "is no branch of its own"),
        ("git clone -q --depth 1 file://$PWD c; rm -rf .git a; mv c/.git .git; mv c/a a; rm -rf c", "shallow clone"),
    ],
)  # fmt: skip
async def test_a_workspace_of_which_a_copy_would_be_another_one_is_refused(
    work: Carrying, here: str, words: str
) -> None:
    with pytest.raises(GitFailed, match=words):
        await work.out(
            "mkdir x; echo x > x/x; echo a > a" + COMMIT + "first; echo b >> a; git commit -qam two; " + here
        )


@pytest.mark.parametrize(
    "include",
    ["git config include.path more; mv more .git", "git config --global includeIf.gitdir:$PWD/.path more; mv more ~"],
)
async def test_whoever_commits_here_by_an_include_commits_in_the_copy(work: Carrying, include: str) -> None:
    work.here(f"git config --file more user.name Included; {include}; git config --unset user.name")
    await work.out(ALONE)
    assert work.in_copy("git config user.name; git config user.email") == "Included\nperson@example.invalid\n"


async def test_filters_that_the_user_has_everywhere_are_no_hindrance(work: Carrying) -> None:
    work.here("git config --global filter.tidy.clean cat; echo '* filter=tidy' > .gitattributes")
    await work.out(ALONE)
    assert work.in_copy("git status --porcelain; git config filter.tidy.clean") == "cat\n"


LFS = "git config --global filter.lfs.process 'git-lfs filter-process'"


@pytest.mark.parametrize("place", [".gitattributes", "assets/.gitattributes", ".git/info/attributes"])
async def test_contents_that_git_lfs_keeps_are_not_lost_in_a_copy(work: Carrying, place: str) -> None:
    work.here(f"mkdir -p .git/info assets; {ALONE}; echo '*.bin filter=lfs diff=lfs merge=lfs -text' > {place}")
    with pytest.raises(GitFailed, match="keeps files with Git LFS"):
        await work.out(LFS)


async def test_git_lfs_that_nothing_here_uses_is_no_hindrance(work: Carrying) -> None:
    await work.out(f"{LFS}; echo '# *.bin filter=lfs' > .gitattributes; {ALONE}")
    back = await work.back("echo b > b; git add b; git commit -qm second")
    assert (back.conflicts, back.kept) == ([], None)


async def test_contents_that_an_agent_keeps_with_git_lfs_stay_in_the_copy(work: Carrying) -> None:
    copy = await work.out(ALONE)
    kept = copy / ".git" / "lfs" / "objects"
    with pytest.raises(CopyFailed, match="kept files with Git LFS, whose contents are not carried: move them from"):
        await work.back("mkdir -p .git/lfs/objects/aa/bb; echo content > .git/lfs/objects/aa/bb/aabb; echo p > p.bin")
    assert (kept / "aa" / "bb" / "aabb").exists()
    work.here(f"mkdir -p .git/lfs; mv {kept} .git/lfs")
    assert (await work.back()).changed
    assert (work.top / "p.bin").exists()


async def test_an_include_may_not_name_any_file(work: Carrying) -> None:
    outside = work.root / "outside"
    outside.write_text("[user]\n\tname = Secret\n")
    for each in (outside, work.root / "missing"):
        with pytest.raises(GitFailed, match="includes a file that lies outside") as refused:
            await work.out(f"{ALONE} --allow-empty; git config include.path {each}")
        assert work.root.name not in str(refused.value)


async def test_an_include_that_git_cannot_read_is_said_without_its_content(work: Carrying) -> None:
    work.here(f"{ALONE}; echo '[Secret' > other; git config include.path ../other")
    with pytest.raises(GitFailed, match="git cannot read the repository's configuration") as refused:
        await work.out()
    assert "Secret" not in str(refused.value)


async def test_a_pipe_that_is_included_keeps_nobody_waiting(work: Carrying) -> None:
    with pytest.raises(GitFailed, match=r"pipe, of the repository's configuration, cannot be read"):
        await work.out(f"{ALONE}; mkfifo ../pipe; git config include.path ../../pipe")


async def test_more_tags_than_can_be_carried_are_refused_in_words(work: Carrying) -> None:
    await work.out(ALONE)
    with pytest.raises(NoSnapshot, match="the copy has more branches, tags or other refs than 20,000"):
        await work.back(
            "h=$(git rev-parse HEAD); for n in $(seq 20001); do echo $h refs/tags/t$n; done > .git/packed-refs"
        )


async def test_many_tags_are_carried_back_and_one_that_cannot_be_is_named(work: Carrying) -> None:
    await work.out(ALONE)
    broken = work.top / ".git" / "refs" / "tags" / "t7" / "x"
    broken.parent.mkdir()
    broken.write_text("no ref\n")
    with pytest.raises(GitFailed, match=r"refs/tags/t7 could not be set: .*'refs/tags/t7/x' exists"):
        await work.back(TAGS.format(1000))
    shutil.rmtree(broken.parent)
    await work.back()
    assert work.here("git tag | wc -l").strip() == "1000"
    assert work.here("git for-each-ref --format='%(objectname)' refs/tags | sort -u | wc -l").strip() == "1"
    assert not list((work.top / ".git").rglob("*.lock"))


@pytest.mark.parametrize("borrow", [True, False])
@pytest.mark.parametrize(
    "there",
    [
        "git sparse-checkout set --no-cone b",
        "git sparse-checkout set --cone --sparse-index b; git ls-files --sparse | grep -q d/$",
        "git update-index --skip-worktree d/a; rm -r d",
    ],
)
async def test_what_an_agent_leaves_out_of_its_work_tree_stays_here(
    work: Carrying, there: str, *, borrow: bool
) -> None:
    work.borrow = borrow
    await work.out("mkdir d b; echo d > d/a; echo b > b/b; echo c > b/c; " + ALONE + "; echo 2 > b/b; rm b/c")
    seen = files(work.top)
    back = await work.back(f"{there}; [ ! -e d ]; echo 2 > new")
    assert (back.conflicts, back.kept) == ([], None)
    assert files(work.top) == {**seen, "new": (b"2\n", False)}


async def test_commits_on_what_an_agent_leaves_out_of_its_work_tree_come_whole(work: Carrying) -> None:
    await work.out("mkdir d; echo d > d/a; echo b > d/b; " + ALONE + "; git switch -qc side; echo side > d/a; "
                   "echo s > d/s; git rm -q d/b; git add d; git commit -qm side; git switch -q main")  # fmt: skip
    back = await work.back("git sparse-checkout set --no-cone a; git merge -q side")
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here("git log -1 --format=%s; git status --porcelain; cat d/a d/s; ls d") == "side\nside\ns\na\ns\n"


async def test_what_is_in_no_branch_of_the_copy_is_kept(work: Carrying) -> None:
    await work.out(ALONE)
    back = await work.back("echo stashed > a; git stash -q")
    assert back.kept == NAMES.conflicts
    assert work.here("cat a") == "a\n"
    assert "stashed" in work.here(f"for parent in $(git rev-parse {NAMES.conflicts}^@); do git show $parent:a; done")


async def test_each_stash_of_the_copy_is_kept(work: Carrying) -> None:
    await work.out(ALONE)
    back = await work.back(
        "for n in 1 2 3 4; do echo $n > a; echo $n > u$n; git stash -q -u; done; git stash drop -q stash@{1}"
    )
    assert back.kept == NAMES.conflicts
    assert work.here(f"git for-each-ref --format='%(refname)' '{NAMES.conflicts}+*'").split() == [
        f"{NAMES.conflicts}+{number}" for number in (1, 2, 3)
    ]
    for number, stash in enumerate((4, 2, 1), 1):
        assert work.here(f"git stash apply -q {NAMES.conflicts}+{number}; cat a u{stash}") == f"{stash}\n{stash}\n"
        work.here("git reset -q --hard")


async def test_a_log_of_stashes_that_names_nothing_keeps_no_copy_from_its_return(work: Carrying) -> None:
    await work.out(ALONE)
    back = await work.back(
        "echo 1 > a; git stash -q; echo 2 > b; printf '%040d %040x x\\n\\nx\\n' 0 10 >> .git/logs/refs/stash"
    )
    assert back.kept == NAMES.conflicts
    assert work.here("cat b") == "2\n"


async def test_all_commits_are_kept_where_a_person_has_gone_on(work: Carrying) -> None:
    await work.out(ALONE)
    back = await work.back(
        "echo m > m; git add m; git commit -qm M; git switch -qc topic HEAD~1; echo t > t; git add t; git commit -qm T",
        "echo u > u; git add u; git commit -qm U",
    )
    assert back.kept == NAMES.conflicts
    assert {"M", "T"} <= set(work.here(f"git log --format=%s {NAMES.conflicts}").splitlines())
    assert work.here("git log --format=%s; git status --porcelain") == "U\nfirst\n"


async def test_a_merge_that_a_person_has_begun_is_theirs(work: Carrying) -> None:
    await work.out("echo f > f; echo g > g" + COMMIT + "first; git switch -qc side; echo s > f; git commit -qam side; "
                   "git switch -q main; echo m > f; git commit -qam main")  # fmt: skip
    back = await work.back("echo agent > f; git add f; echo agent > g", "git merge -q side || :")
    assert b"f" in back.conflicts
    assert work.here("git ls-files -u | wc -l; cat g").split() == ["3", "agent"]
    assert (work.top / ".git" / "MERGE_HEAD").exists()


async def test_a_branch_is_not_moved_under_a_rebase(work: Carrying) -> None:
    await work.out("for n in 1 2 3; do echo $n > f$n; git add .; git commit -qm $n; done")
    back = await work.back(
        "echo x > x; git add x; git commit -qm agent",
        "GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' git rebase -qi HEAD~1",
    )
    assert back.kept == NAMES.conflicts
    work.here("git rebase --continue")
    assert work.here("git log --format=%s main").split() == ["3", "2", "1"]
    assert "agent" in work.here(f"git log --format=%s {NAMES.conflicts}")


async def test_a_lock_of_somebody_elses_stays(work: Carrying) -> None:
    await work.out(ALONE)
    (work.top / ".git" / "HEAD.lock").write_text("ref: refs/heads/topic\n")
    with pytest.raises(GitFailed, match=r"HEAD\.lock is there"):
        await work.back("git switch -qc topic")
    assert work.here("cat .git/HEAD .git/HEAD.lock") == "ref: refs/heads/main\nref: refs/heads/topic\n"


async def test_what_git_left_when_it_was_killed_is_in_nobodys_way(work: Carrying) -> None:
    await work.out(ALONE)
    (work.top / ".git" / "steersman-index.new.lock").touch()
    assert (await work.back("git mv a b")).conflicts == []
    assert work.here("git status --porcelain") == "R  a -> b\n"


async def test_names_of_any_bytes(work: Carrying) -> None:
    odd = "mkdir $'e\\xff'; echo s > $'p\\xff'; chmod 600 $'p\\xff'; "
    await work.out(odd + ALONE + "; git branch $'x\\u2028y'")
    back = await work.back("mkdir $'n\\xff'; git branch $'z\\u0085'")
    assert (back.conflicts, back.kept) == ([], None)
    assert (work.top / os.fsdecode(b"n\xff")).is_dir()
    assert "z\x85" in work.here("git branch --list")


async def test_repositories_by_sha256(work: Carrying) -> None:
    work.here(
        "rm -rf .git; git init -q -b main --object-format=sha256; git config user.name P; git config user.email p@p"
    )
    await work.out("echo a > a; echo b > b" + COMMIT + "first")
    assert (await work.back("git rm -q b; echo 2 > a; git commit -qam second; git mv a c")).conflicts == []
    assert work.here("git status --porcelain; git log --format=%s") == "R  a -> c\nsecond\nfirst\n"


CONFIG_APART = (
    "git config --unset core.bare; git config extensions.worktreeConfig true; "
    "git config -f config.worktree core.bare true"
)


@pytest.mark.parametrize(("name", "config"), [("bare", ":"), (".git", ":"), ("bare", CONFIG_APART)])
async def test_a_work_tree_of_a_bare_repository(work: Carrying, name: str, config: str) -> None:
    work.here(f"{ALONE}; cd ..; git clone -q --bare top {name}; rm -rf top; cd {name}; {config}")
    subprocess.run(["git", "worktree", "add", "-q", "../top", "main"], cwd=work.top.with_name(name), check=True)
    work.here("git config user.name P; git config user.email p@p")
    await work.out()
    assert (await work.back("echo 2 > a; git commit -qam second")).kept is None
    assert work.here("git status --porcelain; git log --format=%s") == "second\nfirst\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["L/../../secret", "L/L/../../x", "./../..", "d/../a"])
async def test_links_may_not_lead_through_others_and_up(work: Carrying, target: str) -> None:
    await work.out(ALONE)
    back = await work.back(f"mkdir d; ln -s . L; ln -s {target} evil")
    assert back.conflicts == [b"evil"]
    assert (work.top / "L").is_symlink()


@pytest.mark.exhaustive
async def test_what_a_person_writes_while_a_file_is_looked_at_stays(work: Carrying) -> None:
    await work.out("head -c 100000000 /dev/zero > big; echo a > a; git add a; git commit -qm first")
    work.in_copy("echo more >> big")
    carrying = asyncio.create_task(work.back())
    for _ in range(400):
        await asyncio.sleep(0.01)
        with (work.top / "big").open("r+b") as file:
            file.write(b"mine")
        if carrying.done():
            break
    back = await carrying
    held = (work.top / "big").read_bytes()
    assert held[:4] == b"mine"
    assert back.conflicts == [b"big"] or held.endswith(b"more\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_disk_without_room_for_it_is_left_as_it_is(tmp_path: Path) -> None:
    disk = tmp_path / "work"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", "size=2m", "none", disk)
    try:
        work = Carrying(tmp_path)
        work.git()
        await work.out(ALONE + "; echo mine > dirty")
        seen = files(work.top)
        with pytest.raises(GitFailed, match="may have to be kept"):
            await work.back("head -c 6000000 /dev/urandom > big; echo b > a; git add -A; git commit -qm second")
        assert files(work.top) == seen
        assert not list((work.top / ".git" / "objects" / "pack").iterdir())
        mount("-o", "remount,size=40m", disk)
        assert (await work.back()).conflicts == []
        assert (work.top / "a").read_text() == "b\n"
        await work.close()
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("borrow", [True, False])
async def test_a_workspace_that_is_another_clone_by_now_is_told_from_the_one_of_the_copy(
    work: Carrying, *, borrow: bool
) -> None:
    work.borrow = borrow
    copy = await work.out("echo one > a" + COMMIT + "first; echo dirty > a")
    work.in_copy("echo agent > b")
    moved = work.top.with_name("moved")
    work.top.rename(moved)
    subprocess.run(["git", "clone", "-q", f"file://{moved}", work.top], check=True)
    with pytest.raises(NoSnapshot, match=f"another clone by now, or an older backup.*take the files from {copy}"):
        await work.back()
    assert (copy / "b").read_text() == "agent\n"
    assert not (work.top / "b").exists()

    shutil.rmtree(work.top)
    moved.rename(work.top)
    assert (await work.back()).conflicts == []
    assert (work.top / "b").read_text() == "agent\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        ("exec yes", CopyFailed, "does not end"),
        ("exec tr '\\0' x < /dev/zero", CopyFailed, "does not end"),
        ("exec sleep 600", MachineUnreachable, "not removed in time"),
    ],
)
async def test_a_machine_that_floods_or_says_nothing_keeps_nobody_waiting(
    work: Carrying, monkeypatch: pytest.MonkeyPatch, program: str, error: type[Exception], words: str
) -> None:
    monkeypatch.setattr("activities.workspaces.carry.copies._END_S", 0.5)
    monkeypatch.setattr("activities.workspaces.carry.copies.ANSWER_S", 2)
    (python := work.root / "python").write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o700)
    async with asyncio.timeout(20):
        with pytest.raises(error, match=words):
            await WorkspaceCopy(work.machine, str(work.there / "place"), str(python)).remove()


async def test_a_machine_that_says_nothing_of_a_copy_is_not_waited_for_for_ever(
    work: Carrying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.workspaces.carry.copies.SNAPSHOT_S", 0.5)
    monkeypatch.setattr("activities.workspaces.carry.copies.SILENCE_S", 0.5)
    say = 'echo \'{"ok": true, "snapshot": "x", "size": 5}\''
    for program, words in (("", "snapshot of the copy was not made"), (f"{say}; printf x", "did not come")):
        (python := work.root / "python").write_text(f"#!/bin/sh\n{program}\nexec sleep 600\n")
        python.chmod(0o700)
        async with asyncio.timeout(20):
            with pytest.raises(MachineUnreachable, match=words):
                await WorkspaceCopy(work.machine, str(work.there / "place"), str(python)).send({}, work.root / words)
