"""A terminated run is asked nothing, and leaves nothing behind all the same: not even a doubt about how it ended."""

import asyncio
import json
from datetime import timedelta

import pytest
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy

from steersman.client import Steersman
from steersman.contracts.errors import RunTimedOut
from steersman.contracts.events import AgentEvent, CancelledEvent, FailedEvent
from steersman.contracts.model import JsonObject
from steersman.contracts.names import RUN_WORKFLOW, TASK_QUEUE
from steersman.errors import HostUnreachable, RunNotFound, RunTerminated
from steersman.ids import new_run_id
from tests.acceptance.programs import OBEDIENT, STUBBORN, python
from tests.acceptance.site import Site, following, gone, in_order, phase
from tests.scripted_model import ScriptedModel, hold, say
from tests.support.processes import lives, marked, until


async def terminate(site: Site, run: str) -> None:
    await site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "enough")


def told(events: list[AgentEvent]) -> CancelledEvent:
    """What the events say at last of a run that was terminated because of "enough" while its agent was at work."""
    assert in_order(events)
    last = events[-1]
    assert isinstance(last, CancelledEvent)
    assert (last.terminated, last.reason) == (True, "enough")
    assert last.by
    proof = last.stop_report
    assert proof is not None
    assert (proof.outcome, proof.reason, proof.left) == ("stopped", "enough", ())
    assert proof.processes >= 1
    return last


async def all_say(site: Site, run: str, end: AgentEvent) -> None:
    """Whoever asks, whenever, and however, is told of the same end."""
    steersman = await site.steersman()
    assert (await steersman.events(run))[-1] == end
    async with following(steersman, run) as again, following(steersman, run, after=end.seq - 1) as rest:
        assert (await again.end())[-1] == end
        assert await rest.end() == [end]
    state = await steersman.state(run)
    assert isinstance(end, CancelledEvent)
    assert (state.phase, state.closed_as, state.stop_report) == ("closed", "terminated", end.stop_report)
    assert state.error == f"run {run} was terminated: enough"
    with pytest.raises(RunTerminated, match="enough") as raised:
        await steersman.result(run)
    assert (raised.value.reason, raised.value.stop_report) == ("enough", end.stop_report)

    async def listed() -> str | None:
        return next((each.status for each in await steersman.list() if each.id == run), None)

    async def is_listed() -> bool:
        return await listed() == "terminated"

    await until(is_listed)


