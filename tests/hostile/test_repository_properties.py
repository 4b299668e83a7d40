"""Any repository at all: a look at it ends soon, runs nothing, changes nothing of the person's, and can be taken back.

`make fuzz` goes on for as long as one likes.
"""

import asyncio
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import event, given

from activities.workspaces.checkpoints import WorkspaceCheckpoints
from steersman.contracts.loop_activities import Survey
from tests.hostile.traps import TRAPS, Trap
from tests.loops.loop_site import Site, repository
from tests.support.files import below

pytestmark = [pytest.mark.integration, pytest.mark.property, pytest.mark.timeout(0)]

SOON_S = 40.0


def described(path: Path) -> tuple[object, ...]:
    """What of a file a checkpoint keeps."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ("missing",)
    if stat.S_ISLNK(mode):
        return ("link", path.readlink())
    if stat.S_ISREG(mode):
        return ("file", bool(mode & 0o100), path.read_bytes())
    return ("other",)


LOOSE_OBJECT = re.compile(r"(^|/)[0-9a-f]{2}/[0-9a-f]{38}$")


def of_person(top: Path) -> dict[str, object]:
    """Every file of the git directory that is not the objects' or the checkpoints'."""
    found: dict[str, object] = {}
    for directory, _, files in os.walk(top / ".git"):
        for name in files:
            path = Path(directory, name)
            key = str(path.relative_to(top / ".git"))
            # `objects` may be a link into the git directory itself: its objects are then wherever that leads.
            if not key.startswith(("objects", "refs/steersman")) and not LOOSE_OBJECT.search(key):
                found[key] = described(path)
    return found


def kept_in(site: Site, outside: Path, commit: str) -> list[Path]:
    """The paths of a checkpoint's files, asked in the loop's own git directory, where nothing hostile is read."""
    shadow = site.store.create(site.loop) / "git"
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_DIR": str(shadow),
        "GIT_OBJECT_DIRECTORY": str(site.workspace / ".git" / "objects"),
        # Where `commondir` leads out, the objects are there.
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(outside / ".git" / "objects"),
        "GIT_NO_REPLACE_OBJECTS": "1",
    }
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "-z", commit], env=environment, capture_output=True, check=True, timeout=20
    ).stdout
    blobs = [line.split(b"\t", 1)[1] for line in listed.split(b"\0")[:-1] if line.split(b" ")[1] == b"blob"]
    return [site.workspace / os.fsdecode(path) for path in blobs]


def ruin(paths: list[Path]) -> None:
    """Remove every other file, and put something else into the rest."""
    for number, path in enumerate(paths):
        if number % 2:
            path.unlink()
        elif not path.is_symlink():
            path.chmod(0o644)
            path.write_bytes(b"ruined")


def is_repository(top: Path) -> bool:
    """Whether git itself takes it for one. Where it hangs at that question nobody knows: not then."""
    try:
        asked = ["git", "-C", str(top), "rev-parse", "--git-dir"]
        return subprocess.run(asked, capture_output=True, check=False, timeout=5).returncode == 0
    except subprocess.TimeoutExpired:
        return False


async def attack(directory: Path, traps: list[Trap], *, rooted: bool) -> None:
    outside = repository(directory / "outside", {"secret.txt": "s\n"})
    top = repository(directory / "root" / "work", {"a.txt": "one\n", "dir/b.txt": "two\n"})
    canaries = directory / "canaries"
    canaries.mkdir()
    for trap in traps:
        trap(top, canaries)
    site, before = Site(directory, top), of_person(top)
    if rooted:
        site.checkpoints = WorkspaceCheckpoints(site.environ, [directory / "root"])
    elsewhere = {path: described(path) for path in below(outside)}
    for each in canaries.iterdir():
        each.unlink()
    began = time.monotonic()
    survey = await site.look(1)
    assert time.monotonic() - began < SOON_S
    assert Survey.model_validate_json(survey.model_dump_json()) == survey
    assert (survey.commit is None) == (survey.error is not None) or not is_repository(top)
    event(f"kept: {survey.commit is not None}")
    # git takes an object that is there for whole: what was damaged before cannot be had again.
    if survey.commit is not None and not (directory / "damaged").exists():
        # Where `objects` leads into the tree, the objects are files of it: without them nothing can be had again.
        paths = [path for path in kept_in(site, outside, survey.commit) if not LOOSE_OBJECT.search(str(path))]
        then = {path: described(path) for path in paths}
        ruin(paths)
        await site.restore(1, commit=survey.commit)
        assert {path: described(path) for path in paths} == then
    assert of_person(top) == before
    assert not rooted or {path: described(path) for path in below(outside)} == elsewhere
    assert list(canaries.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("rooted", [True, False], ids=["in a root", "anywhere"])
@given(traps=TRAPS)
def test_any_repository(traps: list[Trap], *, rooted: bool) -> None:
    directory = Path(tempfile.mkdtemp(prefix="steersman-hostile-"))
    try:
        asyncio.run(attack(directory, traps, rooted=rooted))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
