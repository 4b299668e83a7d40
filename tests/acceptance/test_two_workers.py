"""Two workers on one machine share its runs; one dies and the other has them all. No workspace ever sees two agents."""

import asyncio
from collections import Counter

from steersman.client import Steersman
from tests.acceptance.programs import DEAF, OBEDIENT, STUBBORN, python
from tests.acceptance.site import Site, following, gone, in_order, phase
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import marked, until


async def queue_of(steersman: Steersman, run: str) -> str:
    handle = (await steersman.state(run)).handle
    return handle.worker_queue if handle else ""


async def test_they_share_and_take_over(site: Site, mark: str) -> None:
    first, second = site.worker("--max-runs", "3"), site.worker("--max-runs", "3")
    steersman = await site.steersman()
    await asyncio.gather(first.ready(), second.ready())
    runs = [await steersman.start(site.process(*python(OBEDIENT), mark=mark)) for _ in range(6)]
    for run in runs:
        await phase(steersman, run, "running")
    queues = {run: await queue_of(steersman, run) for run in runs}
    assert sorted(Counter(queues.values()).values()) == [3, 3]
    agents = set(marked(mark))

    first.kill()
    orphans = [run for run in runs if f":{first.pid}-" in queues[run]]
    others = [run for run in runs if run not in orphans]
    assert len(orphans) == 3

    # Whoever asks, and whatever is asked, the living one answers for both.
    report = await steersman.stop(orphans[0])
    assert (report.outcome, report.how) == ("stopped", "terminated")
    assert len(marked(mark)) == len(agents) - 1
    for run in others:
        assert (await steersman.stop(run)).outcome == "stopped"

    async def taken_over() -> bool:
        return all([f":{second.pid}-" in await queue_of(steersman, run) for run in orphans[1:]])

    await until(taken_over, 30)
    assert set(marked(mark)) < agents
    for run in orphans[1:]:
        assert (await steersman.stop(run)).outcome == "stopped"
    assert not marked(mark)


async def test_a_stop_right_after_a_workers_death_is_the_other_ones_to_carry_out(site: Site, mark: str) -> None:
    first = site.worker()
    steersman = await site.steersman()
    await first.ready()
    run = await steersman.start(site.process(*python(STUBBORN), mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
        await site.worker().ready()
        first.kill()

        stopping = asyncio.create_task(steersman.stop(run))
        # A task that Temporal handed to the dead worker in its last moment is handed out anew after 10 s.
        await gone(mark, 15)
        report = await stopping

        assert (report.outcome, report.how) == ("stopped", "killed")
        assert report.processes >= 4
        assert in_order(await attached.end())


async def test_a_cancel_that_no_worker_heard_is_carried_out_by_the_next(site: Site, mark: str) -> None:
    first = site.worker()
    steersman = await site.steersman()
    await first.ready()
    run = await steersman.start(site.process(*python(STUBBORN), mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
        first.kill()
        await site.temporal("workflow", "cancel", "--workflow-id", run)
        assert marked(mark)

        await site.worker().ready()
        await gone(mark, 8)
        events = await attached.end()

    assert in_order(events)
    assert events[-1].type == "cancelled"
    report = (await steersman.state(run)).stop_report
    assert report is not None
    assert (report.outcome, report.phase, report.how) == ("stopped", "running", "killed")


async def test_a_reset_run_goes_on_with_its_agent(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("reset", hold("thinking", after=" and done"), tool("Bash", command="true"), say("more"))
    run = await steersman.start(shared.claude(script, mark=mark))
    await script.wait_held()
    await phase(steersman, run, "running")
    most = 0
    before = await steersman.temporal.get_workflow_handle(run).describe()

    def count() -> bool:
        nonlocal most
        most = max(most, sum("stream-json" in line for line in marked(mark).values()))
        return False

    async def sample() -> None:
        await until(count, 120)

    sampling = asyncio.create_task(sample())
    reset = ("workflow", "reset", "--workflow-id", run, "--type", "FirstWorkflowTask", "--reason", "again")
    await shared.temporal(*reset)

    async def led_again() -> bool:
        description = await steersman.temporal.get_workflow_handle(run).describe()
        state = await steersman.state(run)
        return description.run_id != before.run_id and state.phase == "running"

    await until(led_again, 40)
    await script.release()
    result = await asyncio.wait_for(steersman.result(run), 40)
    sampling.cancel()

    assert most == 1
    assert result.text == "thinking and done"
    assert result.attempts == 1
    assert len(script.requests) == 1
    events = await steersman.events(run)
    assert in_order(events)
    assert events[-1].type == "done"
    await gone(mark)


async def test_a_worker_killed_in_the_middle_of_a_stop(site: Site, mark: str) -> None:
    first = site.worker()
    steersman = await site.steersman()
    await first.ready()
    slow = {"terminate_after_s": 0, "kill_after_s": 3}
    run = await steersman.start(site.process(*python(DEAF), mark=mark, stop=slow))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "ready")
        await site.temporal("workflow", "cancel", "--workflow-id", run)
        await attached.until(lambda e: e.type == "message" and e.text == "heard")
        first.kill()
        await site.worker().ready()

        # The shim climbs its ladder with nobody there, and says later what it did.
        await gone(mark, 5)
        events = await attached.end(30)

    assert in_order(events)
    assert events[-1].type == "cancelled"
    report = (await steersman.state(run)).stop_report
    assert report is not None
    assert (report.outcome, report.phase, report.how) == ("stopped", "running", "killed")
