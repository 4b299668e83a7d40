"""The disk of the state directory is full, read-only or dies under living agents: what cannot be written down is not
said to have happened, nothing hangs, and nothing is lost when there is room again.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import AgentFailed
from steersman.errors import RunCancelled
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, following, gone, in_order
from tests.support.disks import Disk, ext4_disk, may_mount, small_disk
from tests.support.processes import marked, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.linux,
    pytest.mark.skipif(not may_mount(), reason="mounts file systems"),
]

CLOSES_S = 25.0
"""Less than the 10 s that a workflow waits for an activity which says nothing."""
AFTER_A_DEATH_S = 15.0
"""The run's activity may still be with the worker that was killed: the workflow waits 10 s for it."""
TALKING = """
import pathlib, time
number = 0
while not pathlib.Path("go").exists():
    number += 1
    print("line", number, "x" * 400)
    time.sleep(0.005)
print("last", number)
"""

SAYING = """
import pathlib, time
print("line 0", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
for number in range(1, 200):
    print("line", number, "x" * 400)
"""


@pytest.fixture(params=["memory", "ext4"])
def disk(site: Site, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """The state directory's own file system."""
    if request.param == "memory":
        with small_disk(site.state) as made:
            yield made
            site.end()
    else:
        with ext4_disk(site.state, site.root / "image") as made:
            yield made
            site.end()


@pytest.fixture
def dying(site: Site) -> Iterator[Disk]:
    """One that can be made to fail."""
    with ext4_disk(site.state, site.root / "image") as made:
        yield made
        site.end()


async def begin(site: Site, steersman: Steersman, mark: str, program: str = OBEDIENT) -> str:
    run = await steersman.start(site.process(*python(program), mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    return run


async def is_stopped_soon(steersman: Steersman, run: str, mark: str) -> None:
    """Its processes are gone in a moment, it closes soon, and nothing is claimed that is not written down."""
    began = time.monotonic()
    report = await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    took = time.monotonic() - began
    assert not marked(mark)
    assert report.outcome == "unverified"
    assert took < CLOSES_S


@pytest.mark.exhaustive
async def test_a_cancel_on_a_full_disk(site: Site, disk: Disk, mark: str) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    run = await begin(site, steersman, mark)
    disk.fill()
    await is_stopped_soon(steersman, run, mark)
    disk.free()
    await worker.terminate()
    await site.worker().ready()  # which sweeps

    async def ended() -> bool:
        return [event.type for event in await steersman.events(run)][-1] == "cancelled"

    await until(ended, 20)
    assert in_order(await steersman.events(run))
    assert (await steersman.run(site.process("echo", "again"))).text == "again"


@pytest.mark.exhaustive
async def test_a_run_that_finds_no_room_fails_at_once(site: Site, disk: Disk, mark: str) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    disk.fill()
    started = site.workspace() / "started"
    began = time.monotonic()
    with pytest.raises(AgentFailed, match="No space left"):
        await asyncio.wait_for(steersman.run(site.process("touch", str(started), mark=mark)), 30)
    assert time.monotonic() - began < CLOSES_S
    assert not started.exists()
    disk.free()
    assert (await steersman.run(site.process("echo", "again"))).text == "again"


@pytest.mark.exhaustive
async def test_room_that_comes_back_loses_nothing(site: Site, disk: Disk, mark: str) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    run = await steersman.start(site.process(*python(TALKING), mark=mark, workspace=workspace))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    disk.fill()
    before = (await steersman.state(run)).attempt
    await asyncio.sleep(4)  # the shim, the session and Temporal all try in vain meanwhile
    disk.free()
    (workspace / "go").touch()
    result = await asyncio.wait_for(steersman.result(run), 60)
    assert (result.status, result.attempts, before) == ("succeeded", 1, 1)
    events = await steersman.events(run)
    assert in_order(events)
    lines = [e.text.rstrip("x ") for e in events if e.type == "message"]
    assert lines == [*(f"line {number}" for number in range(1, len(lines))), f"last {len(lines) - 1}"]


def fails(disk: Disk) -> None:
    disk.fail()


def read_only(disk: Disk) -> None:
    disk.turn_read_only()


@pytest.mark.exhaustive
async def test_a_log_ends_with_all_that_was_said_where_that_could_not_be_written_at_first(
    site: Site, disk: Disk, mark: str
) -> None:
    """The worker was frozen while the agent said most of it, and finds a full disk and its run terminated. There may be
    room for the end, and for no more.
    """
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    run = await steersman.start(site.process(*python(SAYING), mark=mark, workspace=workspace))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    os.kill(worker.pid, signal.SIGSTOP)
    (workspace / "go").touch()
    await until(lambda: not marked(mark))
    disk.fill()
    await steersman.temporal.get_workflow_handle(run).terminate(reason="enough")
    os.kill(worker.pid, signal.SIGCONT)
    await until(lambda: worker.said("stop_asked"), 60)
    await asyncio.sleep(1)
    disk.free()
    async with asyncio.timeout(60):
        events = [event async for event in steersman.attach(run)]
    assert in_order(events)
    assert [e.text.rstrip("x ") for e in events if e.type == "message"] == [f"line {number}" for number in range(200)]
    assert events[-1].type == "cancelled"


@pytest.mark.exhaustive
@pytest.mark.parametrize("break_it", [fails, read_only])
async def test_a_disk_that_dies(site: Site, dying: Disk, mark: str, break_it: Callable[[Disk], None]) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    run = await begin(site, steersman, mark)
    break_it(dying)
    with pytest.raises(AgentFailed, match="state directory"):
        await asyncio.wait_for(steersman.run(site.process("true")), 30)
    await is_stopped_soon(steersman, run, mark)


async def test_nothing_is_said_to_be_pruned_that_is_there(site: Site, dying: Disk) -> None:
    worker = site.worker()
    host = await worker.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process("true"))
    await steersman.result(run)
    dying.turn_read_only()

    async def fails() -> bool:
        """It is left out while its shim, which was let go, still ends."""
        pruned = await steersman.prune(host, keep_days=0)
        assert (pruned.pruned, pruned.bytes_freed) == ((), 0)
        return worker.said("prune_failed") is not None

    await until(fails)
    assert any((site.state / "runs" / run).iterdir())


@pytest.mark.exhaustive
async def test_a_worker_that_starts_on_a_full_disk(site: Site, disk: Disk, mark: str) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    run = await begin(site, steersman, mark)
    first.kill()
    disk.fill()
    await site.worker().ready()
    report = await asyncio.wait_for(steersman.stop(run), AFTER_A_DEATH_S)
    # What the dead one had in the state directory is cleared away meanwhile: there may be room for the stop's record.
    assert report.outcome in ("unverified", "stopped")
    await gone(mark)
    assert shutil.disk_usage(Path(site.state)).total
