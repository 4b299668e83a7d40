"""A run that is reset after it has closed begins anew: with a session of its own, whatever became of it before."""

import asyncio
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import ActivityFailureError, WorkflowExecutionStatus
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from activities.ports.runtime import CLEANUP
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.activities import RunAgentInput, RunKey
from steersman.contracts.errors import AgentFailed, RunError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import StopReport
from steersman.errors import RunCancelled
from tests.acceptance.site import Site, following, in_order, leader
from tests.acceptance.test_resume import handle_of, written_down
from tests.scripted_model import Script, ScriptedModel, hold, say
from tests.support.processes import marked, until
from tests.support.workers import WorkerProcess


async def reset(site: Site, run: str, *options: str) -> None:
    """As the Web UI's Reset to the first workflow task, which is the same call."""
    kind = ("--type", "FirstWorkflowTask")
    await site.temporal("workflow", "reset", "--workflow-id", run, *kind, "--reason", "again", *options)


async def completed(steersman: Steersman, run: str, script: Script) -> None:
    await script.wait_held()
    await script.release()
    await steersman.result(run)


async def failed(steersman: Steersman, run: str, script: Script) -> None:
    with pytest.raises(RunError):
        await steersman.result(run)


async def cancelled(steersman: Steersman, run: str, script: Script) -> None:
    await script.wait_held()
    assert (await steersman.stop(run)).outcome == "stopped"
    with pytest.raises(RunCancelled):
        await steersman.result(run)


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", [completed, failed, cancelled])
async def test_a_closed_run_begins_anew_with_a_session_of_its_own(
    shared: Site, steersman: Steersman, model: ScriptedModel, end: type
) -> None:
    script = model.script(end.__name__, hold("the first answer"), say("the second answer"))
    limits = {"idle_s": 8} if end is failed else {}
    run = await steersman.start(shared.claude(script, prompt="build the thing", limits=limits))
    await end(steersman, run, script)
    before = [event.session_id for event in await steersman.events(run) if event.type == "init"]

    await reset(shared, run)
    result = await steersman.result(run)

    assert (result.status, result.text, result.attempts) == ("succeeded", "the second answer", 1)
    assert script.requests[-1].saw("build the thing")
    assert not script.requests[-1].saw("the first answer")
    events = await steersman.events(run)
    assert in_order(events)
    after = [event.session_id for event in events if event.type == "init"]
    assert len(after) == 1
    assert after[0] not in before


@pytest.mark.exhaustive
async def test_a_new_beginning_is_taken_over_and_resumed_as_any_run(site: Site, model: ScriptedModel) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    steps = (say("before"), hold("thinking", after=" on"), hold("again"), say("finished"))
    script = model.script("anew", *steps)
    run = await steersman.start(site.claude(script, prompt="build the thing"))
    await steersman.result(run)
    (before,) = [event.session_id for event in await steersman.events(run) if event.type == "init"]

    await reset(site, run)
    await script.wait_held()
    worker.kill()
    await site.worker().ready()

    async def taken_over() -> bool:
        return await leader(steersman, run) not in (None, worker.pid)

    await until(taken_over, 40)

    async def delivered() -> bool:  # the worker that was killed may have had a workflow task, for 10 s
        return (await steersman.steer(run, "look left", id="left")).state in ("delivered", "acknowledged")

    await until(delivered, 40)
    async with following(steersman, run) as attached:
        await script.release()
        await script.wait_requests(3)
        await script.wait_held()
        await until(lambda: written_down(site, "look left"))
        os.kill((await handle_of(steersman, run)).pid, signal.SIGKILL)
        result = await steersman.result(run)
        events = await attached.end()

    assert (result.text, result.attempts) == ("finished", 2)
    sessions = {event.session_id for event in events if event.type == "init"}
    assert sessions == {result.session_id}
    assert before not in sessions
    assert in_order(events)
    assert sum(text.count("build the thing") for text in script.requests[-1].texts) == 1
    assert sum(text.count("look left") for text in script.requests[-1].texts) == 1


