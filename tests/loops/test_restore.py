"""Taking a workspace's files back, comparing checkpoints, dropping them: on real repositories."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from activities.workspaces.git.checkpoint_commits import NoCheckpoint, ref
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadows import NoRepository
from steersman.contracts.workspace import Diff
from tests.loops.loop_site import Site, git, on_disk, put, repository, seen, standing

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


def disturb(top: Path) -> None:
    """Every kind of change at once."""
    put(top, {"a.txt": "changed\n", "new/deep/file": "n", "dir/x": "x"})
    (top / "dir" / "b.txt").unlink()
    (top / "dir" / "c.txt").rename(top / "renamed")
    (top / "script").write_text("#!/bin/sh\n")
    (top / "script").chmod(0o755)
    (top / "link").symlink_to("a.txt")


class TestRestore:
    async def test_files_become_exactly_those_of_the_checkpoint(self, site: Site, top: Path) -> None:
        put(top, {"untracked": "u", "x.log": "ignored", "build/out": "ignored"})
        (top / "a.txt").chmod(0o755)
        (top / "to").symlink_to("dir")
        put(top, {"crlf": b"a\r\nb\n", ".gitattributes": "* text eol=lf\n"})
        wanted, ignored = on_disk(top), {"x.log", "build/out"}
        first = await site.look(1)
        git(top, "add", "untracked")
        disturb(top)
        (top / "a.txt").chmod(0o644)
        put(top, {"crlf": "else", "x.log": "newer", "build/more": "m"})
        (top / "to").unlink()
        put(top, {"to/file": "a directory now"})
        before = standing(top)
        changed = await site.restore(1)
        after = on_disk(top)
        assert {name: data for name, data in after.items() if name not in {*ignored, "build/more"}} == {
            name: data for name, data in wanted.items() if name not in ignored
        }
        assert (after["x.log"], after["build/out"], after["build/more"]) == (b"newer", b"ignored", b"m")
        assert not (top / "new").exists()
        assert changed == 11
        again = standing(top)
        assert {name: again[name] for name in again if name != "status"} == {
            name: before[name] for name in before if name != "status"
        }
        assert (await site.look(2)).files == first.files

    async def test_it_is_readable_by_nobody_who_could_not_read_it_before(self, site: Site, top: Path) -> None:
        put(top, {".env.local": "s", "key": "k", "group": "g", "own/key": "o", "gone/key": "d", "open": "o"})
        for name, mode in {".env.local": 0o600, "key": 0o600, "group": 0o640, "own": 0o700, "gone/key": 0o600}.items():
            (top / name).chmod(mode)
        await site.keep(1)
        wanted = on_disk(top)
        for name in (".env.local", "group", "open"):
            (top / name).unlink()
        for name in ("own", "gone"):
            shutil.rmtree(top / name)
        put(top, {"key": "changed", "gone": "a file now", "x.log": "ignored"})
        (top / ".gitignore").unlink()
        (top / "a.txt").write_text("changed")
        await site.restore(1)
        assert {**on_disk(top), "x.log": b""} == {**wanted, "x.log": b""}
        found = {name: oct((top / name).stat().st_mode & 0o777) for name in wanted}
        assert found.pop("group") == oct(0o640)
        closed = {".env.local", "key", "own/key", "gone/key"}
        assert {name: mode for name, mode in found.items() if mode != oct(0o644)} == dict.fromkeys(closed, oct(0o600))
        assert await site.restore(1) == 0

    async def test_twice_is_fine(self, site: Site, top: Path) -> None:
        await site.keep(1)
        disturb(top)
        assert await site.restore(1) > 0
        assert await site.restore(1) == 0
        assert on_disk(top).keys() == FIRST.keys()

    async def test_back_and_forth(self, site: Site, top: Path) -> None:
        await site.keep(1)
        first = on_disk(top)
        disturb(top)
        second = on_disk(top)
        await site.keep(2)
        for number, files in ((1, first), (2, second), (1, first), (2, second)):
            await site.restore(number)
            assert on_disk(top) == files

    async def test_head_that_moved_on_stays(self, site: Site, top: Path) -> None:
        await site.keep(1)
        put(top, {"a.txt": "committed\n", "more": "m"})
        git(top, "add", "-A")
        git(top, "commit", "-qm", "the agent's")
        head = git(top, "rev-parse", "HEAD")
        await site.restore(1)
        assert git(top, "rev-parse", "HEAD") == head
        assert on_disk(top).keys() == FIRST.keys()
        assert git(top, "status", "--porcelain").split() == ["M", "a.txt", "D", "more"]

    async def test_of_another_loop(self, site: Site, top: Path) -> None:
        await site.keep(3)
        site.loop = "fork"
        disturb(top)
        await site.restore(3, loop="loop-1")
        assert on_disk(top).keys() == FIRST.keys()

    async def test_from_a_directory_that_is_gone(self, site: Site, top: Path) -> None:
        site.workspace = top / "dir"
        await site.keep(1)
        shutil.rmtree(top / "dir")
        await site.restore(1)
        assert (top / "dir" / "b.txt").read_text() == "two\n"

    async def test_a_workspace_that_was_empty_stays(self, site: Site, top: Path) -> None:
        site.workspace = top / "empty"
        site.workspace.mkdir()
        await site.keep(1)
        put(top, {"empty/file": "x"})
        await site.restore(1)
        assert list(site.workspace.iterdir()) == []

    async def test_in_a_linked_work_tree(self, site: Site, top: Path, tmp_path: Path) -> None:
        linked = site.workspace = tmp_path / "linked"
        git(top, "worktree", "add", "-q", "-b", "side", str(linked))
        await site.keep(1)
        disturb(linked)
        await site.restore(1)
        assert on_disk(linked).keys() == FIRST.keys()
        assert git(linked, "status", "--porcelain") == ""

    async def test_what_is_not_there(self, site: Site, top: Path, tmp_path: Path) -> None:
        await site.keep(1)
        with pytest.raises(NoCheckpoint, match="has no files of checkpoint 2 of loop-1"):
            await site.restore(2)
        site.workspace = tmp_path / "elsewhere"
        site.workspace.mkdir()
        with pytest.raises(NoRepository, match="is in no git repository"):
            await site.restore(1)

    async def test_a_file_that_will_not_go_is_told(self, site: Site, top: Path) -> None:
        await site.keep(1)
        put(top, {"held/fast": "x"})
        if os.getuid():
            (top / "held").chmod(0o555)
        elif subprocess.run(["chattr", "+i", str(top / "held" / "fast")], check=False, capture_output=True).returncode:
            pytest.skip("nothing holds a file fast for root here")
        try:
            with pytest.raises(GitFailed, match="1 files could not be taken back, 'held/fast' among them"):
                await site.restore(1)
        finally:
            subprocess.run(["chattr", "-i", str(top / "held" / "fast")], check=False, capture_output=True)
            (top / "held").chmod(0o755)
        assert await site.restore(1) == 1


class TestIgnored:
    async def test_what_was_ignored_then_stays_though_the_rule_is_gone(self, site: Site, top: Path) -> None:
        put(top, {"sub/.gitignore": "cache\n", "sub/cache/x": "1", "keep.log": "2", ":(top)*.log": "3"})
        await site.keep(1)
        (top / ".gitignore").unlink()
        (top / "sub" / ".gitignore").unlink()
        put(top, {"new": "n"})
        await site.restore(1)
        after = on_disk(top)
        assert (after["sub/cache/x"], after["keep.log"]) == (b"1", b"2")
        assert after.keys() == {*FIRST, "sub/.gitignore", "sub/cache/x", "keep.log", ":(top)*.log"}

    @pytest.mark.parametrize("mode", [0o644, 0o600])
    async def test_what_is_ignored_now_stays(self, site: Site, top: Path, mode: int) -> None:
        (top / ".gitignore").chmod(mode)
        await site.keep(1)
        put(top, {".gitignore": "*.log\nbuild/\n*.tmp\n", "x.tmp": "x"})
        await site.restore(1)
        assert (top / "x.tmp").exists()
        assert (top / ".gitignore").read_text() == FIRST[".gitignore"]

    async def test_tracked_and_ignored_files_come_back(self, site: Site, top: Path) -> None:
        put(top, {"kept.log": "1"})
        git(top, "add", "-f", "kept.log")
        await site.keep(1)
        put(top, {"kept.log": "2"})
        await site.restore(1)
        assert (top / "kept.log").read_text() == "1"


class TestHostile:
    async def test_nothing_is_written_through_a_link(self, site: Site, top: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        put(outside, {"b.txt": "theirs", "other": "theirs"})
        await site.keep(1)
        shutil.rmtree(top / "dir")
        (top / "dir").symlink_to(outside)
        (top / "a.txt").unlink()
        (top / "a.txt").symlink_to(outside / "other")
        await site.restore(1)
        assert on_disk(outside) == {"b.txt": b"theirs", "other": b"theirs"}
        assert not (top / "dir").is_symlink()
        assert on_disk(top) == {name: str(data).encode() for name, data in FIRST.items()}

    async def test_nothing_is_removed_through_a_link(self, site: Site, top: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        put(outside, {"x": "theirs", "deep/y": "theirs"})
        await site.keep(1)
        put(top, {"new/x": "mine", "new/deep/y": "mine"})
        await site.keep(2)
        shutil.rmtree(top / "new")
        (top / "new").symlink_to(outside)
        await site.restore(1)
        assert on_disk(outside) == {"x": b"theirs", "deep/y": b"theirs"}
        assert not os.path.lexists(top / "new")

    @pytest.mark.parametrize("name", [".git/hooks/evil", "../evil", "dir/../../evil", ".GIT/config"])
    async def test_a_tree_that_reaches_for_other_places(self, site: Site, top: Path, tmp_path: Path, name: str) -> None:
        await site.keep(1)
        put(tmp_path, {"evil": "evil"})
        blob = git(top, "hash-object", "-w", str(tmp_path / "evil")).strip()
        (tmp_path / "evil").unlink()
        tree = blob
        for depth, part in enumerate(reversed(name.split("/"))):
            entry = f"{'40000' if depth else '100644'} {part}".encode() + b"\0" + bytes.fromhex(tree)
            (tmp_path / "tree").write_bytes(entry)
            tree = git(top, "hash-object", "-w", "-t", "tree", "--literally", str(tmp_path / "tree")).strip()
        git(top, "update-ref", ref(site.loop, 2), git(top, "commit-tree", "-m", "evil", tree).strip())
        (tmp_path / "tree").unlink()
        with pytest.raises(GitFailed, match="git read-tree: "):
            await site.restore(2)
        assert not (top / ".git" / "hooks" / "evil").exists()
        assert not (tmp_path / "evil").exists()
        assert (top / "a.txt").read_text() == "one\n"

    async def test_a_checkpoint_that_was_overwritten(self, site: Site, top: Path) -> None:
        commit = await site.keep(1)
        assert await site.restore(1, commit=commit) == 0
        put(top, {"a.txt": "evil"})
        git(top, "update-ref", ref(site.loop, 1), await site.keep(2))
        put(top, {"a.txt": "changed"})
        with pytest.raises(NoCheckpoint, match="names another commit than the one that was kept"):
            await site.restore(1, commit=commit)
        assert (top / "a.txt").read_text() == "changed"

    async def test_a_ref_that_is_no_checkpoint(self, site: Site, top: Path) -> None:
        put(top, {f".git/{ref(site.loop, 1)}": "garbage\n"})
        with pytest.raises(NoCheckpoint):
            await site.restore(1)


class TestNested:
    async def test_a_repository_within_stays_as_it_is(self, site: Site, top: Path) -> None:
        inner = repository(top / "inner", {"s.txt": "s"})
        await site.keep(1)
        put(inner, {"s.txt": "work in progress", "new": "n"})
        put(top, {"a.txt": "changed"})
        late = repository(top / "late", {"l.txt": "l"})
        await site.restore(1)
        assert (top / "a.txt").read_text() == "one\n"
        assert (inner / "s.txt").read_text() == "work in progress"
        assert git(late, "log", "--format=%s").strip() == "first"
        assert (await site.look(2)).error is None

    async def test_files_beside_a_repository_within_come_back(self, site: Site, top: Path) -> None:
        repository(top / "dir" / "inner", {"f": "inner\n"})
        put(top, {"dir/z.txt": "then\n"})
        await site.keep()
        put(top, {"dir/b.txt": "changed\n"})
        (top / "dir" / "z.txt").unlink()
        assert await site.restore(1) == 2
        assert [(top / "dir" / name).read_text() for name in ("b.txt", "z.txt", "inner/f")] == [
            "two\n",
            "then\n",
            "inner\n",
        ]

    async def test_its_history_is_not_thrown_away_for_a_file(self, site: Site, top: Path) -> None:
        put(top, {"inner": "a file"})
        await site.keep(1)
        (top / "inner").unlink()
        repository(top / "inner", {"s.txt": "s"})
        with pytest.raises(GitFailed, match="inner is a file in the checkpoint"):
            await site.restore(1)
        assert git(top / "inner", "log", "--format=%s").strip() == "first"


class TestCompare:
    async def compare(self, site: Site, older: int, newer: int | None, limit: int = 100_000) -> Diff:
        name = None if newer is None else ref(site.loop, newer)
        place = site.store.create(site.loop)
        return await site.checkpoints.compare(place, site.workspace, ref(site.loop, older), name, limit)

    async def test_two_checkpoints(self, site: Site, top: Path) -> None:
        await site.keep(1)
        put(top, {"a.txt": "changed\n", "ümlaut": "n\n"})
        (top / "dir" / "c.txt").rename(top / "renamed")
        await site.keep(2)
        diff = await self.compare(site, 1, 2)
        assert "-one\n+changed\n" in diff.patch
        assert "rename from dir/c.txt" in diff.patch
        assert "+++ b/ümlaut" in diff.patch
        assert "3 files changed, 2 insertions(+), 1 deletion(-)" in diff.stat
        assert not diff.truncated
        assert await self.compare(site, 1, 1) == Diff()

    async def test_with_the_files_of_now(self, site: Site, top: Path) -> None:
        await site.keep(1)
        put(top, {"untracked": "n\n"})
        assert "+++ b/untracked" in (await self.compare(site, 1, None)).patch
        assert git(top, "for-each-ref", "--format=%(refname)", "refs/steersman").split() == [ref(site.loop, 1)]

    async def test_however_much_changed_it_fits(self, site: Site, top: Path) -> None:
        await site.keep(1)
        put(top, {f"f{number}": "\x01\x02 text\n" * 500 for number in range(300)})
        put(top, {"binary": os.urandom(500_000)})
        await site.keep(2)
        diff = await self.compare(site, 1, 2, 20_000)
        assert diff.truncated
        assert 5_000 < len(json.dumps(diff.patch, ensure_ascii=False).encode()) <= 20_000
        assert "301 files changed" in diff.stat
        assert len((await self.compare(site, 1, 2, 10**9)).model_dump_json()) < 1_200_000
        assert (await self.compare(site, 1, 2, 0)).patch == ""


class TestDrop:
    async def drop(self, site: Site, *numbers: int) -> list[int]:
        place = site.store.create(site.loop)
        return await site.checkpoints.drop(place, site.workspace, site.loop, set(numbers) or None)

    async def test_those_that_are_named(self, site: Site, top: Path) -> None:
        for number in range(12):
            put(top, {"a.txt": f"{number}"})
            await site.keep(number)
        git(top, "pack-refs", "--all")
        await site.keep(12)
        before = standing(top)
        assert await self.drop(site, 1, 10, 12, 99) == [1, 10, 12]
        left = git(top, "for-each-ref", "--format=%(refname:lstrip=3)", "refs/steersman").split()
        assert sorted(map(int, left)) == [0, *range(2, 10), 11]
        assert await self.drop(site, 1) == []
        assert await self.drop(site) == [0, *range(2, 10), 11]
        assert git(top, "for-each-ref", "refs/steersman") == ""
        assert standing(top) == before

    async def test_other_loops_keep_theirs(self, site: Site, top: Path) -> None:
        await site.keep(1)
        site.loop = "loop-10"
        commit = await site.keep(1)
        site.loop = "loop-1"
        assert await self.drop(site) == [1]
        assert seen(top, commit).keys() == FIRST.keys()
        assert git(top, "for-each-ref", "--format=%(refname)", "refs/steersman").split() == [ref("loop-10", 1)]
