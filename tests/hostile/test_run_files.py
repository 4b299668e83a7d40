"""An agent that spoils its run's files: it delays nobody else's run, and is stopped like any other."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, following, gone
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]


def without_owner(directory: Path) -> None:
    (directory / "run.json").unlink()


def owned_by_a_pipe(directory: Path) -> None:
    (directory / "run.json").unlink()
    os.mkfifo(directory / "run.json")


def log_is_a_pipe(directory: Path) -> None:
    (directory / "events.jsonl").unlink()
    os.mkfifo(directory / "events.jsonl")


def log_is_a_directory(directory: Path) -> None:
    (directory / "events.jsonl").unlink()
    (directory / "events.jsonl").mkdir()


def files_are_full_of_directories(directory: Path) -> None:
    (directory / "attempts" / "1" / "files" / "a" / "b").mkdir(parents=True)


SPOILT = [without_owner, owned_by_a_pipe, log_is_a_pipe, log_is_a_directory, files_are_full_of_directories]


@pytest.mark.exhaustive
async def test_spoilt_files_keep_no_stop_and_no_other_run(site: Site, mark: str) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    runs = {}
    for spoil in SPOILT:
        run = await steersman.start(site.process(*python(OBEDIENT), mark=f"{mark}-{spoil.__name__}"))
        async with following(steersman, run) as attached:
            await attached.until(lambda e: e.type == "message")
        runs[run] = spoil
        spoil(directory_of(site, run))
    async with asyncio.timeout(30):  # whoever reads them gets an answer, or a refusal
        await asyncio.gather(*map(steersman.events, runs), return_exceptions=True)

    async with asyncio.timeout(20):
        assert (await steersman.run(site.process("true"))).status == "succeeded"
    async with asyncio.timeout(30):  # a log that is none is not tried again and again
        stopped = await asyncio.gather(*map(steersman.stop, runs))
    assert {each.outcome for each in stopped} == {"stopped"}
    for spoil in SPOILT:
        await gone(f"{mark}-{spoil.__name__}")


@pytest.mark.parametrize("spoil", [log_is_a_pipe, log_is_a_directory])
async def test_a_spoilt_run_keeps_no_other_from_being_swept(
    site: Site, mark: str, spoil: Callable[[Path], None]
) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    runs = [await steersman.start(site.process(*python(OBEDIENT), mark=f"{mark}-{number}")) for number in range(2)]
    for run in runs:
        async with following(steersman, run) as attached:
            await attached.until(lambda e: e.type == "message")
    worker.kill()
    spoil(directory_of(site, runs[0]))
    for run in runs:
        await site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "enough")

    again = site.worker()
    await again.ready()
    for number in range(2):
        await gone(f"{mark}-{number}", 20)
    await until(lambda: "sweep_failed" in again.log.read_text(encoding="utf-8"), 20)


def directory_of(site: Site, run: str) -> Path:
    (found,) = (site.state / "runs" / run).iterdir()
    return found
