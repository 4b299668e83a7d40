"""Where loops are kept, and what their checkpoints are called: private, and good for git, whatever a loop is called."""

import os
import subprocess
from pathlib import Path

import pytest

from activities.loops.loop_store import LoopStore
from activities.store.ownership import Ownership
from activities.workspaces import fingerprint as look
from activities.workspaces.git.checkpoint_commits import quoted, ref

MINE = Ownership("cluster", "default")

HOSTILE = [
    "../x",
    "..",
    ".",
    "a/../../b",
    "/etc/passwd",
    "x" * 1000,
    "x" * 999,
    "ü" * 300,
    "loop\nid",
    "loop\0id",
    " ",
    "~",
    "-rf",
    "%2e%2e",
    "日本語",
    "a\\b",
    "a..b",
    "a.lock",
    "a.",
    ".a",
    "@",
    "a@{b",
    "a:b",
    "a^b?c*d[e",
    "",
]


@pytest.mark.parametrize("loop", [*HOSTILE, "loop-0190-ab", "A.b_c-d"])
def test_any_loop_has_a_ref_and_a_directory(tmp_path: Path, loop: str) -> None:
    checked = subprocess.run(["git", "check-ref-format", ref(loop, 7)], check=False)
    assert checked.returncode == 0
    place = LoopStore(tmp_path / "state", MINE).create(loop)
    assert place.resolve().parent == (tmp_path / "state" / "loops").resolve()
    assert [each.loop for each in LoopStore(tmp_path / "state", MINE).mine()] == [loop]


def test_different_loops_have_different_names() -> None:
    names = {quoted(loop) for loop in HOSTILE}
    assert len(names) == len(HOSTILE)
    assert len({name.lower() for name in names}) == len(HOSTILE)


def test_a_readable_id_stays_readable() -> None:
    assert ref("loop-01.a_b", 12) == "refs/steersman/loop-01.a_b/12"


def test_the_loops_of_others_are_not_ours(tmp_path: Path) -> None:
    LoopStore(tmp_path, Ownership("cluster", "other")).create("theirs")
    LoopStore(tmp_path, MINE).create("ours")
    (tmp_path / "loops" / "torn").mkdir()
    (tmp_path / "loops" / "torn" / "loop.json").write_text("{")
    assert [each.loop for each in LoopStore(tmp_path, MINE).mine()] == ["ours"]


def test_a_fingerprint_of_too_many_files_says_so(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_text("x")
    whole = look.fingerprint(tmp_path, limit=3)
    (tmp_path / "more").write_text("x")
    with pytest.raises(look.TooManyFiles, match="more than 3 files") as found:
        look.fingerprint(tmp_path, limit=3)
    assert found.value.digest == whole


def test_a_fingerprint_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}").mkdir()
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    look.fingerprint(tmp_path, stop)
    assert len(asked) == 4


def test_large_files_count_by_size_and_time(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (look.MAX_CONTENT + 1))
    first = look.fingerprint(tmp_path)
    os.utime(large, ns=(1, 1))
    assert look.fingerprint(tmp_path) != first
