"""A workspace is carried to a copy, and what became of it there is merged: nothing of either side is lost."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.workspaces.carry.copies import CopyFailed
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


async def test_files_without_a_repository(work: Carrying) -> None:
    shutil.rmtree(work.top / ".git")
    await work.out("echo a > a; echo b > b; mkdir -p d/empty; echo '*' > .gitignore; chmod +x b")
    assert files(work.copy) == files(work.top)
    assert not (work.copy / ".git").exists()
    back = await work.back("echo theirs > a; echo theirs > b; echo n > n; rmdir d/empty", "echo ours > b")
    assert (back.conflicts, back.kept) == ([b"b"], str(work.root / "kept"))
    assert work.here("cat a b n; ls d") == "theirs\nours\nn\n"
    assert (work.root / "kept" / "b").read_text() == "theirs\n"


async def test_without_a_commit(work: Carrying) -> None:
    await work.out("echo a > a; git add a")
    back = await work.back("git commit -qm first; echo b > b")
    assert (back.conflicts, back.kept) == ([], None)
    assert work.here("git log --format=%s; git status --porcelain; git branch --show-current") == "first\n?? b\nmain\n"


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
