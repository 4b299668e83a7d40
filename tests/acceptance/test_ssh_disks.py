"""Runs on another machine whose disk is full, or whose leader's is: why is said, and nothing is lost or left."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.contracts.errors import WorkspaceError
from tests.acceptance.site import Site
from tests.acceptance.test_changes import made
from tests.acceptance.test_ssh import Elsewhere
from tests.support.disks import Disk, may_mount, small_disk
from tests.support.processes import until
from tests.support.sshd import missing

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.linux,
    pytest.mark.skipif(not may_mount(), reason="mounts file systems"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture
def small_there(site: Site) -> Iterator[tuple[Elsewhere, Disk]]:
    """The home there has little room."""
    with small_disk(site.root / "elsewhere") as disk:
        found = Elsewhere(site)
        try:
            yield found, disk
        finally:
            found.end()


@pytest.fixture
def small_here(site: Site) -> Iterator[tuple[Elsewhere, Disk]]:
    """The state directory here has little room."""
    with small_disk(site.state) as disk:
        found = Elsewhere(site)
        try:
            yield found, disk
        finally:
            found.end()


@pytest.mark.parametrize("kind", ["history", "files", "full"])
@pytest.mark.exhaustive
async def test_a_workspace_for_which_there_is_no_room_there(small_there: tuple[Elsewhere, Disk], kind: str) -> None:
    elsewhere, disk = small_there
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    await steersman.run(elsewhere.process("pass"))  # our programs are there
    repository = made(elsewhere.site.workspace())
    if kind == "full":
        disk.fill()
    else:  # what is compressed has room, and the files have not; or neither has
        data = os.urandom(3_000_000) if kind == "history" else b"the same\n" * 400_000
        (repository / "large").write_bytes(data)
    with pytest.raises(WorkspaceError) as failed:
        await asyncio.wait_for(steersman.run(elsewhere.process("pass", workspace=repository)), 60)
    message = str(failed.value)
    assert "it cannot be copied: place: " in message
    assert str(elsewhere.home / ".local" / "state" / "steersman" / "copies") in message
    assert "free" in message or "No space left on device" in message
    await until(lambda: elsewhere.kept == [])
    disk.free()
    (repository / "large").unlink(missing_ok=True)
    assert (await steersman.run(elsewhere.process("pass", workspace=repository))).status == "succeeded"


@pytest.mark.exhaustive
async def test_a_copy_for_which_there_is_no_room_here_waits_there(small_here: tuple[Elsewhere, Disk]) -> None:
    elsewhere, disk = small_here
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    repository = made(elsewhere.site.workspace())
    run = await steersman.start(
        elsewhere.process("import os; open('large', 'wb').write(os.urandom(3_000_000))", workspace=repository)
    )
    with pytest.raises(WorkspaceError, match=r"could not be carried back: .* 2\.9 MiB, and 1\.\d MiB are free here"):
        await steersman.result(run)
    assert not (repository / "large").exists()
    assert sum(path.stat().st_size for path in _packs(disk.path)) < 100_000
    other = await steersman.start(elsewhere.site.process("true", workspace=repository))
    with pytest.raises(WorkspaceError, match=f"`steer workspace retry {run}`"):
        await steersman.result(other)
    subprocess.run(["mount", "-o", "remount,size=20m", str(disk.path)], check=True)
    assert (await steersman.retry_workspace(run)).finalize.status == "succeeded"
    assert (repository / "large").stat().st_size == 3_000_000
    assert elsewhere.kept == []


def _packs(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if "pack" in path.name and path.is_file()]
