"""A worker of a host that falls: the others give its runs back to the server at once; no heartbeat is waited for."""

import asyncio
import json
import shutil
import time
from collections.abc import Collection
from datetime import timedelta

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest
from temporalio.exceptions import ApplicationError

from activities.takeover.registry import Registry
from activities.takeover.run_slots import RunSlots
from activities.takeover.takeover import Takeover
from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.hosts import host_name
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, leader, phase
from tests.support.processes import lives, marked, stopped, until
from tests.support.workers import WorkerProcess
from workers.connection import owner_of

SOON_S = 30.0
"""A workflow task that a killed worker was at comes again after 10 s; a heartbeat timeout takes 5 minutes. `make bench`
measures what it mostly takes.
"""

RUN_S = 6 * 10 + SOON_S
"""Each task of a short run may go to a frozen worker's polls once, and comes again after 10 s: its claim, four workflow
tasks, the end of its log.
"""


async def led_by(steersman: Steersman, run: str, worker: WorkerProcess) -> bool:
    return await leader(steersman, run) == worker.pid


async def all_led_by(steersman: Steersman, runs: list[str], worker: WorkerProcess, soon_s: float = SOON_S) -> None:
    async def all_led() -> bool:
        return all(await asyncio.gather(*(led_by(steersman, run, worker) for run in runs)))

    await until(all_led, soon_s)


async def started(site: Site, steersman: Steersman, mark: str, count: int) -> list[str]:
    runs = [await steersman.start(site.process(*python(OBEDIENT), mark=mark)) for _ in range(count)]
    for run in runs:
        await phase(steersman, run, "running")
    return runs


@pytest.mark.parametrize("at_work", [1, 4])
@pytest.mark.parametrize("ends", ["killed", "terminated"])
async def test_agents_at_work_go_before_runs_that_wait_for_room(site: Site, mark: str, ends: str, at_work: int) -> None:
    worker = site.worker("--max-runs", str(at_work))
    steersman = await site.steersman()
    await worker.ready()
    begun = await started(site, steersman, mark, at_work)
    agents = set(marked(mark))
    waiting = [await steersman.start(site.process("true")) for _ in range(8)]
    for run in waiting:
        await phase(steersman, run, "queued")
    if ends == "killed":
        worker.kill()
    else:
        await worker.terminate()
    # Has room for one run: it leads them all the same, and begins no other one before all but one have ended.
    following = site.worker("--max-runs", "1")
    await all_led_by(steersman, begun, following)
    assert set(marked(mark)) == agents
    for run in begun:
        assert {(await steersman.state(each)).phase for each in waiting} == {"queued"}
        await steersman.stop(run)
    for run in waiting:
        await phase(steersman, run, "closed")


async def test_a_worker_without_room_leads_the_agents_of_one_that_was_killed(site: Site, mark: str) -> None:
    workers = [site.worker("--max-runs", "2") for _ in range(2)]
    steersman = await site.steersman()
    for worker in workers:
        await worker.ready()
    begun = await started(site, steersman, mark, 4)
    agents = set(marked(mark))
    waiting = [await steersman.start(site.process("true")) for _ in range(4)]
    for run in waiting:
        await phase(steersman, run, "queued")
    left, fallen = workers
    fallen.kill()
    await all_led_by(steersman, begun, left)
    assert set(marked(mark)) == agents
    assert {(await steersman.state(run)).phase for run in waiting} == {"queued"}
    for run in begun:
        await steersman.stop(run)
    for run in waiting:
        await phase(steersman, run, "closed")


