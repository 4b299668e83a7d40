"""What a run leaves is deleted, whatever its agent made of it."""

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from activities.shim.client.errors import error_of
from activities.shim.program import control
from activities.store.disk import exhaustion, remove_tree
from activities.store.identity import StoreIdentity
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentFailed

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


@contextmanager
def without_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_a_run_is_not_said_to_have_nothing(tmp_path: Path) -> None:
    """Else its agent would be taken for none, or its record for gone, and be written anew."""
    owner, identity, key = Ownership("cluster", "default"), StoreIdentity(tmp_path), RunKey(run="r", execution="e")
    identity.open()
    directory = RunStore(tmp_path, owner, identity).create(key)
    directory.attempt(1).mkdir(parents=True)
    (directory.attempt(1) / "journal").touch()
    looks: list[Callable[[], object]] = [
        directory.attempts,
        lambda: directory.placement,
        lambda: owner.recorded(directory.path / "run.json"),
        identity.check,
    ]
    for look in looks:
        with without_descriptors(), pytest.raises(OSError, match="Too many open files"):
            look()
    assert directory.attempts() == 1


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.EMFILE, "all open"), errno.EMFILE),
        (BlockingIOError(errno.EAGAIN, "no fork"), errno.EAGAIN),
        (BlockingIOError(errno.EAGAIN, "something keeps it locked", "/directory"), None),
        (RuntimeError("can't start new thread"), errno.EAGAIN),
        (MemoryError(), errno.ENOMEM),
        (caused(AgentFailed("the agent could not be started"), OSError(errno.ENFILE, "all open")), errno.ENFILE),
        (error_of({"ok": False, "error": "os_error", "errno": errno.EAGAIN, "message": "no fork"}), errno.EAGAIN),
        (error_of({"ok": False, "error": "fenced", "errno": errno.EAGAIN, "message": "another one"}), None),
        (OSError(errno.ENOSPC, "full"), None),
    ],
)
def test_what_says_nothing_about_a_run_is_told_from_what_does(error: Exception, number: int | None) -> None:
    lack = exhaustion(error)
    assert (lack.errno if lack else None) == number
