"""A copy that is there is made into one of a newer snapshot: what is ignored stays, nothing unchanged is written."""

import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from activities.workspaces.carry.copies import CopyFailed
from tests.workspaces.carrying import COMMIT, Carrying, files
from tests.workspaces.test_carry_objects import TALK, KilledMachine, counted

pytestmark = [pytest.mark.integration, pytest.mark.timeout(40)]

STATE = (
    "printf 'cache/\\n*.log\\n' > .gitignore; for f in a b c; do echo $f > $f; done; mkdir -p d/e/f; echo d > d/e/f/g; "
    "ln -s a link; echo x > run; chmod +x run; echo forced > forced.log; git add -f forced.log"
    + COMMIT + "first; echo dirty >> b; echo untracked > u; mkdir empty"
)  # fmt: skip
WORK = "mkdir -p cache/deep d/cache cache/none; for f in cache/deep/x d/cache/y x.log; do echo kept > $f; done; "
LATER = (
    "echo more >> a; git rm -qf --cached c; rm c; git rm -qf forced.log; git mv d/e/f/g moved; git commit -qm second; "
    "echo staged > s; git add s; rm u; rmdir empty; mkdir -p other/empty; ln -sfn b link; chmod -x run; git tag v2; "
    "git switch -qc topic; echo secret > key; chmod 600 key"
)
KEPT = {
    "cache": "directory", "cache/deep": "directory", "cache/deep/x": (b"kept\n", False), "cache/none": "directory",
    "x.log": (b"kept\n", False),
}  # fmt: skip
IGNORED = {**KEPT, "d": "directory", "d/cache": "directory", "d/cache/y": (b"kept\n", False)}


@pytest.fixture(params=[True, False], ids=["borrowed", "sent"])
async def work(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Carrying]:
    made = Carrying(tmp_path, borrow=request.param, stores=not request.param)
    made.git()
    yield made
    await made.close()


def check(work: Carrying, ignored: Mapping[str, object]) -> None:
    """The copy is what a copy made anew would be, and has what was ignored."""
    assert files(work.copy) == {**files(work.top), **ignored}
    for command in (
        "git status --porcelain=2 --branch", "git log --branches --tags --decorate", "git diff HEAD",
        "git diff --cached", "git for-each-ref refs/heads refs/tags", "git stash list",
    ):  # fmt: skip
        assert work.in_copy(command) == work.here(command)
    work.in_copy("git fsck --full --strict")
    for name in ("key", "a"):
        if (work.top / name).exists():
            assert (work.copy / name).stat().st_mode & 0o777 == (work.top / name).stat().st_mode & 0o777


async def refreshed(work: Carrying, name: str = "second") -> Carrying:
    """The same copy, of the workspace as it is now."""
    run = work.another(name)
    run.place = work.place
    run.carried = await work.carrier.carry_out(run.top, run.place, run.names, borrow=run.borrow, refresh=True)
    assert run.copy == work.copy
    return run


async def test_what_a_killed_snapshot_has_left_goes(work: Carrying) -> None:
    await work.out(STATE)
    (left := Path(work.place.root, "tmpabcdefgh")).mkdir()
    (left / "pack").write_text("all that was changed")
    await refreshed(work)
    assert not left.exists()


@pytest.mark.exhaustive
async def test_it_becomes_what_the_workspace_is(work: Carrying) -> None:
    copy = await work.out(STATE)
    work.in_copy(
        WORK + "echo mine > mine; mkdir -p mine2/x; git branch mine; git stash -q; echo odd > a; rm b; git add -A"
    )
    before = (copy / ".gitignore").stat()
    work.here(LATER)
    run = await refreshed(work)
    check(run, IGNORED)
    assert os.path.samestat(before, (copy / ".gitignore").stat())
    back = await run.back("echo theirs > theirs; git commit -qam third")
    assert (back.changed, back.conflicts) == (True, [])
    assert work.here("git log --format=%s; cat theirs") == "third\nsecond\nfirst\ntheirs\n"


