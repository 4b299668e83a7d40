"""A run that closed while nobody led its agent: the next worker ends its log, whoever has died over that before."""

import dataclasses
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.agents.process.agent import ProcessAgent
from activities.host_activities import HostActivities
from activities.store.eventlog import EventLog
from activities.store.ownership import Ownership
from activities.temporal.execution import epoch_of
from steersman.contracts.activities import Finalized, FinalizeInput, RunKey
from steersman.contracts.events import CancelledEvent
from steersman.contracts.request import parse_request
from tests.acceptance.programs import python
from tests.acceptance.site import Site, following
from tests.support.host import host_activities
from tests.support.processes import marked, until

TALKING = """
import pathlib, time
print("first", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
print("last", flush=True)
"""
SWEEPER = """
import asyncio, pathlib, sys
from activities.shim import client
asyncio.run(client.connect(pathlib.Path(sys.argv[1]), epoch=int(sys.argv[2])))
"""
"""A worker that dies as it completes the log: it has said to the shim who it is."""
ROOT = Path(__file__).parents[2]


async def test_a_worker_that_died_over_it_is_followed_by_another(site: Site, mark: str) -> None:
    worker, workspace = site.worker(), site.workspace()
    await worker.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process(*python(TALKING), mark=mark, workspace=workspace))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    worker.kill()
    (workspace / "go").touch()
    await until(lambda: not marked(mark))
    workflow = steersman.temporal.get_workflow_handle(run)
    await workflow.terminate()
    closed = (await workflow.describe()).close_time
    assert closed
    (attempt,) = site.state.glob(f"runs/{run}/*/attempts/1")
    subprocess.run([sys.executable, "-c", SWEEPER, str(attempt), str(epoch_of(closed))], cwd=ROOT, check=True)

    await site.worker().ready()

    async def ended() -> bool:
        return [event.type for event in await steersman.events(run)][-1] == "cancelled"

    await until(ended)
    assert [event.text for event in await steersman.events(run) if event.type == "message"] == ["first", "last"]


@dataclasses.dataclass
class Ended:
    """The end of a run whose last words nobody has read, as a host's worker writes it down."""

    events: Path
    hosting: HostActivities
    end: FinalizeInput
    began: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))
    env: ActivityEnvironment = dataclasses.field(default_factory=ActivityEnvironment)
    told: list[Finalized] = dataclasses.field(default_factory=list)
    """The answers of the attempts that did not fail."""

    async def attempt(self, number: int, *, at_s: float = 0) -> str:
        """One that begins so many seconds after the first: the type of its failure, if it fails."""
        started = self.began + timedelta(seconds=at_s)
        self.env.info = dataclasses.replace(self.env.info, attempt=number, started_time=started)
        try:
            self.told.append(await self.env.run(self.hosting.finalize_run, self.end))
        except ApplicationError as error:
            if error.non_retryable:
                raise
            return error.type or ""
        return ""

    def led_again(self, at_s: float) -> None:
        """An attempt to lead the run begins so many seconds after the first attempt to end its log."""
        EventLog.take_over(self.events, epoch_of(self.began + timedelta(seconds=at_s))).close()

    def said(self) -> list[str]:
        """The log: the text of a message, the type of what else comes after the first of them."""
        lines = [json.loads(line) for line in self.events.read_text().splitlines()]
        said = [each["text"] if each["type"] == "message" else each["type"] for each in lines]
        return said[said.index("first") :]


@pytest.fixture
async def ended(site: Site, mark: str) -> Ended:
    """A run that says "first", loses its worker, and says "last" before it ends."""
    worker, workspace = site.worker(), site.workspace()
    await worker.ready()
    steersman = await site.steersman()
    request = site.process(*python(TALKING), mark=mark, workspace=workspace)
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    worker.kill()
    (workspace / "go").touch()
    await until(lambda: not marked(mark))
    (events,) = site.state.glob(f"runs/{run}/*/events.jsonl")
    written = json.loads((events.parent / "run.json").read_text())
    owner = Ownership(written["cluster"], written["namespace"])
    end = FinalizeInput(
        key=RunKey(run=run, execution=events.parent.name),
        request=parse_request(request).outline(),
        event=CancelledEvent(time=datetime.now(UTC)),
        attempts=1,
        unseen=True,
    )
    return Ended(events, host_activities(steersman.temporal, site.state, owner, {"process": ProcessAgent()}), end)


async def test_a_log_that_is_led_again_is_ended_with_all_that_was_said(ended: Ended) -> None:
    ended.led_again(at_s=1)
    assert await ended.attempt(1) == "Fenced"
    assert ended.said() == ["first"]
    assert await ended.attempt(2, at_s=2) == ""
    assert ended.said() == ["first", "last", "cancelled"]


async def test_a_clock_that_has_stepped_back_keeps_no_log_open(ended: Ended) -> None:
    ended.led_again(at_s=3600)
    assert [await ended.attempt(number, at_s=number) for number in range(1, 6)] == ["Fenced"] * 4 + [""]
    assert ended.said() == ["first", "cancelled"]


async def test_an_end_whose_answer_was_lost_is_told_again(ended: Ended) -> None:
    assert [await ended.attempt(number) for number in (1, 2)] == ["", ""]
    told, again = ended.told
    assert told.progress
    assert again.model_dump_json() == told.model_dump_json(), "what the workflow is told"