@pytest.mark.exhaustive
async def test_the_worker_notices(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    script = model.script("terminated", hold("thinking"))
    claude = await steersman.start(shared.claude(script, mark=mark))
    program = await steersman.start(shared.process(*python(STUBBORN), mark=mark))
    await script.wait_held()
    async with following(steersman, program) as attached, following(steersman, claude) as other:
        await attached.until(lambda e: e.type == "message")

        await asyncio.gather(terminate(shared, claude), terminate(shared, program))

        await gone(mark)
        ends = {program: told(await attached.end()), claude: told(await other.end())}
    proof = ends[program].stop_report
    assert proof is not None
    assert proof.how == "killed"
    for run, end in ends.items():
        await all_say(shared, run, end)


@pytest.mark.exhaustive
async def test_without_a_worker_the_next_one_or_the_lease_sees_to_it(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    swept, leased = f"{mark}-swept", f"{mark}-leased"
    script = model.script("leased", hold("thinking"), say("back again"))
    terminated = await steersman.start(site.process(*python(STUBBORN), mark=swept))
    forgotten = await steersman.start(site.claude(script, mark=leased, lease_s=10))
    await script.wait_held()
    for run in (terminated, forgotten):
        await phase(steersman, run, "running")
    left = set(marked(swept))
    assert len(left) >= 4

    worker.kill()
    await terminate(site, terminated)
    # Nobody renews the lease: the shim itself ends the agent. The other's is long.
    await gone(leased, 25)
    assert left == set(marked(swept))

    await site.worker().ready()
    # A process on its way out has lost its environment, and so its mark, before it is gone.
    await until(lambda: not any(map(lives, left)))
    assert not marked(swept)

    # The run whose lease ran out was not terminated: the next worker goes on with its session.
    result = await asyncio.wait_for(steersman.result(forgotten), 60)
    assert (result.text, result.attempts) == ("back again", 2)
    assert in_order(await steersman.events(forgotten))
    async with following(steersman, terminated) as attached:
        end = told(await attached.end())
    await all_say(site, terminated, end)


@pytest.mark.exhaustive
async def test_a_worker_that_dies_over_it_leaves_the_rest_to_the_next(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    run = await steersman.start(site.process(*python(STUBBORN), mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")  # before that it is not stubborn yet
    await terminate(site, run)
    await gone(mark)
    worker.kill()

    await site.worker().ready()
    async with following(steersman, run) as attached:
        end = told(await attached.end())
    assert end.stop_report is not None
    assert end.stop_report.how == "killed"
    await all_say(site, run, end)


@pytest.mark.exhaustive
async def test_while_the_host_is_away_nobody_makes_up_an_end(site: Site, mark: str) -> None:
    """The server and the workflow's worker answer, the run's host does not: what is not known is not said."""
    first = site.worker("--host", "away")
    steersman = await site.steersman()
    await first.ready()
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    await phase(steersman, run, "running")
    first.kill()
    await terminate(site, run)
    elsewhere = site.bare_worker("--host", "elsewhere", "--state-dir", str(site.root / "other-state"))
    await elsewhere.ready()

    with pytest.raises(HostUnreachable, match="was terminated: enough; nothing is known of its processes"):
        async with asyncio.timeout(60):
            assert [event async for event in steersman.attach(run)] == []
    state = await steersman.state(run)
    assert (state.phase, state.closed_as) == ("closed", "terminated")
    assert state.stop_report is not None
    assert (state.stop_report.outcome, state.stop_report.reason) == ("unverified", "enough")
    assert marked(mark)

    await site.worker("--host", "away").ready()
    async with following(steersman, run) as attached:
        end = told(await attached.end())
    await all_say(site, run, end)


@pytest.mark.exhaustive
async def test_one_that_waited_in_the_queue(site: Site, mark: str) -> None:
    worker = site.worker("--max-runs", "1")
    steersman = await site.steersman()
    await worker.ready()
    busy = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    await phase(steersman, busy, "running")
    run = await steersman.start(site.process("true"))

    async def claimed() -> bool:
        return (await steersman.state(run)).host is not None

    await until(claimed)
    await terminate(site, run)

    ends = []
    for _ in range(2):
        async with following(steersman, run) as attached:
            ends.append(await attached.end())
    (end,) = ends[0]
    assert ends[0] == ends[1]
    assert isinstance(end, CancelledEvent)
    assert (end.seq, end.terminated, end.reason) == (1, True, "enough")
    for report in (end.stop_report, (await steersman.state(run)).stop_report):
        assert report is not None
        assert (report.outcome, report.phase, report.processes) == ("stopped", "queued", 0)
    await steersman.stop(busy)


async def test_one_that_nobody_had_seen(site: Site) -> None:
    steersman = await site.steersman()
    run = await steersman.start(site.process("true"))
    await terminate(site, run)
    await site.worker().ready()

    first, second = [event async for event in steersman.attach(run)], await steersman.events(run)

    assert first == second
    (end,) = first
    assert isinstance(end, CancelledEvent)
    assert (end.seq, end.terminated, end.reason) == (1, True, "enough")
    assert end.stop_report is not None
    assert (end.stop_report.outcome, end.stop_report.processes) == ("stopped", 0)


@pytest.mark.exhaustive
async def test_temporals_own_timeout_and_a_deleted_run_are_told_alike(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    late = new_run_id()
    request = json.dumps(shared.process(*python(OBEDIENT), mark=f"{mark}-late"))
    start = ("--type", RUN_WORKFLOW, "--task-queue", TASK_QUEUE, "--workflow-id", late, "--input", request)
    await shared.temporal("workflow", "start", *start, "--execution-timeout", "4s")
    deleted = await steersman.start(shared.process(*python(OBEDIENT), mark=f"{mark}-deleted"))
    await phase(steersman, deleted, "running")
    async with following(steersman, late) as timing, following(steersman, deleted) as losing:
        await losing.until(lambda event: event.type == "message")
        await shared.temporal("workflow", "delete", "--workflow-id", deleted, "--yes")
        lost = await losing.end()
        timed = await timing.end()
    await gone(mark)

    for events in (lost, timed):
        assert in_order(events)
    assert isinstance(timed[-1], FailedEvent)
    assert timed[-1].error == "RunTimedOut"
    assert isinstance(lost[-1], CancelledEvent)
    assert (lost[-1].terminated, lost[-1].reason) == (True, "the workflow was deleted from Temporal")
    for last in (lost[-1], timed[-1]):
        assert last.stop_report is not None
        assert (last.stop_report.outcome, last.stop_report.left) == ("stopped", ())
    state = await steersman.state(late)
    assert (state.phase, state.closed_as, state.stop_report) == ("closed", "timed_out", timed[-1].stop_report)
    with pytest.raises(RunTimedOut):
        await steersman.result(late)
    with pytest.raises(RunNotFound):
        await steersman.result(deleted)


async def test_termination_of_one_run_leaves_the_others_alone(shared: Site, steersman: Steersman, mark: str) -> None:
    other = await steersman.start(shared.process(*python(OBEDIENT), mark=f"{mark}-other"))
    run = await steersman.start(shared.process(*python(OBEDIENT), mark=f"{mark}-gone"))
    for each in (other, run):
        await phase(steersman, each, "running")
    await terminate(shared, run)
    await gone(f"{mark}-gone")

    assert marked(f"{mark}-other")
    assert (await steersman.stop(other)).outcome == "stopped"


async def test_who_takes_its_id_at_once_does_not_keep_its_agent_at_work(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    run = await steersman.start(shared.process(*python(OBEDIENT), mark=f"{mark}-first"))
    await phase(steersman, run, "running")

    await steersman.temporal.start_workflow(
        RUN_WORKFLOW,
        shared.process(*python(OBEDIENT), mark=f"{mark}-second"),
        id=run,
        task_queue=TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
    )

    await gone(f"{mark}-first")
    await phase(steersman, run, "running")
    assert marked(f"{mark}-second")
    await steersman.stop(run)


AGAIN = """
import os, time
if os.path.exists("first"):
    try:
        os.kill(int(open("first").read()), 0)
    except ProcessLookupError:
        print("alone")
else:
    with open("first.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("first.new", "first")
    time.sleep(600)
"""
"""Never ends the first time; the second time it says whether it is alone."""


async def begin_twice(site: Site, mark: str) -> tuple[str, "asyncio.Task[JsonObject]"]:
    """A run that Temporal lets begin again after its timeout, once its agent is at work; and its result."""
    steersman, run, workspace = await site.steersman(), new_run_id(), site.workspace()
    handle = await steersman.temporal.start_workflow(
        RUN_WORKFLOW,
        site.process(*python(AGAIN), mark=mark, workspace=workspace),
        id=run,
        task_queue=TASK_QUEUE,
        run_timeout=timedelta(seconds=6),
        retry_policy=RetryPolicy(maximum_attempts=10, initial_interval=timedelta(seconds=1)),
    )
    await until((workspace / "first").exists)
    return run, asyncio.create_task(handle.result())


async def test_a_run_that_temporal_begins_again_has_an_agent_of_its_own(shared: Site, mark: str) -> None:
    _, second = await begin_twice(shared, mark)

    assert (await asyncio.wait_for(second, 60))["text"] == "alone"


@pytest.mark.exhaustive
async def test_so_has_one_whose_worker_was_gone_at_its_timeout(site: Site, mark: str) -> None:
    worker = site.worker()
    await worker.ready()
    run, second = await begin_twice(site, mark)
    worker.kill()
    handle = (await site.steersman()).temporal.get_workflow_handle(run)
    (first,) = (path.name for path in (site.state / "runs" / run).iterdir())

    async def timed_out() -> bool:
        return (await handle.describe()).run_id != first

    await until(timed_out)
    await site.worker().ready()

    assert (await asyncio.wait_for(second, 60))["text"] == "alone"


COUNTING = """
import sys, time
for number in range(1, 10_000):
    print(f"line {number}", flush=True)
    with open("said", "a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.05)
"""
"""Writes down what it has said."""


@pytest.mark.exhaustive
async def test_what_was_said_while_nobody_led_it_is_in_the_log(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    workspace = site.workspace()
    said = workspace / "said"
    run = await steersman.start(site.process(*python(COUNTING), workspace=workspace, mark=mark))
    await phase(steersman, run, "running")
    await until(said.exists)
    worker.kill()
    before = len(said.read_text().split())
    await until(lambda: len(said.read_text().split()) > before + 20)

    await terminate(site, run)
    await site.worker().ready()
    await gone(mark)

    async with following(steersman, run) as attached:
        events = await attached.end()
    told(events)
    lines = [event.text for event in events if event.type == "message"]
    noted = len(said.read_text().split())
    assert lines[:noted] == [f"line {number}" for number in range(1, noted + 1)]
    assert len(lines) <= noted + 1


async def test_a_journal_that_cannot_be_read_keeps_no_run_from_its_end(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    runs = [await steersman.start(site.process("sleep", "600", mark=mark)) for _ in range(3)]
    for run in runs:
        await phase(steersman, run, "running")
    worker.kill()
    for run, spoilt in zip(runs, (b"\0" * 64, b"1 0 exit 2 -\n{}\n"), strict=False):
        (journal,) = (site.state / "runs" / run).glob("*/attempts/1/journal")
        with journal.open("ab") as file:
            file.write(spoilt)
    await asyncio.gather(*(terminate(site, run) for run in runs))

    await site.worker().ready()

    await gone(mark)
    for run in runs:
        async with following(steersman, run) as attached:
            assert (await attached.end())[-1].type == "cancelled"