@pytest.mark.exhaustive
async def test_nothing_unchanged_is_written_and_little_is_sent(work: Carrying) -> None:
    copy = await work.out(STATE + "; head -c 600000 /dev/urandom > big")
    work.in_copy(WORK)
    seen = {name: (copy / name).stat() for name in ("big", "b", "d/e/f/g", "cache/deep/x")}
    counted(work)
    for number in range(3):
        work.here(f"echo {number} > a")
        await refreshed(work, f"run{number}")
        assert (copy / "a").read_text() == f"{number}\n"
    assert counted(work)["out"] < 3 * TALK < 600_000
    for name, was in seen.items():
        now = (copy / name).stat()
        assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (was.st_ino, was.st_mtime_ns, was.st_ctime_ns), name


@pytest.mark.exhaustive
async def test_rules_that_only_the_copy_has_hide_nothing(work: Carrying) -> None:
    await work.out(STATE)
    work.in_copy(WORK + "mkdir -p m/n/o; echo '*.x' > m/.gitignore; echo o > m/n/.gitignore; "
                 "touch m/a.x m/n/b.x m/n/o/c; echo m > cache/.gitignore; echo cache > .git/info/exclude")  # fmt: skip
    work.here("echo newer > a")
    run = await refreshed(work)
    check(run, {**IGNORED, "cache/.gitignore": (b"m\n", False)})


async def test_files_without_a_repository(tmp_path: Path) -> None:
    work = Carrying(tmp_path)
    await work.out("echo a > a; echo '*' > .gitignore; mkdir d; echo b > d/b")
    work.in_copy("echo mine > mine; echo x > a; git init -q")
    work.here("echo new > new; rm -r d")
    run = await refreshed(work)
    assert files(run.copy) == files(work.top)
    assert not (run.copy / ".git").exists()
    await work.close()


TRAP = "#!/bin/sh\ntouch {trap}\ncat\n"
LEFT = {
    "pipes": "mkfifo .gitattributes q; mkdir z; mkfifo z/.gitignore; rm a b; mkfifo a; mkdir b; rm -r d; mkfifo d",
    "links": "rm -r d; ln -s {outside} d; rm a; ln -s {outside}/f a; ln -s {outside} more; ln -sf {outside} .gitignore",
    "files and directories": "rm -r d a; echo f > d; mkdir -p a/b/c; echo f > a/b/c/d; rm .gitignore; mkdir .gitignore",
    "no repository": "rm -rf .git",
    "a link for a repository": "rm -rf .git; ln -s {outside} .git",
    "a pipe for a repository": "rm -rf .git; mkfifo .git",
    "pipes in the repository": "rm -f .git/index .git/HEAD .git/config; for f in index HEAD config packed-refs; "
    "do rm -f .git/$f; mkfifo .git/$f; done; rm -rf .git/objects/pack; mkfifo .git/objects/pack",
    "a hostile configuration": "git config core.fsmonitor {trap}; git config core.hooksPath .git/h; mkdir .git/h; "
    "for h in post-checkout post-index-change reference-transaction; do cp {trap}.sh .git/h/$h; done; "
    "git config filter.t.smudge {trap}.sh; git config core.worktree {outside}; echo '* filter=t' > .gitattributes",
    "locks": "touch .git/index.lock .git/HEAD.lock ../../index.new.lock ../../store/index.lock",
    "repositories": "git init -q n; cd n; git -c user.name=a -c user.email=a commit -q --allow-empty -m x; "
    "mkdir ../cache; git init -q ../p; rm ../p/.git/HEAD; mkfifo ../p/.git/HEAD",
    "no files": "rm -rf * .gitignore .git",
    "no directory": "rm -rf $PWD",
    "a link for the directory": "rm -rf $PWD; ln -s {outside} $PWD",
    "no rights": "chmod -R a-rwx d; chmod a-rwx a .git",
    "no index": "rm ../../index",
    "a torn index": "echo torn > ../../index",
    "no objects": "rm -rf ../../store/objects",
    "names": "touch $'\\xff\\n' -- -x '*' ' ' '\"' $'a\\tb'; mkdir $'d\\n'; touch $'d\\n/x' 'git~1' '.GIT'",
    "deep": """python3 -c "
import os
for n in range(3000): os.mkdir('d' * 40); os.chdir('d' * 40)
open('f', 'w').close()" """,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT.keys())
async def test_whatever_an_agent_has_left(work: Carrying, left: str) -> None:
    outside, trap = work.root / "outside", work.root / "ran"
    outside.mkdir()
    (outside / "f").write_text("outside\n")
    Path(f"{trap}.sh").write_text(TRAP.format(trap=trap))
    Path(f"{trap}.sh").chmod(0o755)
    await work.out(STATE)
    work.in_copy(left.format(outside=outside, trap=trap))
    work.here(LATER)
    run = await refreshed(work)
    check(run, {name: "directory" for name in ("cache",) if (run.copy / name).exists()})
    assert not trap.exists()
    assert files(outside) == {"f": (b"outside\n", False)}
    assert sorted(each.name for each in run.copy.parent.parent.iterdir() if each.name != "objects") == [
        "copy", "index", "name", "ready", "run", "store",
    ]  # fmt: skip
    assert (await run.back("echo theirs > a")).conflicts == []


