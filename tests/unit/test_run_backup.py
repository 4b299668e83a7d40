"""What is kept of a run in a pod: one at a time, the last one too, and no more than counts."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from activities.run_backups import RunBackup, RunBackups
from activities.shim.client import MachineUnreachable
from activities.store.run_directory import RunDirectory
from steersman.contracts.run import CarriedWorkspace


class Sessions:
    """Brings an agent's sessions."""

    async def back_up(self, directory: Any, place: Path) -> None:
        place.mkdir()


class Backups:
    """Those of a run whose machine is away."""

    sessions = Sessions()

    def sessions_of(self, directory: Any) -> Path | None:
        return None

    async def copy_of(self, directory: Any) -> Any:
        raise MachineUnreachable("the machine is away")


def backup(path: Path) -> RunBackup:
    directory = cast("RunDirectory", SimpleNamespace(path=path))
    return RunBackup(cast("RunBackups", Backups()), directory, cast("CarriedWorkspace", None), 60)


async def test_the_last_one_is_taken_after_the_one_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def take(_: RunBackup, place: Path) -> None:
        taken.append("began")
        begun.set()
        await goes_on.wait()
        taken.append("ended")

    monkeypatch.setattr(RunBackup, "_take", take)
    run = backup(tmp_path)
    under_way = asyncio.create_task(run.take())
    await begun.wait()
    last = asyncio.create_task(run.take())
    await asyncio.sleep(0.1)
    goes_on.set()
    async with asyncio.timeout(10):
        assert [await under_way, await last] == [None, None]
    assert taken == ["began", "ended", "began", "ended"]


async def test_tries_that_come_to_nothing_do_not_add_up(tmp_path: Path) -> None:
    run = backup(tmp_path)
    for _ in range(5):
        assert await run.take() == "the machine is away"
    assert len(list((tmp_path / "backup").glob("sessions-*"))) == 1