async def test_one_killed_worker_after_another_and_the_runs_go_on_at_once(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    runs = await started(site, steersman, mark, 3)
    agents = set(marked(mark))
    for _ in range(3):
        following = site.worker()
        await following.ready()
        worker.kill()
        # Whoever asks gets an answer of the worker that lives, and is not kept waiting for the dead one.
        asked = time.monotonic()
        await steersman.state(runs[0])
        assert time.monotonic() - asked < SOON_S
        await all_led_by(steersman, runs, following)
        worker = following
    assert set(marked(mark)) == agents
    for run in runs:
        assert (await steersman.stop(run)).outcome == "stopped"
    await until(
        lambda: [path.name for path in (site.state / "workers").glob("[0-9]*")] == [worker_directory(site, worker)]
    )


async def test_an_only_worker_that_comes_back_leads_at_once(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    (run,) = await started(site, steersman, mark, 1)
    worker.kill()
    again = site.worker()
    await again.ready()
    await all_led_by(steersman, [run], again)
    assert (await steersman.stop(run)).outcome == "stopped"


@pytest.mark.exhaustive
async def test_what_a_worker_was_handed_as_it_shut_down_begins_at_once(site: Site, mark: str) -> None:
    """The SDK drops a task that arrives while it stops polling, and the server counts on it."""
    worker = site.worker("--max-runs", "1")
    steersman = await site.steersman()
    await worker.ready()
    (busy,) = await started(site, steersman, mark, 1)
    handed = await steersman.start(site.process("true"))
    await drop_task(site, steersman, worker, handed)
    assert (await steersman.stop(busy)).outcome == "stopped"
    assert await worker.terminate() == 0

    following = site.worker()
    await following.ready()
    assert (await asyncio.wait_for(steersman.result(handed), SOON_S)).status == "succeeded"
    assert not following.said("worker_fallen"), "it shut down as it should"
    await until(
        lambda: [path.name for path in (site.state / "workers").glob("[0-9]*")] == [worker_directory(site, following)]
    )


@pytest.mark.exhaustive
async def test_a_frozen_worker_loses_its_runs_and_gets_no_new_ones(site: Site, mark: str) -> None:
    frozen = site.worker()
    steersman = await site.steersman()
    await frozen.ready()
    runs = await started(site, steersman, mark, 2)
    other = site.worker()
    await other.ready()
    agents = set(marked(mark))

    frozen.freeze()
    await until(lambda: stopped(frozen.pid))
    # The server hands tasks to the frozen one's polls as well, at first those that have just been given back.
    await all_led_by(steersman, runs, other, 4 * SOON_S)
    await asyncio.wait_for(asyncio.gather(*(steersman.run(site.process("true")) for _ in range(6))), RUN_S)
    frozen.thaw()
    for run in runs:
        assert await led_by(steersman, run, other)
        assert (await steersman.stop(run)).outcome == "stopped"
    assert not any(map(lives, agents))


async def test_a_forged_entry_takes_no_run_from_a_living_worker(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    (run,) = await started(site, steersman, mark, 1)
    key = RunKey(run=run, execution=(await steersman.state(run)).execution or "")
    mine = site.state / "workers" / worker_directory(site, worker)
    forged = mine.with_name("forged")
    shutil.copytree(mine, forged)
    facts = json.loads((forged / "worker.json").read_text())
    another = site.worker()
    await another.ready()

    async def gone() -> bool:
        return not forged.exists()

    (forged / "worker.json").write_text(json.dumps({**facts, "identity": "nobody"}))
    assert [json.loads(file.read_text()) for file in (forged / "runs").iterdir()] in ([key.model_dump()], [])
    await until(gone, 20)
    description = await steersman.temporal.get_workflow_handle(run).describe()
    assert [each.attempt for each in description.raw_description.pending_activities] == [1]
    assert await led_by(steersman, run, worker)
    assert (await steersman.stop(run)).outcome == "stopped"


def worker_directory(site: Site, worker: WorkerProcess) -> str:
    (found,) = (path.name for path in (site.state / "workers").glob(f"{worker.pid}-*"))
    return found


@pytest.mark.exhaustive
async def test_a_task_that_never_came_is_handed_out_anew(site: Site, mark: str) -> None:
    """A server that is overloaded counts on a worker to which it has sent nothing."""
    worker = site.worker("--max-runs", "1")
    steersman = await site.steersman()
    await worker.ready()
    (busy,) = await started(site, steersman, mark, 1)
    lost = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    await drop_task(site, steersman, worker, lost)
    assert (await steersman.stop(busy)).outcome == "stopped"
    await phase(steersman, lost, "running", SOON_S)
    assert worker.said("task_lost")
    assert (await steersman.state(lost)).attempt == 1
    assert (await steersman.stop(lost)).outcome == "stopped"


async def drop_task(site: Site, steersman: Steersman, worker: WorkerProcess, run: str) -> None:
    """Have the server hand the run to this worker, which is busy and does not poll, and let nobody have it."""
    facts = json.loads((site.state / "workers" / worker_directory(site, worker) / "worker.json").read_text())
    await handed_out(site, steersman, facts["identity"], run)


async def handed_out(site: Site, steersman: Steersman, identity: str, run: str) -> None:
    """Have the server hand the run to the worker of this identity, which does not hear of it."""
    task = await steersman.temporal.workflow_service.poll_activity_task_queue(
        PollActivityTaskQueueRequest(
            namespace=steersman.temporal.namespace,
            task_queue=TaskQueue(name=names.runs_queue(host_name(site.state))),
            identity=identity,
        ),
        timeout=timedelta(seconds=20),
    )
    assert task.workflow_execution.workflow_id == run


class WatchedSlots(RunSlots):
    """`looks`: how often a look at the fallen workers has ended."""

    looks = 0

    def expect(self, runs: Collection[RunKey]) -> None:
        self.looks += 1
        super().expect(runs)


async def test_no_run_begins_while_an_agent_at_work_is_on_its_way_to_its_place(site: Site, mark: str) -> None:
    """A busy machine's worker enters a run that it was handed some time after the server has counted it as handed."""
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    (begun,) = await started(site, steersman, mark, 1)
    state = await steersman.state(begun)
    key = RunKey(run=begun, execution=state.execution or "")
    worker.kill()
    busy = "0-busy@here"
    registry = Registry.open(site.state, await owner_of(steersman.temporal), busy, "steersman@here:busy")
    slots = WatchedSlots(1)
    taking_over = asyncio.create_task(Takeover(steersman.temporal, registry, list, slots).run())
    try:
        await handed_out(site, steersman, busy, begun)
        looks = slots.looks
        await until(lambda: slots.looks > looks + 2)  # the first of them may have begun before
        with pytest.raises(ApplicationError, match="agents at work go first"):
            await slots.refuse_without_place(RunKey(run="another", execution="e"))
        with slots.leading(key), registry.leading(key):
            pass
        await slots.refuse_without_place(RunKey(run="another", execution="e"))
    finally:
        taking_over.cancel()
        await asyncio.gather(taking_over, return_exceptions=True)
        registry.close()
    await all_led_by(steersman, [begun], site.worker())
    assert (await steersman.stop(begun)).outcome == "stopped"
