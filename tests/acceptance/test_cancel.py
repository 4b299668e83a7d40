"""A cancelled run: nothing of the agent is left, and the run says how that was reached."""

import asyncio

import pytest

from steersman.client import Steersman
from steersman.errors import RunCancelled
from steersman.ids import new_run_id
from steersman.reports import StopResult
from tests.acceptance.programs import FLOOD, OBEDIENT, PIPES_HELD, STUBBORN, python
from tests.acceptance.site import Site, following, gone, in_order, phase
from tests.scripted_model import ScriptedModel, hold, tool
from tests.support.processes import marked, until

SLEEP_IN_TOOL = tool("Bash", command="python3 -c 'import time; time.sleep(60)'", description="wait")


async def stop(steersman: Steersman, run: str, mark: str) -> StopResult:
    """Stop a run; when it is said to be stopped, nothing of it is left."""
    report = await steersman.stop(run)
    assert not marked(mark)
    return report


async def is_ready(steersman: Steersman, run: str) -> None:
    """Wait until the program has said that it is all there."""
    async with following(steersman, run) as attached:
        await attached.until(lambda event: event.type == "message" and event.text.startswith("ready"))


async def closed_as_cancelled(steersman: Steersman, run: str) -> None:
    """The workflow is Canceled, its state answers, and its events end with one `cancelled`."""
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    description = await steersman.temporal.get_workflow_handle(run).describe()
    assert description.status is not None
    assert description.status.name == "CANCELED"
    assert (await steersman.state(run)).phase == "closed"
    async with following(steersman, run) as attached:
        events = await attached.end()
    assert events[-1].type == "cancelled"
    assert in_order(events)


@pytest.mark.exhaustive
async def test_claude_is_stopped_while_it_streams(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("streaming", hold("thinking about it"))
    run = await steersman.start(shared.claude(script, mark=mark))
    await script.wait_held()
    await phase(steersman, run, "running")

    report = await stop(steersman, run, mark)

    assert (report.outcome, report.phase, report.how, report.left) == ("stopped", "running", "terminated", ())
    assert report.processes >= 1
    kept = (await steersman.state(run)).stop_report
    assert kept is not None
    assert StopResult.of(run, kept) == report
    await closed_as_cancelled(steersman, run)


@pytest.mark.exhaustive
async def test_claude_is_stopped_in_a_tool(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    script = model.script("tool", SLEEP_IN_TOOL)
    run = await steersman.start(shared.claude(script, mark=mark, permissions={"mode": "full"}))
    await until(lambda: any("time.sleep(60)" in arguments for arguments in marked(mark).values()))
    await phase(steersman, run, "running")

    report = await stop(steersman, run, mark)

    assert (report.outcome, report.how) == ("stopped", "terminated")
    assert report.processes >= 2
    await closed_as_cancelled(steersman, run)


@pytest.mark.parametrize(
    ("program", "how", "at_least"),
    [(OBEDIENT, "terminated", 1), (STUBBORN, "killed", 4), (PIPES_HELD, "killed", 2)],
    ids=["obedient", "stubborn", "pipes_held"],
)
async def test_any_program_is_stopped(
    shared: Site, steersman: Steersman, mark: str, program: str, how: str, at_least: int
) -> None:
    run = await steersman.start(shared.process(*python(program), mark=mark))
    await is_ready(steersman, run)
    assert len(marked(mark)) >= at_least

    report = await stop(steersman, run, mark)

    assert (report.outcome, report.phase, report.how) == ("stopped", "running", how)
    assert report.processes >= at_least
    assert how == "terminated" or report.took_ms > 1000  # SIGKILL comes 1.5 s after a SIGTERM that is ignored
    await closed_as_cancelled(steersman, run)


async def test_a_program_that_floods_is_stopped(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(FLOOD), mark=mark))
    await is_ready(steersman, run)

    report = await stop(steersman, run, mark)

    assert (report.outcome, report.how) == ("stopped", "terminated")
    last = (await steersman.state(run)).last_event
    assert last is not None
    async with following(steersman, run, after=last.seq) as attached:
        events = await attached.end()
    assert [event.type for event in events].count("cancelled") == 1
    assert events[-1].type == "cancelled"


@pytest.mark.exhaustive
async def test_cancel_of_the_temporal_cli_is_the_same_thing(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(STUBBORN), mark=mark))
    await is_ready(steersman, run)

    await shared.temporal("workflow", "cancel", "--workflow-id", run)

    await closed_as_cancelled(steersman, run)
    assert not marked(mark)
    report = (await steersman.state(run)).stop_report
    assert report is not None
    assert (report.outcome, report.phase, report.how) == ("stopped", "running", "killed")
    assert report.processes >= 4


@pytest.mark.exhaustive
async def test_the_stop_times_are_the_requests(shared: Site, steersman: Steersman, mark: str) -> None:
    stop = {"terminate_after_s": 0, "kill_after_s": 2.5}
    run = await steersman.start(shared.process(*python(STUBBORN), mark=mark, stop=stop))
    await is_ready(steersman, run)

    report = await steersman.stop(run)

    assert report.how == "killed"
    assert report.took_ms > 2000
    assert not marked(mark)


async def test_a_run_cancelled_right_after_its_start_leaves_nothing(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    async def start_and_stop(number: int) -> None:
        run = await steersman.start(shared.process(*python(STUBBORN), mark=mark))
        # Every moment of a start is hit: before the claim, in the claim, in the queue, while the shim starts, after.
        await asyncio.sleep(number * 0.02)
        report = await steersman.stop(run)
        assert report.outcome == "stopped"
        await closed_as_cancelled(steersman, run)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(start_and_stop(number))

    await gone(mark)


@pytest.mark.exhaustive
async def test_stopping_twice_at_once_and_after_the_end(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(STUBBORN), mark=mark))
    await is_ready(steersman, run)

    first, second = await asyncio.gather(steersman.stop(run), steersman.stop(run))
    third = await steersman.stop(run)

    assert {first.outcome, second.outcome} <= {"stopped", "already_finished"}
    assert "stopped" in {first.outcome, second.outcome}
    assert third.outcome == "already_finished"
    assert not marked(mark)
    await closed_as_cancelled(steersman, run)


async def test_stop_of_a_run_that_ended_or_never_was(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process("true"))
    await steersman.result(run)

    assert (await steersman.stop(run)).outcome == "already_finished"
    assert (await steersman.stop(new_run_id())).outcome == "not_found"
    assert (await steersman.state(run)).stop_report is None


@pytest.mark.exhaustive
async def test_a_queued_run_is_cancelled_before_anything_starts(site: Site, mark: str) -> None:
    worker = site.worker("--max-runs", "1")
    steersman = await site.steersman()
    await worker.ready()
    first = await steersman.start(site.process(*python(OBEDIENT)))
    await is_ready(steersman, first)
    started = site.workspace() / "started"
    second = await steersman.start(site.process("touch", str(started), mark=mark))
    await until(lambda: queued(steersman, second))

    report = await steersman.stop(second)

    assert (report.outcome, report.phase, report.processes) == ("stopped", "queued", 0)
    await closed_as_cancelled(steersman, second)
    await steersman.stop(first)
    assert not started.exists()
    third = await steersman.run(site.process("echo", "the slot is free again"))
    assert third.text == "the slot is free again"


async def queued(steersman: Steersman, run: str) -> bool:
    state = await steersman.state(run)
    return state.phase == "queued" and state.host is not None
