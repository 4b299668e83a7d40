"""A shim on a full disk: it starts nothing, takes no message for written, and goes on when there is room."""

from pathlib import Path

import pytest

from activities.shim.client import JournalFull, StartRefused, records
from tests.shim.agents import collect, output, python
from tests.shim.conftest import Shims
from tests.support.disks import may_mount, small_disk
from tests.support.processes import until

pytestmark = [pytest.mark.linux, pytest.mark.skipif(not may_mount(), reason="mounts file systems")]

ECHO = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"


async def test_a_message_is_written_once_or_said_not_to_be(shims: Shims, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        running = await shims.start(python(ECHO), directory=disk.path / "shim")
        async with running.controller() as controller:
            disk.fill()
            for _ in range(2):
                with pytest.raises(JournalFull):
                    await controller.write("x" * 9000 + "\n", id="one")
            assert (await controller.status()).unwritten
            disk.free()

            async def written() -> bool:
                try:
                    return (await controller.write("x" * 9000 + "\n", id="one")).duplicate
                except JournalFull:
                    return False

            while not await written():
                pass

            async def all_written() -> bool:  # what the agent said meanwhile, too
                return not (await controller.status()).unwritten

            await until(all_written)
            await controller.close_stdin()
        from_start = await collect(records(running.directory))
        assert output(from_start) == [b"ready", b"heard " + b"x" * 9000]
        assert [record.id for record in from_start if record.stream == "in"] == ["one"]
        await running.release()


async def test_nothing_is_started_that_finds_no_room(shims: Shims, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = disk.path / "shim"
        directory.mkdir()
        disk.fill()
        with pytest.raises(StartRefused, match="No space left"):
            await shims.start(["touch", str(tmp_path / "started")], directory=directory)
        assert not (tmp_path / "started").exists()
        disk.free()
        running = await shims.start(["touch", str(tmp_path / "started")], directory=directory)
        await until((tmp_path / "started").exists)
        await collect(records(running.directory))
        await running.release()