async def test_a_run_that_went_on_with_a_session_goes_on_with_it_again(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("again", say("one"), say("two"), say("three"))
    workspace = shared.workspace()
    began = await steersman.run(shared.claude(script, prompt="first", workspace=workspace))
    request = shared.claude(script, prompt="second", workspace=workspace, session=began.session_id)
    run = await steersman.start(request)
    assert (await steersman.result(run)).text == "two"

    await reset(shared, run)
    result = await steersman.result(run)

    # The same words, and the agent takes them for new ones.
    assert (result.text, result.session_id) == ("three", began.session_id)
    assert sum(text.count("second") for text in script.requests[-1].texts) == 2


@pytest.mark.exhaustive
async def test_a_run_whose_agent_was_stopped_before_its_end_was_written_begins_anew(site: Site) -> None:
    """As where a worker has stopped the agent of a run that closed, and dies or hears of the reset before it could say
    so.
    """
    worker, workspace = site.worker(), site.workspace()
    steersman = await site.steersman()
    await worker.ready()
    command = ("sh", "-c", "echo x >> starts; test $(wc -l < starts) = 2 || exec sleep 600; echo the second")
    run = await steersman.start(site.process(*command, workspace=workspace))
    await until((workspace / "starts").exists)
    worker.kill()
    await steersman.temporal.get_workflow_handle(run).terminate("enough")
    report = await stop_as_a_worker(site, run)
    assert report.outcome == "stopped"

    await reset(site, run)
    await site.worker().ready()
    result = await steersman.result(run)

    assert (result.text, result.attempts) == ("the second", 1)
    assert (workspace / "starts").read_text() == "x\nx\n"
    assert in_order(await steersman.events(run))
    await until(lambda: not marked(run))


async def test_a_run_whose_agent_stops_itself_is_begun_anew_once(site: Site) -> None:
    """An agent has the rights to stop its own shim: that is no reason to begin its work again and again."""
    await site.worker().ready()
    steersman, workspace = await site.steersman(), site.workspace()
    run = await steersman.start(site.process("sh", "-c", "echo x >> starts; exec sleep 600", workspace=workspace))
    await until((workspace / "starts").exists)
    await reset(site, run)

    await stop_as_a_worker(site, run)
    await until(lambda: (workspace / "starts").read_text() == "x\nx\n")
    await stop_as_a_worker(site, run)

    with pytest.raises(AgentFailed, match="stopped, and not by this run"):
        await steersman.result(run)
    assert (workspace / "starts").read_text() == "x\nx\n"


async def test_a_run_that_is_cancelled_after_its_reset_stays_so(shared: Site, steersman: Steersman, mark: str) -> None:
    workspace = shared.workspace()
    request = shared.process("sh", "-c", "echo x >> starts; exec sleep 600", workspace=workspace, mark=mark)
    run = await steersman.start(request)
    await until((workspace / "starts").exists)
    await reset(shared, run)
    await until(lambda: leader(steersman, run))
    described = await steersman.temporal.get_workflow_handle(run).describe()
    assert described.status == WorkflowExecutionStatus.RUNNING

    assert (await steersman.stop(run)).outcome == "stopped"

    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert (workspace / "starts").read_text() == "x\n"
    assert not marked(mark)
    assert in_order(await steersman.events(run))


@pytest.mark.exhaustive
async def test_a_run_that_a_person_ends_right_after_its_reset_leaves_no_agent_behind(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    """Its new execution has had no process started, and that of the one before is at work."""
    worker, steersman, script = site.worker(), await site.steersman(), model.script("held", hold())
    await worker.ready()
    run = await steersman.start(site.claude(script, mark=mark))
    await script.wait_held()
    worker.freeze()
    await reset(site, run, "--reapply-exclude", "Signal")  # so it does not even know of its agent's start
    end = {"id": "enough", "end": True, "reason": "enough"}
    await steersman.temporal.get_workflow_handle(run).signal(names.INTERRUPT, end)

    worker.thaw()
    result = await steersman.result(run)
    left = marked(mark)

    assert not left
    assert result.stop_reason == "interrupted"
    assert result.stop_report is not None
    assert (result.stop_report.outcome, result.stop_report.reason) == ("stopped", "enough")
    assert result.stop_report.processes > 0
    assert in_order(await steersman.events(run))


async def test_a_cancel_right_after_a_reset_finds_the_agent_of_before(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    """Before the run's new execution knows which host has it."""
    workspace = shared.workspace()
    request = shared.process("sh", "-c", "echo x >> starts; exec sleep 600", workspace=workspace, mark=mark)
    run = await steersman.start(request)
    await until((workspace / "starts").exists)
    await reset(shared, run)
    handle = steersman.temporal.get_workflow_handle(run)
    await handle.cancel()

    with pytest.raises(RunCancelled):
        await steersman.result(run)
    left = marked(mark)

    report = (await steersman.state(run)).stop_report
    assert not left
    assert report
    assert report.outcome == "stopped"
    assert (workspace / "starts").read_text() == "x\n"


async def stop_as_a_worker(site: Site, run: str) -> StopReport:
    """Stop the run's agent, and write nothing down."""
    (meta,) = [each for each in (site.state / "runs" / run).glob("*/run.json") if "." not in each.parent.name]
    facts = json.loads(meta.read_text())
    store = RunStore(site.state, Ownership(facts["cluster"], facts["namespace"]))
    key = RunKey(run=facts["run"], execution=facts["execution"])
    return await ShimRuntime(store, "host").stop(key, CLEANUP, "the run was terminated")


async def test_an_attempt_that_the_server_does_not_count_on_begins_nothing_anew(
    shared: Site, steersman: Steersman
) -> None:
    """As one that a reset of the activity began in the moment of the run's end."""
    workspace = shared.workspace()
    request = shared.process("sh", "-c", "echo x >> starts", workspace=workspace)
    run = await steersman.start(request)
    await steersman.result(run)
    events = await steersman.events(run)
    state = await steersman.state(run)
    assert state.host
    assert state.execution
    late = RunAgentInput(
        key=RunKey(run=run, execution=state.execution), request=RunRequest.model_validate(request), store=state.store
    )

    with pytest.raises(ActivityFailureError) as failure:
        await steersman.temporal.execute_activity(
            names.RUN_AGENT,
            late,
            id=f"late-{run}",
            task_queue=names.runs_queue(state.host),
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )

    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.message == "the run has ended"
    assert (workspace / "starts").read_text() == "x\n"
    assert await steersman.events(run) == events


async def test_a_worker_that_is_killed_as_a_run_begins_anew_loses_nothing(site: Site) -> None:
    """What the workflow was told of the beginning before, which a reset keeps, is no word of the new one."""
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    run = await steersman.start(site.process("sh", "-c", "echo begun >> log; sleep 0.2", workspace=workspace))
    assert (await steersman.result(run)).status == "succeeded"
    await reset(site, run)
    await asyncio.to_thread(_kill_once_set_aside, worker, site.state / "runs" / run)
    await site.worker().ready()
    result = await asyncio.wait_for(steersman.result(run), 60)
    assert (result.status, result.attempts) == ("succeeded", 1)
    assert (workspace / "log").read_text() == "begun\n" * 2


def _kill_once_set_aside(worker: WorkerProcess, directory: Path) -> None:
    until = time.monotonic() + 20
    while not any("." in each.name for each in directory.iterdir()):
        assert time.monotonic() < until, "it did not begin anew"
    worker.kill()
