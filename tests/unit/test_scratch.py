"""Directories for files of a moment: whose process is gone, and whose is not."""

import subprocess
import sys
from pathlib import Path

from activities.store.scratch import Scratch, remove_left

KILLED = """
import os, signal, sys
from pathlib import Path
from activities.store.scratch import Scratch
made = Scratch(Path(sys.argv[1]), "ours-")
(made.path / "file").write_text("x")
os.kill(os.getpid(), signal.SIGKILL)
"""


def names(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir()}


def test_what_a_killed_process_has_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = names(tmp_path)
    assert left.startswith("ours-")
    mine, others = Scratch(tmp_path, "ours-"), {"another", "ours-file", "ours-link"}
    (tmp_path / "another").mkdir()
    (tmp_path / "ours-file").write_text("")
    (tmp_path / "ours-link").symlink_to(tmp_path / "another")
    remove_left(tmp_path, "ours-")
    assert names(tmp_path) == {mine.path.name, *others}
    descriptors = len(names(Path("/dev/fd")))
    mine.remove()
    assert (names(tmp_path), len(names(Path("/dev/fd")))) == (others, descriptors - 1)
    remove_left(tmp_path / "nowhere", "ours-")