@pytest.mark.exhaustive
async def test_sockets_go(work: Carrying) -> None:
    copy = await work.out(STATE)
    with socket.socket(socket.AF_UNIX) as listening:
        at = os.open(copy, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{at}/socket")
        os.close(at)
    work.here("echo newer > a")
    check(await refreshed(work), {})


@pytest.mark.exhaustive
async def test_one_that_is_killed_is_gone_on_with(work: Carrying) -> None:
    at, kills, total = 1, 1, 0
    while kills:
        first = work.another(f"first{at}")
        work.here("find . -mindepth 1 -delete; git init -q -b main; git config user.name P; git config user.email p@p")
        copy = await first.out(STATE)
        first.in_copy(WORK + "echo mine > mine; rm -r d/e; mkfifo d/e")
        work.here(LATER)
        machine, kills = KilledMachine(work.there, at), 0
        calm, first.place = (
            first.place,
            type(first.place)(machine, first.place.root, sys.executable, stores=first.place.stores),
        )
        try:
            await refreshed(first, f"second{at}")
        except CopyFailed as failed:
            if "exit code -9" not in str(failed):
                raise
            kills += 1
        first.place = calm
        run = await refreshed(first, f"second{at}")
        check(run, IGNORED)
        assert (copy / "x.log").exists()
        await machine.aclose()
        await run.place.remove()
        at, total = at + 1, total + kills
    assert total > 5


async def test_without_a_copy_one_is_made(work: Carrying) -> None:
    work.here(STATE)
    work.carried = await work.carrier.carry_out(work.top, work.place, work.names, borrow=work.borrow, refresh=True)
    check(work, {})


@pytest.mark.exhaustive
async def test_another_workspace_is_not_brought_into_it(work: Carrying) -> None:
    await work.out(STATE)
    run = work.another("second")
    run.place = work.place
    with pytest.raises(CopyFailed, match="another snapshot was brought"):
        await run.out(LATER)
    work.in_copy("git status; echo theirs > a")
    assert (await work.back()).conflicts == [b"a"]


async def test_it_is_as_the_workspace_also_where_that_is_as_before(work: Carrying) -> None:
    """Most often in the same second, in which git gives what is the same the same id."""
    await work.out(STATE)
    work.in_copy("echo odd > a; echo odd > odd")
    check(await refreshed(work), {})


@pytest.mark.exhaustive
async def test_who_had_it_before_does_not_carry_back_what_the_next_one_does(work: Carrying) -> None:
    """As a worker may try that was frozen when another one carried back in its place."""
    await work.out(STATE)
    run = await refreshed(work)
    run.in_copy("echo half > a")
    with pytest.raises(CopyFailed, match="another run's by now"):
        await work.back()
    assert (await run.back("echo whole > a")).conflicts == []
    assert work.here("cat a") == "whole\n"
