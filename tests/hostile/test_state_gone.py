"""The state directory vanishes under living agents: nobody lies about them, none is begun twice, none is left."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import AgentCrashed, AgentFailed, RunError
from steersman.errors import RunCancelled, ServerRefused
from tests.acceptance.programs import python
from tests.acceptance.site import Site, following, gone
from tests.support.processes import command_lines, marked, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

NOTICE_S = 25.0
"""Two looks of a shim, 0.75 s apart, and SIGKILL 1.5 s later; the rest is for a busy machine."""

FAMILY = """
import os, signal, time
with open("starts", "a") as file: file.write("x")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here, there = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.write(there, b"x")
        while True: time.sleep(600)
    os._exit(0)
os.wait()
os.read(here, 1)
print("ready", flush=True)
while True: time.sleep(600)
"""
"""Writes down that it was started; ignores SIGTERM, as does its grandchild in a session of its own."""


class Place:
    """A site with a run at work on it, whose state can be taken away."""

    def __init__(self, site: Site, steersman: Steersman, mark: str) -> None:
        self.site, self.steersman, self.mark = site, steersman, mark
        self.workspace = site.workspace()
        self.away = site.root / "away"
        self.run = ""

    async def begin(self) -> None:
        request = self.site.process(*python(FAMILY), mark=self.mark, workspace=self.workspace)
        self.run = await self.steersman.start(request)
        async with following(self.steersman, self.run) as attached:
            await attached.until(lambda e: e.type == "message")
        assert len(marked(self.mark)) == 2

    @property
    def run_directory(self) -> Path:
        return self.site.state / "runs" / self.run

    @property
    def starts(self) -> int:
        return len((self.workspace / "starts").read_text())

    def shim(self) -> int:
        (pid,) = [
            pid for pid, line in command_lines().items() if line.startswith("steersman-shim") and self.run in line
        ]
        return pid

    async def refused(self, run: str = "") -> str:
        """Wait until a worker has said why it does not lead the run, by default that of the place; what it said."""

        async def failure() -> str:
            description = await self.steersman.temporal.get_workflow_handle(run or self.run).describe()
            pending = description.raw_description.pending_activities
            said = " ".join(each.last_failure.message for each in pending if each.HasField("last_failure"))
            return said if "state directory" in said else ""

        return await until(failure, 30)


def deleted(path: Path) -> None:
    """As a whole, also where a worker that lives meanwhile writes into it or tidies up."""
    for _ in range(100):
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
                raise
        if not path.exists():
            return
    raise AssertionError(f"{path} comes back again and again")


def without_run(place: Place) -> None:
    deleted(place.run_directory)


def without_state(place: Place) -> None:
    deleted(place.site.state)


def moved(place: Place) -> None:
    place.site.state.rename(place.away)


def replaced(place: Place) -> None:
    """As by another disk, mounted over it."""
    place.site.state.rename(place.away)
    place.site.state.mkdir()


Vanish = Callable[[Place], None]
EVERY = pytest.mark.parametrize("vanish", [without_run, without_state, moved, replaced])
STORE = pytest.mark.parametrize("vanish", [without_state, replaced])


@pytest.fixture
async def place(site: Site, mark: str) -> Place:
    """A run at work, led by the one worker."""
    await site.worker().ready()
    made = Place(site, await site.steersman(), mark)
    await made.begin()
    return made


async def closed(place: Place) -> Exception:
    """What the run failed with."""
    with pytest.raises((RunError, RunCancelled)) as caught:
        await asyncio.wait_for(place.steersman.result(place.run), 30)
    error: Exception = caught.value
    return error


def nothing_pretends(place: Place) -> None:
    """No directory is there that would say that this run never had an agent."""
    assert not place.run_directory.exists()


@pytest.mark.exhaustive
@EVERY
async def test_the_agent_is_stopped_by_its_shim_alone(place: Place, vanish: Vanish) -> None:
    place.site.workers[0].kill()
    vanish(place)
    await gone(place.mark, NOTICE_S)
    await until(lambda: not any(place.run in line for line in command_lines().values() if "steersman-shim" in line))


@EVERY
async def test_a_stop_says_unverified_and_leaves_nothing(place: Place, vanish: Vanish) -> None:
    vanish(place)
    report = await asyncio.wait_for(place.steersman.stop(place.run), 40)
    assert report.outcome == "unverified"
    assert not marked(place.mark)
    assert isinstance(await closed(place), RunCancelled | AgentFailed)
    nothing_pretends(place)


@pytest.mark.exhaustive
async def test_a_run_whose_directory_is_gone_fails_and_says_so(place: Place) -> None:
    without_run(place)
    error = await closed(place)
    assert isinstance(error, AgentFailed)
    assert "the run's directory is gone" in str(error)
    assert not marked(place.mark)
    assert place.starts == 1
    nothing_pretends(place)


@pytest.mark.exhaustive
@STORE
async def test_a_worker_without_its_store_says_so_and_leads_nothing(place: Place, vanish: Vanish) -> None:
    second = place.site.worker()
    await second.ready()
    vanish(place)
    assert "holds no store" in await place.refused()
    for worker in place.site.workers:
        await until(partial(worker.said, "state_gone"))
    with pytest.raises(AgentFailed, match="holds no store"):
        await asyncio.wait_for(place.steersman.run(place.site.process("true")), 20)
    with pytest.raises(ServerRefused, match="holds no store"):
        await asyncio.wait_for(place.steersman.events(place.run), 60)
    assert place.starts == 1
    assert (await place.steersman.stop(place.run)).outcome == "unverified"
    nothing_pretends(place)


@pytest.mark.exhaustive
@pytest.mark.parametrize("vanish", [without_run, replaced])
async def test_a_worker_started_since_begins_no_second_copy(place: Place, vanish: Vanish) -> None:
    if vanish is without_run:
        place.site.workers[0].kill()
    else:  # with the directory goes what tells of a worker that was killed: its runs wait for Temporal's time-out then
        await place.site.workers[0].terminate()
    vanish(place)
    await place.site.worker().ready()
    if vanish is without_run:
        assert "the run's directory is gone" in str(await closed(place))
    else:
        assert "the run began in store" in await place.refused()
        assert (await place.steersman.stop(place.run)).outcome == "unverified"
        with pytest.raises(ServerRefused, match="the run began in store"):
            await asyncio.wait_for(place.steersman.events(place.run), 60)
    assert place.starts == 1
    assert not marked(place.mark)
    nothing_pretends(place)


@pytest.mark.exhaustive
@pytest.mark.parametrize("restarted", [False, True])
async def test_what_comes_back_is_gone_on_with(place: Place, *, restarted: bool) -> None:
    replaced(place)
    await gone(place.mark, NOTICE_S)
    if restarted:
        place.site.workers[0].kill()
        await place.site.worker().ready()
    await place.refused()
    deleted(place.site.state)
    place.away.rename(place.site.state)
    # A program cannot be resumed: what it came to is told, and it is not begun anew.
    error = await closed(place)
    assert isinstance(error, AgentCrashed)
    events = await place.steersman.events(place.run)
    assert [event.type for event in events][-2:] == ["message", "failed"]
    assert place.starts == 1
    assert (await place.steersman.run(place.site.process("echo", "again"))).text == "again"


async def test_whoever_waited_for_the_workspace_has_it_in_the_end(place: Place) -> None:
    """In no order that was made meanwhile, by which it would be in the way of itself once the disk is back."""
    request = place.site.process("echo", "at last", workspace=place.workspace)
    request["workspace"]["on_overlap"] = "queue"
    waiting = await place.steersman.start(request)

    async def waits() -> bool:
        return bool((await place.steersman.state(waiting)).workspace_held_by)

    await until(waits)
    moved(place)
    assert "holds no store" in await place.refused(waiting)
    assert not (place.site.state / "holds").exists()
    deleted(place.site.state)
    place.away.rename(place.site.state)
    await place.steersman.stop(place.run)
    assert (await asyncio.wait_for(place.steersman.result(waiting), 60)).text == "at last"


async def frozen_shim(place: Place) -> None:
    os.kill(place.shim(), signal.SIGSTOP)


async def killed_shim(place: Place) -> None:
    os.kill(place.shim(), signal.SIGKILL)
    await until(lambda: len(marked(place.mark)) == 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("hurt", [frozen_shim, killed_shim])
@pytest.mark.parametrize("how", ["sweep", "stop"])
async def test_what_no_shim_stops_is_found_by_its_mark(
    place: Place, hurt: Callable[[Place], Awaitable[None]], how: str
) -> None:
    worker = place.site.workers[0]
    worker.freeze()
    await hurt(place)
    without_run(place)
    worker.kill()
    if how == "sweep":
        await place.site.temporal("workflow", "terminate", "--workflow-id", place.run, "--reason", "enough")
    again = place.site.worker()
    await again.ready()
    if how == "stop":
        assert (await place.steersman.stop(place.run)).outcome == "unverified"
    await gone(place.mark, 20)
    if how == "sweep":
        await until(lambda: again.said("stray_stopped"))
    assert place.starts == 1


@pytest.mark.exhaustive
async def test_other_runs_and_their_agents_are_left_alone(site: Site, mark: str) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    kept, taken = Place(site, steersman, f"{mark}-kept"), Place(site, steersman, f"{mark}-taken")
    await kept.begin()
    await taken.begin()
    without_run(taken)
    await gone(taken.mark, NOTICE_S)
    worker.kill()
    await site.worker().ready()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(gone(kept.mark, 4), 3)
    assert len(marked(kept.mark)) == 2
    assert (await steersman.stop(kept.run)).outcome == "stopped"


@pytest.mark.exhaustive
async def test_a_worker_that_takes_over_does_not_believe_where_an_agent_says_that_it_lives(place: Place) -> None:
    (meta,) = place.run_directory.glob("*/run.json")
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "runtime": {"kind": "elsewhere"}}))
    await place.site.workers[0].terminate()
    await place.site.worker().ready()
    error = await closed(place)
    assert isinstance(error, AgentFailed)
    assert "run.json was changed" in str(error)
    assert place.starts == 1
    await gone(place.mark)
