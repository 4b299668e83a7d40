"""Checkpoints of real repositories: complete, exact, and nothing of the person's is touched."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.checkpoint_commits import ref
from tests.loops.loop_site import Site, git, put, repository, seen, standing
from tests.support.processes import lives, until

pytestmark = [pytest.mark.integration]

FIRST: dict[str, bytes | str] = {
    "a.txt": "one\n",
    "dir/b.txt": "two\n",
    "dir/c.txt": "three\n",
    ".gitignore": "*.log\nbuild/\n",
}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return repository(tmp_path / "work", FIRST)


@pytest.fixture
def site(tmp_path: Path, top: Path) -> Site:
    return Site(tmp_path, top)


async def test_everything_that_git_would_see_is_kept(site: Site, top: Path) -> None:
    put(top, {"a.txt": "staged\n"})
    git(top, "add", "a.txt")
    put(top, {"a.txt": "changed\n", "new/deep.txt": "new\n", "x.log": "ignored", "build/out": "ignored"})
    put(top, {"staged only": "s"})
    git(top, "add", "staged only")
    (top / "dir" / "c.txt").unlink()
    git(top, "mv", "dir/b.txt", "moved.txt")
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / "link").symlink_to("a.txt")
    (top / "dangling").symlink_to("/nowhere/at all")
    before = standing(top)
    commit = await site.keep()
    assert seen(top, commit) == {
        ".gitignore": b"*.log\nbuild/\n",
        "a.txt": b"changed\n",
        "dangling": b"-> /nowhere/at all",
        "link": b"-> a.txt",
        "moved.txt": b"two\n",
        "new/deep.txt": b"new\n",
        "run.sh": b"+x #!/bin/sh\n",
        "staged only": b"s",
    }
    assert standing(top) == before


def kept(top: Path) -> dict[str, str]:
    """Refs of ours, without what all of them begin with, and their commits."""
    lines = git(top, "for-each-ref", "refs/steersman/", "--format=%(refname) %(objectname)").splitlines()
    return {name.removeprefix("refs/steersman/"): commit for name, commit in (line.split(" ") for line in lines)}


@pytest.mark.parametrize("first", [0, 2])
async def test_what_a_reset_or_another_loop_of_its_id_kept_is_set_aside(site: Site, top: Path, first: int) -> None:
    for number in range(4):
        put(top, {"a.txt": f"{number}\n"})
        assert (await site.look(number, maker="earlier")).commit
    before = kept(top)
    put(top, {"a.txt": "anew\n"})
    anew = [await site.look(number, maker="later") for number in (first, first, first + 1)]  # a further attempt, too
    aside = f"loop-1@{before[f'loop-1/{first}'][:12]}"
    assert kept(top) == {
        **{f"loop-1/{number}": before[f"loop-1/{number}"] for number in range(first)},
        **{f"{aside}/{number}": before[f"loop-1/{number}"] for number in range(first, 4)},
        f"loop-1/{first}": anew[1].commit,
        f"loop-1/{first + 1}": anew[2].commit,
    }
    assert seen(top, kept(top)[f"{aside}/3"])["a.txt"] == b"3\n"


async def test_an_execution_that_goes_on_sets_nothing_aside(site: Site, top: Path) -> None:
    for number in range(3):
        await site.look(number, maker="continued" if number > 1 else "begun")
    assert list(kept(top)) == ["loop-1/0", "loop-1/1", "loop-1/2"]


async def test_a_ref_that_an_agent_has_forged_keeps_no_checkpoint_away(site: Site, top: Path) -> None:
    await site.look(0)
    tree = git(top, "rev-parse", "HEAD^{tree}").strip()
    git(top, "symbolic-ref", "refs/steersman/loop-1/2", "refs/heads/main")
    git(top, "update-ref", "refs/steersman/loop-1/3", tree)
    for name in ("007", "7", "\u0667"):
        git(top, "update-ref", f"refs/steersman/loop-1/{name}", "HEAD")
    branch = git(top, "rev-parse", "HEAD").strip()
    assert (await site.look(1)).error is None
    assert {"loop-1/0", "loop-1/1"} <= set(kept(top))
    assert git(top, "rev-parse", "main").strip() == branch


async def test_the_commit_says_what_it_is(site: Site, top: Path) -> None:
    survey = await site.look(7)
    assert survey.commit == git(top, "rev-parse", f"refs/steersman/{site.loop}/7").strip()
    said = git(top, "log", "-1", "--format=%an <%ae>|%cn <%ce>|%P|%s", survey.commit or "").strip()
    head = git(top, "rev-parse", "HEAD").strip()
    who = "Steersman <steersman@localhost>"
    assert said == f"{who}|{who}|{head}|loop-1: checkpoint 7"
    assert (survey.head, survey.files) == (head, git(top, "rev-parse", f"{survey.commit}^{{tree}}").strip())


async def test_a_look_without_a_number_keeps_nothing(site: Site, top: Path) -> None:
    put(top, {"new": "x"})
    survey = await site.look(None)
    assert survey.commit is None
    assert len(survey.files) == 40
    assert git(top, "for-each-ref", "refs/steersman") == ""
    assert survey.files == (await site.look(1)).files


async def test_the_fingerprint_follows_the_files(site: Site, top: Path) -> None:
    first = (await site.look(1)).files
    assert (await site.look(2)).files == first
    put(top, {"x.log": "ignored"})
    assert (await site.look(3)).files == first
    put(top, {"a.txt": "two\n"})  # as long as before, and perhaps within the same clock tick
    second = (await site.look(4)).files
    assert second != first
    (top / "a.txt").chmod(0o755)
    third = (await site.look(5)).files
    put(top, {"a.txt": "one\n"})
    (top / "a.txt").chmod(0o644)
    assert len({first, second, third}) == 3
    assert (await site.look(6)).files == first


@pytest.mark.parametrize("state", ["unborn", "detached", "merging"])
async def test_whatever_is_checked_out(tmp_path: Path, state: str) -> None:
    top = repository(tmp_path / "work", None if state == "unborn" else FIRST)
    head = None
    if state == "unborn":
        put(top, FIRST)
        git(top, "add", "a.txt")
    else:
        head = git(top, "rev-parse", "HEAD").strip()
    if state == "detached":
        git(top, "checkout", "-q", "--detach")
    if state == "merging":
        git(top, "checkout", "-q", "-b", "other")
        put(top, {"a.txt": "other\n"})
        git(top, "commit", "-qam", "other")
        git(top, "checkout", "-q", "main")
        put(top, {"a.txt": "main\n"})
        git(top, "commit", "-qam", "main")
        head = git(top, "rev-parse", "HEAD").strip()
        subprocess.run(["git", "-C", str(top), "merge", "-q", "other"], capture_output=True, check=False)
    before = standing(top)
    site = Site(tmp_path, top)
    survey = await site.look()
    assert (survey.error, survey.head) == (None, head)
    assert seen(top, survey.commit or "")["a.txt"] == (top / "a.txt").read_bytes()
    assert (
        git(top, "rev-list", "--count", survey.commit or "").strip()
        == {"unborn": "1", "detached": "2", "merging": "3"}[state]
    )
    assert standing(top) == before


async def test_a_branch_in_packed_refs(site: Site, top: Path) -> None:
    git(top, "pack-refs", "--all")
    assert (await site.look()).head == git(top, "rev-parse", "HEAD").strip()


async def test_a_linked_work_tree(site: Site, top: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(top, "worktree", "add", "-q", "-b", "side", str(linked))
    put(linked, {"a.txt": "linked\n", "new": "n"})
    git(linked, "add", "new")
    before, main = standing(linked), standing(top)
    survey = await site.look(1, linked)
    assert survey.head == git(linked, "rev-parse", "HEAD").strip()
    files = seen(top, git(top, "rev-parse", f"refs/steersman/{site.loop}/1").strip())
    assert (files["a.txt"], files["new"]) == (b"linked\n", b"n")
    assert ".git" not in files
    assert (standing(linked), standing(top)) == (before, main)


async def test_a_workspace_in_a_directory_of_the_repository(site: Site, top: Path) -> None:
    put(top, {"a.txt": "outside the workspace\n", "dir/d": "in it\n"})
    survey = await site.look(1, top / "dir")
    files = seen(top, survey.commit or "")
    assert (files["a.txt"], files["dir/d"]) == (b"outside the workspace\n", b"in it\n")


async def test_ignored_and_yet_tracked(site: Site, top: Path) -> None:
    put(top, {"kept.log": "1", "other.log": "2", "build/kept": "3", "build/other": "4"})
    git(top, "add", "-f", "kept.log", "build/kept")
    git(top, "commit", "-qm", "ignored and tracked")
    put(top, {"kept.log": "changed"})
    files = seen(top, await site.keep(1))
    assert (files["kept.log"], files["build/kept"]) == (b"changed", b"3")
    assert not {"other.log", "build/other"} & files.keys()
    (top / "build" / "kept").unlink()
    assert "build/kept" not in seen(top, await site.keep(2))
    git(top, "rm", "-q", "--cached", "kept.log")
    assert "kept.log" not in seen(top, await site.keep(3))


async def test_ignored_from_now_on(site: Site, top: Path) -> None:
    put(top, {"secret": "s", "cache/x": "x"})
    assert {"secret", "cache/x"} <= seen(top, await site.keep(1)).keys()
    put(top, {".gitignore": "*.log\nsecret\ncache\n"})
    assert not {"secret", "cache/x"} & seen(top, await site.keep(2)).keys()
    put(top, {".gitignore": ""})
    assert {"secret", "cache/x"} <= seen(top, await site.keep(3)).keys()


@pytest.mark.parametrize("place", ["info/exclude", "~/.config/git/ignore", "core.excludesFile", "repository's own"])
async def test_the_persons_own_rules_of_what_is_ignored(site: Site, top: Path, place: str) -> None:
    put(top, {"mine.tmp": "x", "other": "y"})
    if place == "info/exclude":
        put(top, {".git/info/exclude": "*.tmp\n"})
    elif place == "~/.config/git/ignore":
        put(site.home, {".config/git/ignore": "*.tmp\n"})
    elif place == "core.excludesFile":
        put(site.home, {".gitconfig": "[core]\n\texcludesFile = ~/ignored names\n", "ignored names": "*.tmp\n"})
    else:
        put(site.home, {"rules": "*.tmp\n"})
        git(top, "config", "core.excludesFile", str(site.home / "rules"))
    files = seen(top, await site.keep())
    assert "other" in files
    assert "mine.tmp" not in files


async def test_bytes_are_kept_as_they_are(site: Site, top: Path) -> None:
    put(top, {".gitattributes": "*.txt text eol=lf ident\n*.c text=auto\nu working-tree-encoding=UTF-16\n"})
    put(top, {"crlf.txt": b"a\r\nb\r\n", "id.txt": "$Id$ and $Id: 1 $\n", "m.c": b"\r\n\r", "u": b"\xff\xfea\x00"})
    git(top, "config", "core.autocrlf", "true")
    files = seen(top, await site.keep())
    assert files["crlf.txt"] == b"a\r\nb\r\n"
    assert files["id.txt"] == b"$Id$ and $Id: 1 $\n"
    assert (files["m.c"], files["u"]) == (b"\r\n\r", b"\xff\xfea\x00")


async def test_names_of_any_kind(site: Site, top: Path) -> None:
    names = [
        b"new\nline",
        "ümlaut.txt".encode(),
        b"latin\xe9",
        b"tab\there",
        b'quo"te',
        b" space ",
        b"-rf",
        b":(top)x",
        b"*",
    ]
    for name in names:
        Path(os.fsdecode(os.fsencode(top) + b"/" + name)).write_bytes(b"x")
    assert {os.fsdecode(name) for name in names} <= seen(top, await site.keep(1)).keys()
    for name in names:
        os.unlink(os.fsencode(top) + b"/" + name)  # noqa: PTH108 - bytes
    assert seen(top, await site.keep(2)).keys() == FIRST.keys()


async def test_files_links_and_directories_take_each_others_place(site: Site, top: Path) -> None:
    put(top, {"x/y": "1", "z": "2", "w/v": "3"})
    await site.keep(1)
    (top / "x" / "y").unlink()
    (top / "x").rmdir()
    put(top, {"x": "a file now"})
    (top / "z").unlink()
    put(top, {"z/inner": "a directory now"})
    (top / "w").rename(top / "real")
    (top / "w").symlink_to("real")
    files = seen(top, await site.keep(2))
    assert {name: files.get(name) for name in ("x", "x/y", "z", "z/inner", "w", "w/v", "real/v")} == {
        "x": b"a file now",
        "x/y": None,
        "z": None,
        "z/inner": b"a directory now",
        "w": b"-> real",
        "w/v": None,
        "real/v": b"3",
    }


async def test_a_tracked_directory_that_leads_elsewhere_now(site: Site, top: Path, tmp_path: Path) -> None:
    put(tmp_path / "outside", {"b.txt": "secret", "c.txt": "secret"})
    await site.keep(1)
    for name in ("b.txt", "c.txt"):
        (top / "dir" / name).unlink()
    (top / "dir").rmdir()
    (top / "dir").symlink_to(tmp_path / "outside")
    files = seen(top, await site.keep(2))
    assert files["dir"] == b"-> " + os.fsencode(tmp_path / "outside")
    assert not {"dir/b.txt", "dir/c.txt"} & files.keys()


async def test_pipes_and_sockets_are_left_out(site: Site, top: Path) -> None:
    await site.keep(1)
    os.mkfifo(top / "pipe")
    (top / "a.txt").unlink()
    os.mkfifo(top / "a.txt")
    assert not {"pipe", "a.txt"} & seen(top, await site.keep(2)).keys()


async def test_a_large_file(site: Site, top: Path) -> None:
    data = os.urandom(1024 * 1024) * 10
    (top / "large.bin").write_bytes(data)
    assert seen(top, await site.keep())["large.bin"] == data


async def test_another_loop_has_checkpoints_of_its_own(site: Site, top: Path, tmp_path: Path) -> None:
    first = await site.keep(1)
    site.loop = "team/x: ~1..lock.lock"
    put(top, {"more": "x"})
    second = await site.keep(1)
    refs = git(top, "for-each-ref", "--format=%(objectname) %(refname)", "refs/steersman").split("\n")
    assert sorted(refs)[1:] == sorted([f"{first} {ref('loop-1', 1)}", f"{second} {ref(site.loop, 1)}"])


async def test_two_looks_at_once_take_turns(site: Site, top: Path) -> None:
    put(top, {f"f{n}": "x" for n in range(200)})
    surveys = await asyncio.gather(*(site.look(number) for number in range(4)))
    assert [survey.error for survey in surveys] == [None] * 4
    assert len({survey.files for survey in surveys}) == 1


class TestNested:
    async def test_a_submodule_is_kept_by_its_commit(self, site: Site, top: Path, tmp_path: Path) -> None:
        other = repository(tmp_path / "other", {"s.txt": "s"})
        git(top, "submodule", "--quiet", "add", str(other), "sub")
        git(top, "commit", "-qm", "submodule")
        before = standing(top)
        files = seen(top, await site.keep(1))
        assert files["sub"] == f"repository {git(other, 'rev-parse', 'HEAD').strip()}"
        assert ".gitmodules" in files
        put(top, {"sub/new": "n"})
        git(top / "sub", "add", "-A")
        git(top / "sub", "commit", "-qm", "in it")
        assert seen(top, await site.keep(2))["sub"] == f"repository {git(top / 'sub', 'rev-parse', 'HEAD').strip()}"
        git(top / "sub", "reset", "-q", "--hard", "HEAD~1")
        assert standing(top) == before

    async def test_work_in_it_that_is_not_committed_counts_as_progress(self, site: Site, top: Path) -> None:
        repository(top / "inner", {"s.txt": "s"})
        first = (await site.look(1)).files
        assert (await site.look(2)).files == first
        put(top, {"inner/s.txt": "changed"})
        assert (await site.look(3)).files != first

    async def test_one_without_a_commit_is_no_trouble(self, site: Site, top: Path) -> None:
        repository(top / "empty")
        put(top, {"empty/file": "x", "beside": "y"})
        assert seen(top, await site.keep(1)).keys() == {*FIRST, "beside"}
        git(top / "empty", "add", "-A")
        git(top / "empty", "commit", "-qm", "now")
        assert "empty" in seen(top, await site.keep(2))

    async def test_one_that_becomes_a_plain_directory(self, site: Site, top: Path) -> None:
        inner = repository(top / "inner", {"s.txt": "s"})
        assert "inner" in seen(top, await site.keep(1))
        subprocess.run(["rm", "-rf", str(inner / ".git")], check=True)
        files = seen(top, await site.keep(2))
        assert (files.get("inner/s.txt"), files.get("inner")) == (b"s", None)

    async def test_what_its_configuration_says_is_not_run(self, site: Site, top: Path, tmp_path: Path) -> None:
        inner = repository(top / "inner", {"s.txt": "s"})
        proof = tmp_path / "proof"
        git(inner, "config", "core.fsmonitor", f"touch {proof} #")
        await site.keep(1)
        put(top, {"inner/s.txt": "changed", "inner/new": "n"})
        await site.keep(2)
        assert not proof.exists()
        git(inner, "status")  # what anybody else's git does here
        assert proof.exists()


class TestHostile:
    @pytest.fixture
    def proof(self, tmp_path: Path) -> Path:
        """A file that only a command of the repository's would make."""
        return tmp_path / "proof"

    async def test_no_filter_hook_or_monitor_runs(self, site: Site, top: Path, proof: Path) -> None:
        put(top, {".gitattributes": "* filter=evil diff=evil merge=evil\n", ".git/info/attributes": "* filter=evil\n"})
        evil = f"touch {proof}; cat"
        for key in ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv"):
            git(top, "config", key, evil)
        for key in ("diff.evil.command", "core.fsmonitor", "diff.external", "core.sshCommand", "gpg.program"):
            git(top, "config", key, evil)
        git(top, "config", "filter.evil.required", "true")
        git(top, "config", "commit.gpgSign", "true")
        git(top, "config", "hook.evil.command", evil)
        git(top, "config", "hook.evil.event", "reference-transaction")
        hooks = [path.name.removesuffix(".sample") for path in (top / ".git" / "hooks").iterdir()]
        for name in [*hooks, "reference-transaction", "post-index-change", "post-checkout", "post-commit"]:
            hook = top / ".git" / "hooks" / name
            hook.write_text(f"#!/bin/sh\ntouch {proof}\nexit 1\n")
            hook.chmod(0o755)
        put(top, {"a.txt": "changed\n", "new": "n"})
        assert seen(top, await site.keep(1))["a.txt"] == b"changed\n"
        put(top, {"a.txt": "again\n"})
        await site.keep(2)
        place = site.store.create(site.loop)
        await site.checkpoints.compare(place, top, ref(site.loop, 1), ref(site.loop, 2), 1000)
        await site.restore(1)
        assert (top / "a.txt").read_text() == "changed\n"
        assert await site.checkpoints.drop(place, top, site.loop, None) == [1, 2]
        assert not proof.exists()
        subprocess.run(["git", "-C", str(top), "add", "new"], capture_output=True, check=False)
        assert proof.exists()

    async def test_a_ref_that_names_a_branch_moves_no_branch(self, site: Site, top: Path) -> None:
        before = git(top, "rev-parse", "main")
        git(top, "symbolic-ref", f"refs/steersman/{site.loop}/1", "refs/heads/main")
        commit = await site.keep(1)
        assert git(top, "rev-parse", "main") == before
        assert git(top, "rev-parse", f"refs/steersman/{site.loop}/1").strip() == commit
        git(top, "symbolic-ref", f"refs/steersman/{site.loop}/2", "refs/heads/main")
        assert await site.checkpoints.drop(site.store.create(site.loop), top, site.loop, {2}) == [2]
        assert git(top, "rev-parse", "main") == before

    async def test_refs_that_lead_elsewhere_are_refused(self, site: Site, top: Path) -> None:
        (top / ".git" / "refs" / "steersman").symlink_to("heads")
        survey = await site.look(1)
        assert "refs/steersman in the repository is a link" in str(survey.error)
        assert (survey.commit, git(top, "branch", "--format=%(refname)").split()) == (None, ["refs/heads/main"])

    async def test_replaced_objects_are_taken_for_what_they_are(self, site: Site, top: Path) -> None:
        commit = await site.keep(1)
        put(top, {"evil": "replaced"})
        evil = git(top, "hash-object", "-w", "evil").strip()
        (top / "evil").unlink()
        git(top, "replace", git(top, "rev-parse", f"{commit}:a.txt").strip(), evil)
        put(top, {"a.txt": "changed"})
        await site.restore(1)
        assert (top / "a.txt").read_bytes() == b"one\n"

    async def test_a_git_file_that_says_nonsense(self, tmp_path: Path) -> None:
        work = tmp_path / "work"
        put(work, {".git": "gitdir: /nowhere\n", "a": "x"})
        survey = await Site(tmp_path, work).look()
        assert "names /nowhere, which is no git directory" in str(survey.error)
        assert (survey.commit, len(survey.files)) == (None, 40)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
    async def test_a_repository_of_another_owner(self, site: Site, top: Path) -> None:
        for directory, names, files in os.walk(top):
            for name in [*names, *files, "."]:
                os.lchown(Path(directory, name), 65534, 65534)
        assert (await site.look()).error is None


