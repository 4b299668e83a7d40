"""Two workers on one machine share its runs; one dies and the other has them all. No workspace ever sees two agents."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from steersman.client import Steersman
from steersman.contracts import names
from tests.acceptance.programs import DEAF, OBEDIENT, STUBBORN, python
from tests.acceptance.site import Site, answered, claudes, following, gone, in_order, leader, phase, settled
from tests.chaos.programs import counting
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import marked, until


@pytest.mark.exhaustive
async def test_they_share_and_take_over(site: Site, mark: str) -> None:
    first, second = site.worker("--max-runs", "3"), site.worker("--max-runs", "3")
    steersman = await site.steersman()
    await asyncio.gather(first.ready(), second.ready())
    runs = [await steersman.start(site.process(*python(OBEDIENT), mark=mark)) for _ in range(6)]
    for run in runs:
        await phase(steersman, run, "running")
    leaders = {run: await leader(steersman, run) for run in runs}
    assert sorted(Counter(leaders.values()).values()) == [3, 3]
    agents = set(marked(mark))

    first.kill()
    orphans = [run for run in runs if leaders[run] == first.pid]
    others = [run for run in runs if run not in orphans]
    assert len(orphans) == 3

    # Whoever asks, and whatever is asked, the living one answers for both.
    report = await answered(partial(steersman.stop, orphans[0]))
    assert (report.outcome, report.how) == ("stopped", "terminated")
    assert len(marked(mark)) == len(agents) - 1
    for run in others:
        assert (await steersman.stop(run)).outcome == "stopped"

    async def taken_over() -> bool:
        return all([await leader(steersman, run) == second.pid for run in orphans[1:]])

    await until(taken_over, 30)
    assert set(marked(mark)) < agents
    for run in orphans[1:]:
        assert (await steersman.stop(run)).outcome == "stopped"
    assert not marked(mark)


@pytest.mark.exhaustive
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
        await gone(mark, 25)
        report = await stopping

        assert (report.outcome, report.how) == ("stopped", "killed")
        assert report.processes >= 4
        assert in_order(await attached.end())


@pytest.mark.exhaustive
async def test_what_an_agent_said_while_nobody_led_it_is_in_the_log_of_its_stopped_run(site: Site, mark: str) -> None:
    first = site.worker()
    steersman = await site.steersman()
    await first.ready()
    record = site.workspace()
    run = await steersman.start(site.process(*counting(record, 10_000, 0.05), mark=mark))

    def noted() -> int:
        return sum(len(path.read_text().split()) for path in record.glob("said-*"))

    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "line 3")
        second = site.worker()
        await second.ready()
        first.kill()
        before = noted()
        await until(lambda: noted() > before + 20)
        report = await steersman.stop(run)
        events = await attached.end()
    assert report.outcome == "stopped"
    assert in_order(events)
    lines = [event.text for event in events if event.type == "message"][1:]
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    assert noted() <= len(lines) <= noted() + 1


@pytest.mark.exhaustive
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
        await gone(mark, 25)  # a workflow task that was on its way to the killed worker comes again after 10 s
        events = await attached.end()

    assert in_order(events)
    assert events[-1].type == "cancelled"
    report = (await steersman.state(run)).stop_report
    assert report is not None
    assert (report.outcome, report.phase, report.how) == ("stopped", "running", "killed")


@pytest.mark.exhaustive
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
        most = max(most, len(claudes(mark)))
        return False

    async def sample() -> None:
        await until(count, 120)

    sampling = asyncio.create_task(sample())
    reset = ("workflow", "reset", "--workflow-id", run, "--type", "FirstWorkflowTask", "--reason", "again")
    await shared.temporal(*reset)

    async def led_again() -> bool:
        description = await steersman.temporal.get_workflow_handle(run).describe()
        state = await answered(partial(steersman.state, run))
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


@pytest.mark.exhaustive
async def test_who_follows_a_run_and_waits_for_it_does_so_through_a_reset(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("followed", hold("thinking", after=" and done"))
    run = await steersman.start(shared.claude(script))
    await script.wait_held()
    await phase(steersman, run, "running")
    handle = steersman.temporal.get_workflow_handle(run)
    before = (await handle.describe()).run_id
    waiting = asyncio.create_task(steersman.result(run))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
        for kind in ("FirstWorkflowTask", "LastWorkflowTask"):
            await shared.temporal("workflow", "reset", "--workflow-id", run, "--type", kind, "--reason", "again")

            async def led_again(newer_than: str = before) -> bool:
                now = await handle.describe()
                return now.run_id != newer_than and (await answered(partial(steersman.state, run))).phase == "running"

            await until(led_again, 40)
            before = (await handle.describe()).run_id
        await script.release()
        events = await attached.end()
        result = await asyncio.wait_for(waiting, 40)
    assert result.text == "thinking and done"
    assert in_order(events)
    assert events[-1].type == "done"
    assert events == await steersman.events(run)


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

        # The shim stops its agent with nobody there, and says later what it did.
        await gone(mark)
        events = await attached.end(30)

    assert in_order(events)
    assert events[-1].type == "cancelled"
    report = (await steersman.state(run)).stop_report
    assert report is not None
    assert (report.outcome, report.phase, report.how) == ("stopped", "running", "killed")


@pytest.mark.exhaustive
async def test_a_run_that_is_handed_over_again_and_again_costs_no_history(site: Site, mark: str) -> None:
    """Deploys each hour for days: what nobody needs to be told is not told."""
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    await phase(steersman, run, "running")
    before = await told(steersman, run)
    for _ in range(4):
        leaving, worker = worker, site.worker()
        await worker.ready()
        await leaving.terminate()

        async def led(pid: int = worker.pid) -> bool:
            return await leader(steersman, run) == pid

        await until(led, 30)
    assert (await steersman.state(run)).phase == "running"
    assert await told(steersman, run) == before
    assert (await steersman.stop(run)).outcome == "stopped"


async def told(steersman: Steersman, run: str) -> list[tuple[str, str]]:
    """Signals of a session's, but for how far the agent is: those become seldom with the run's age."""
    history = await steersman.temporal.get_workflow_handle(run).fetch_history()
    signals = (event.workflow_execution_signaled_event_attributes for event in history.events)
    return [(each.signal_name, str(each.input)) for each in signals if each.signal_name not in ("", names.PROGRESSED)]


@pytest.mark.exhaustive
async def test_what_is_said_after_a_takeover_that_was_not_told_reaches_the_agent(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    first = site.worker()
    steersman = await site.steersman()
    await first.ready()
    script = model.script("handed-over", hold("thinking", after=" and done"), say("as you say"))
    run = await steersman.start(site.claude(script, mark=mark))
    await script.wait_held()
    await phase(steersman, run, "running")
    second = site.worker()
    await second.ready()
    await first.terminate()

    await until(lambda: second.said("agent_adopted"), 30)
    receipt = await steersman.steer(run, "to whoever leads", id="m")
    assert receipt.id == "m"
    await settled(steersman, run, "m", "delivered", "acknowledged")
    await script.release()
    assert (await asyncio.wait_for(steersman.result(run), 40)).text == "as you say"


async def test_two_machines_with_one_host_name_never_have_two_agents_of_one_run(site: Site, mark: str) -> None:
    """Each has a state directory of its own: what one has begun, the other refuses, retryably and by name."""
    first = site.worker(STEERSMAN_HOST="twin")
    steersman = await site.steersman()
    await first.ready()
    place = site.workspace()
    program = "import time; open('starts', 'a').write('x'); time.sleep(600)"
    run = await steersman.start(site.process(*python(program), mark=mark, workspace=place))
    await until((place / "starts").exists)
    (agent,) = marked(mark)
    second = site.worker("--state-dir", str(site.root / "other"), STEERSMAN_HOST="twin")
    await second.ready()

    async def refused() -> bool:
        description = await steersman.temporal.get_workflow_handle(run).describe()
        pending = description.raw_description.pending_activities
        return any("the run began in store" in each.last_failure.message for each in pending)

    assert await first.terminate() == 0
    await until(refused, 30)
    assert await second.terminate() == 0
    third = site.worker(STEERSMAN_HOST="twin")
    await third.ready()
    async with asyncio.timeout(60):
        while await leader(steersman, run) != third.pid:
            await asyncio.sleep(0.05)
    assert set(marked(mark)) == {agent}
    assert (await steersman.stop(run)).outcome == "stopped"
    assert (place / "starts").read_text() == "x"
