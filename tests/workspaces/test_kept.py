"""What a repository keeps is listed, whatever somebody has written there, and never more than an answer can have."""

import os
import subprocess
from pathlib import Path

import pytest

from activities import kept_checkpoints
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.checkpoint_commits import quoted, ref
from activities.workspaces.git.kept_commits import KeptCommit
from steersman.contracts.workspace import WorkspaceCheckpoint

RUN = "refs/steersman/runs%2F3a/" + quoted("fix-1/01a2-3b:00")
Listed = list[tuple[WorkspaceCheckpoint, KeptCommit]]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "shadow").mkdir()
    path = tmp_path / "top"
    path.mkdir()
    sh(path, "git init -q; git config user.name Person; git config user.email person@example.invalid")
    return path


def sh(path: Path, script: str, stdin: str = "") -> str:
    return subprocess.run(
        ["sh", "-ec", script], cwd=path, input=stdin, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(path: Path, message: str, time: int, **files: str) -> str:
    for name, text in files.items():
        (path / name).write_text(text)
    when = f"GIT_AUTHOR_DATE='@{time} +0000' GIT_COMMITTER_DATE='@{time} +0000'"
    sh(path, f"git add -A; {when} git commit -q --allow-empty -F -", message)
    return sh(path, "git rev-parse HEAD")


def checkpoints(top: Path) -> WorkspaceCheckpoints:
    return WorkspaceCheckpoints({**os.environ, "HOME": str(top.parent)}, [top.parent])


async def listed(top: Path) -> Listed:
    where, kept = await checkpoints(top).kept(top.parent / "shadow", top)
    assert where == top
    return kept_checkpoints.listed(kept)


async def test_it_is_told_whose_and_what(top: Path) -> None:
    before = commit(top, "fix-1: before", 1000, f="1\n2\n")
    after = commit(top, "fix-1: after", 1003, f="1\nTWO\n", g="new\n")
    sh(
        top,
        f"git update-ref {RUN}-before-{'a' * 16} {before}; git update-ref {RUN}-after-{'b' * 16} {after};"
        f"git update-ref {RUN}-undone-{10**18} {after}; git update-ref refs/steersman/conflicts/fix-1 {before};"
        f"git update-ref {ref('tidy/up', 1)} {before}; git update-ref {ref('tidy/up', 2)} {after};"
        f"git update-ref {RUN}-base {before}; git update-ref refs/steersman/none {before}; git pack-refs --all",
    )
    found = await listed(top)
    told = [
        (each.run, each.loop, each.kind, each.number, each.time and int(each.time.timestamp())) for each, _ in found
    ]
    assert told[:3] == [
        ("fix-1", None, "rescue", None, 1003),
        ("fix-1", None, "end", None, 1003),
        (None, "tidy/up", "loop", 2, 1003),
    ]
    assert sorted(each[2] for each in told[3:]) == ["baseline", "conflict", "loop"]

    pairs = kept_checkpoints.pairs(found)
    counts = await checkpoints(top).count_all(top.parent / "shadow", top, pairs.values())
    by_ref = {name: counts[pair] for name, pair in pairs.items()}
    assert by_ref == {f"{RUN}-after-{'b' * 16}": (2, 2, 1), ref("tidy/up", 2): (2, 2, 1)}


async def test_a_long_id_is_told_by_the_commit(top: Path) -> None:
    run, loop = "r" * 180, "l" * 180
    made = commit(top, f"{run}: after", 1000)
    of_loop = commit(top, f"{loop}: checkpoint 7\n\niteration 7", 1001)
    name = quoted(f"{run}/01a2-3b:00")
    sh(
        top,
        f"git update-ref refs/steersman/runs%2F3a/{name}-after-{'b' * 16} {made};"
        f"git update-ref {ref(loop, 7)} {of_loop}",
    )
    assert [(each.run, each.loop) for each, _ in await listed(top)] == [(None, loop), (run, None)]


async def test_what_somebody_has_written_there_is_no_obstacle(top: Path) -> None:
    good = commit(top, "fix-1: before", 1000, f="1\n")
    blob = sh(top, "git hash-object -w --stdin", "no commit\n")
    far = sh(
        top, "git hash-object -w -t commit --stdin --literally", f"tree {blob}\ncommitter x <> {'9' * 11} +0000\n\nx\n"
    )
    git = top / ".git" / "refs" / "steersman"
    (git / "x").mkdir(parents=True)
    for number, target in enumerate((good, blob, far, "1" * len(good), "junk", "ref: refs/heads/none")):
        (git / "x" / str(number)).write_text(f"{target}\n")
    (git / "x" / ("4" * 100)).write_text(f"{good}\n")
    (git / "x" / "a\x1b[31mb").mkdir()
    found = await listed(top)
    assert [(each.number, each.time is not None) for each, _ in found] == [
        (0, True),
        (3, False),
        (2, False),
        (1, False),
    ]
    pairs = kept_checkpoints.pairs(found)
    missing = ("1" * len(good), good)
    assert missing not in await checkpoints(top).count_all(top.parent / "shadow", top, [*pairs.values(), missing])


async def test_five_thousand_are_listed_and_bounded(top: Path) -> None:
    made = commit(top, "r: checkpoint 1", 1000, f="1\n")
    sh(top, "git update-ref --stdin", "".join(f"create {ref('loop', each)} {made}\n" for each in range(5000)))
    found = await listed(top)
    assert len(found) == 5000
    pairs = kept_checkpoints.pairs(found)
    counts = await checkpoints(top).count_all(top.parent / "shadow", top, pairs.values())
    assert set(counts.values()) == {(0, 0, 0)}
    page = kept_checkpoints.page([each for each, _ in found], {}, lambda _: False)
    assert 2000 < len(page) < 5000
    assert sum(len(each.model_dump_json()) for each in page) < 1_000_000
    assert page[0].number == 4999


async def test_another_namespaces_ids_are_not_told(top: Path) -> None:
    made = commit(top, "fix-1: after", 1000, f="1\n")
    sh(top, f"git update-ref {RUN}-after-{'b' * 16} {made}")
    (page,) = kept_checkpoints.page([each for each, _ in await listed(top)], {}, lambda _: True)
    assert (page.run, page.ref, page.kind, page.commit) == (None, None, "end", made)