class TestTrouble:
    async def test_locks_of_gits_that_were_killed(self, site: Site, top: Path) -> None:
        await site.keep(1)
        put(site.state, {f"loops/{site.loop}/git/index.lock": "", f"loops/{site.loop}/git/HEAD.lock": ""})
        put(top, {f".git/refs/steersman/{site.loop}/2.lock": "", "a.txt": "changed"})
        assert seen(top, await site.keep(2))["a.txt"] == b"changed"

    async def test_a_lock_of_the_persons_own_git_is_no_hindrance(self, site: Site, top: Path) -> None:
        put(top, {".git/index.lock": "", ".git/HEAD.lock": "", ".git/refs/heads/main.lock": "", "new": "x"})
        await site.keep(1)
        assert (top / ".git" / "index.lock").exists()

    async def test_objects_that_cannot_be_written(self, site: Site, top: Path) -> None:
        await site.keep(1)
        put(top, {f"new{number}": f"{number}" for number in range(400)})
        for number in range(256):  # root can write where permissions forbid it, but not below a file
            place = top / ".git" / "objects" / f"{number:02x}"
            if not place.exists():
                place.write_text("")
        survey = await site.look(2)
        assert str(survey.error).startswith("the files could not be kept: git update-index: ")
        assert (survey.commit, survey.head) == (None, git(top, "rev-parse", "HEAD").strip())
        assert len(survey.files) == 40
        assert "\n" not in str(survey.error)

    @pytest.mark.skipif(os.getuid() == 0, reason="root can read everything")
    @pytest.mark.parametrize("what", ["secret", "closed"])
    async def test_what_cannot_be_read_is_named(self, site: Site, top: Path, what: str) -> None:
        put(top, {"secret": "s", "closed/file": "x"})
        (top / what).chmod(0)
        try:
            assert what in str((await site.look()).error)
        finally:
            (top / what).chmod(0o755)

    async def test_no_git_on_the_host(self, tmp_path: Path, top: Path) -> None:
        site = Site(tmp_path, top, {"PATH": str(tmp_path / "none")})
        assert (await site.look()).error == "the files could not be kept: git is not on this host"

    @pytest.mark.parametrize("damage", ["index", "objects"])
    async def test_a_shadow_that_was_damaged_heals(self, site: Site, top: Path, damage: str) -> None:
        put(top, {"new/file": "only in checkpoints"})
        await site.keep(1)
        if damage == "index":
            put(site.state, {f"loops/{site.loop}/git/index": b"DIRC garbage"})
        else:  # the person drops the checkpoint and prunes
            git(top, "update-ref", "-d", ref(site.loop, 1))
            git(top, "prune", "--expire=now")
        put(top, {"a.txt": "changed"})
        files = seen(top, await site.keep(2))
        assert (files["new/file"], files["a.txt"]) == (b"only in checkpoints", b"changed")

    async def test_a_repository_that_was_made_anew(self, site: Site, top: Path) -> None:
        await site.keep(1)
        subprocess.run(["rm", "-rf", str(top / ".git")], check=True)
        repository(top, FIRST)
        assert seen(top, await site.keep(1)).keys() == FIRST.keys()

    async def test_a_split_index(self, site: Site, top: Path) -> None:
        put(top, {"kept.log": "1"})
        git(top, "add", "-f", "kept.log")
        git(top, "update-index", "--split-index")
        before = standing(top)
        assert seen(top, await site.keep())["kept.log"] == b"1"
        assert standing(top) == before

    async def test_a_sparse_checkout(self, site: Site, top: Path) -> None:
        git(top, "sparse-checkout", "set", "--cone", "--sparse-index", "none")
        assert not (top / "dir").exists()
        before = standing(top)
        assert seen(top, await site.keep()).keys() == {"a.txt", ".gitignore"}
        assert standing(top) == before

    async def test_objects_of_another_repository(self, tmp_path: Path, top: Path) -> None:
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "-q", "--shared", str(top), str(clone))
        survey = await Site(tmp_path, clone).look()
        assert (survey.error, seen(clone, survey.commit or "")["a.txt"]) == (None, b"one\n")

    async def test_other_object_names(self, tmp_path: Path) -> None:
        top = repository(tmp_path / "work", FIRST, "--object-format=sha256")
        survey = await Site(tmp_path, top).look()
        assert (survey.error, len(survey.commit or "")) == (None, 64)
        assert survey.head == git(top, "rev-parse", "HEAD").strip()

    async def test_more_than_can_be_read_is_not_begun(self, site: Site, top: Path) -> None:
        with (top / "huge").open("wb") as huge:
            huge.truncate(17 * 1024**3)  # nothing but a hole
        survey = await site.look(1)
        assert "17 GiB would have to be read; name what need not be kept in .gitignore" in str(survey.error)
        put(top, {".gitignore": "huge\n"})
        await site.keep(2)

    @pytest.mark.linux
    async def test_a_git_that_hangs_on_after_its_worker_died(
        self, site: Site, top: Path, tmp_path: Path, hanging: Path
    ) -> None:
        script = (
            "import asyncio; from pathlib import Path; from tests.loops.loop_site import Site\n"
            f"asyncio.run(Site(Path({str(tmp_path)!r}), Path({str(top)!r})).look(1))"
        )
        environment = {**os.environ, "PATH": site.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=environment)
        pid = await _git_at_work(top)
        worker.kill()
        await worker.wait()
        assert lives(pid)
        hanging.unlink()
        async with asyncio.timeout(30):
            await site.keep(2)
        assert not lives(pid)

    async def test_a_cancelled_look_leaves_no_git_and_no_lock(self, site: Site, top: Path, hanging: Path) -> None:
        look = asyncio.create_task(site.look(1))
        pid = await _git_at_work(top)
        look.cancel()
        with pytest.raises(asyncio.CancelledError):
            await look
        assert not Path(f"/proc/{pid}").exists()
        hanging.unlink()
        await site.keep(2)

    @pytest.fixture
    def hanging(self, site: Site, tmp_path: Path) -> Path:
        """As long as this pipe is there, the site's git waits for somebody to write into it."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        real = shutil.which("git")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "git").write_text(
            f'#!/bin/sh\ncase "$*" in *ls-files*) [ ! -e {pipe} ] || read -r line < {pipe};; esac\nexec {real} "$@"\n'
        )
        (tmp_path / "bin" / "git").chmod(0o755)
        site.environ["PATH"] = f"{tmp_path / 'bin'}:{site.environ['PATH']}"
        return pipe


async def _git_at_work(top: Path) -> int:
    def found() -> int | None:
        for each in Path("/proc").iterdir():
            try:
                if (
                    each.name.isdigit()
                    and (each / "cwd").readlink() == top
                    and b"ls-files" in (each / "cmdline").read_bytes()
                ):
                    return int(each.name)
            except OSError:
                continue
        return None

    return await until(found)


async def test_without_a_repository_files_have_a_fingerprint(tmp_path: Path) -> None:
    work = tmp_path / "work"
    put(work, {"a": "one", "d/b": "two", ".git/config": "no repository", ".hg/store": "x"})
    site = Site(tmp_path, work)
    first = await site.look()
    assert (first.commit, first.head, first.error, len(first.files)) == (None, None, None, 40)
    put(work, {".git/config": "changed", ".hg/store": "y"})
    assert (await site.look()).files == first.files
    changes = {first.files}
    for change in ({"a": "eno"}, {"d/c": ""}, {"large": b"x" * 300_000}):
        put(work, change)
        changes.add((await site.look()).files)
    (work / "a").chmod(0o755)
    changes.add((await site.look()).files)
    (work / "a").unlink()
    (work / "a").symlink_to("/etc/passwd")
    changes.add((await site.look()).files)
    os.mkfifo(work / "pipe")
    changes.add((await site.look()).files)
    assert len(changes) == 7


async def test_a_repository_outside_the_roots_is_not_looked_into(tmp_path: Path, top: Path) -> None:
    site = Site(tmp_path, top / "dir")
    site.checkpoints = WorkspaceCheckpoints(site.environ, [top / "dir"])
    survey = await site.look()
    assert (survey.commit, survey.head, survey.error) == (None, None, None)
    assert git(top, "for-each-ref", "refs/steersman") == ""
