"""What a run leaves is deleted, whatever its agent made of it."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.shim.program import control
from activities.store.disk import remove_tree

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("remove", [remove_tree, lambda root: control.COMMANDS["remove"][1](str(root))])
def test_what_is_unwritable_is_removed_and_links_are_not_followed(remove: Callable[[Path], object]) -> None:
    """By the worker, and by the shim's program on another machine."""
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        kept, home = root / "kept", root / "run" / "1"
        for each in (kept, home / "cache" / "module", home / "unreadable" / "further"):
            each.mkdir(parents=True)
            (each / "file").write_text("")
        (home / "link").symlink_to(kept)
        for each in (kept, home / "cache" / "module", home / "cache"):
            each.chmod(0o555)
        (home / "unreadable").chmod(0)
        for each in (root, *root.rglob("*")):
            os.chown(each, NOBODY, NOBODY, follow_symlinks=False)
        os.seteuid(NOBODY)  # as root nothing is unwritable
        try:
            remove(home.parent)
        finally:
            os.seteuid(0)
        assert not home.parent.exists()
        assert (kept / "file").exists()
        assert kept.stat().st_mode & 0o777 == 0o555
    finally:
        shutil.rmtree(root)
