"""Following a run while servers and workers come and go."""

import asyncio
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest

from steersman.client import Steersman
from steersman.contracts import names
from steersman.errors import NoWorker, RunCancelled
from tests.client.fake_host import FakeHost, init, said, succeeded
from tests.support.temporal import DevServer, Namespace, connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class Following:
    """A run's events, as they come."""

    def __init__(self, steersman: Steersman, run: str) -> None:
        self.seen: list[tuple[int, str]] = []
        self.task = asyncio.create_task(self._follow(steersman, run))

    async def _follow(self, steersman: Steersman, run: str) -> None:
        async for event in steersman.attach(run):
            self.seen.append((event.seq, event.type))

    async def until(self, number: int) -> None:
        async with asyncio.timeout(60):
            while len(self.seen) < number:
                if self.task.done():
                    await self.task
                await asyncio.sleep(0.02)


def ask(workspace: str) -> dict[str, Any]:
    return {"agent": "claude", "prompt": "go", "workspace": {"path": workspace}}


async def test_the_host_has_another_worker_now(steersman: Steersman, workspace: str) -> None:
    first = FakeHost(steersman.temporal, "moving")
    async with first.at_work():
        run = await steersman.start(ask(workspace))
        following = Following(steersman, run)
        first.show(run, init(), said("one"))
        await following.until(2)
    second = FakeHost(steersman.temporal, "moving")
    second.fake_runs = first.fake_runs
    second.show(run, said("two"))
    async with second.at_work():
        await following.until(3)
        second.finish(run, succeeded())
        await asyncio.wait_for(following.task, 60)
    assert following.seen == [(1, "init"), (2, "message"), (3, "message"), (4, "done")]


@pytest.mark.exhaustive
async def test_the_server_is_killed_and_comes_back(tmp_path: Path, workspace: str) -> None:
    server = DevServer(tmp_path).start()
    try:
        steersman = Steersman(await connect(server.address))
        async with FakeHost(steersman.temporal).at_work() as fake_host:
            run = await steersman.start(ask(workspace))
            following = Following(steersman, run)
            fake_host.show(run, init(), said("one"))
            await following.until(2)
            server.kill()
            fake_host.show(run, said("two"))
            server.start()
            await following.until(3)
            fake_host.finish(run, succeeded())
            await asyncio.wait_for(following.task, 60)
            assert (await steersman.result(run)).text == "done"
        assert following.seen == [(1, "init"), (2, "message"), (3, "message"), (4, "done")]
    finally:
        server.close()


@pytest.mark.exhaustive
async def test_a_worker_that_died_with_the_task_is_waited_out(steersman: Steersman, workspace: str) -> None:
    """The server gives the task to nobody else before its time is up; that is no want of workers."""
    run = f"run-{uuid.uuid4()}"
    temporal, patience = steersman.temporal, timedelta(seconds=8)
    await temporal.start_workflow(
        names.RUN_WORKFLOW, ask(workspace), id=run, task_queue=names.TASK_QUEUE, task_timeout=patience
    )
    poll = PollWorkflowTaskQueueRequest(namespace=temporal.namespace, task_queue=TaskQueue(name=names.TASK_QUEUE))
    while (await temporal.workflow_service.poll_workflow_task_queue(poll)).workflow_execution.workflow_id != run:
        pass
    asked = asyncio.create_task(steersman.state(run))
    async with FakeHost(temporal).at_work() as fake_host:
        assert (await asked).phase in ("queued", "running")
        fake_host.show(run, init())
        fake_host.finish(run, succeeded())
        assert (await steersman.result(run)).text == "done"


@pytest.mark.exhaustive
async def test_a_server_that_remembers_no_worker_has_none(tmp_path: Path, workspace: str) -> None:
    server = DevServer(tmp_path, ('matching.queryPollerUnavailableWindow="1s"',)).start()
    try:
        steersman = Steersman(await connect(server.address))
        run = await steersman.start(ask(workspace))
        with pytest.raises(NoWorker, match="'steersman'"):
            await steersman.state(run)
    finally:
        server.close()


async def test_no_worker_is_said_by_name(steersman: Steersman, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    questions = steersman.state(run), steersman.stop(run)
    answers = await asyncio.gather(*questions, return_exceptions=True)
    assert [type(each) for each in answers] == [NoWorker] * 2
    assert "'steersman'" in str(answers[0])
    await steersman.temporal.get_workflow_handle(run).terminate()


async def test_many_that_ask_at_once_are_all_told_that_no_worker_is_there(steersman: Steersman, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    answers = await asyncio.gather(*(steersman.state(run) for _ in range(40)), return_exceptions=True)
    assert {type(each) for each in answers} == {NoWorker}
    await steersman.temporal.get_workflow_handle(run).terminate()


async def test_a_loop_that_is_stopped_without_a_worker_stops_once_one_is_there(
    steersman: Steersman, workspace: str
) -> None:
    request = {"run": {"agent": "claude", "workspace": {"path": workspace}}, "plan": "p"}
    loop = await steersman.loops.start({**request, "done": {"verify": {"command": "true"}}})
    with pytest.raises(NoWorker, match="'steersman'"):
        await steersman.loops.stop(loop, reason="enough")
    events = [each async for each in steersman.temporal.get_workflow_handle(loop).fetch_history_events()]
    asked = [each for each in events if each.HasField("workflow_execution_cancel_requested_event_attributes")]
    assert [each.workflow_execution_cancel_requested_event_attributes.cause for each in asked] == ["enough"]
    await steersman.temporal.get_workflow_handle(loop).terminate()


async def test_what_is_said_while_no_worker_is_there_waits_for_one(steersman: Steersman, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    began = time.monotonic()
    receipt = await steersman.steer(run, "are you there?", id="early")
    assert time.monotonic() - began < 30  # a worker might come in an hour
    assert (receipt.id, receipt.state) == ("early", "queued")
    assert "no worker answers" in (receipt.how or "")
    async with FakeHost(steersman.temporal).at_work() as fake_host:
        await fake_host.fake_run(run).started.wait()
        receipt = await steersman.steer(run, "are you there?", id="early")
        assert (receipt.id, receipt.state) == ("early", "acknowledged")
        assert [each.text for each in fake_host.fake_run(run).messages] == ["are you there?"]
        fake_host.finish(run, succeeded())
        await steersman.result(run)


async def test_the_reason_of_a_cancel_is_known_without_a_worker(client_namespace: Namespace, workspace: str) -> None:
    steersman = Steersman(await client_namespace.connect())
    async with FakeHost(steersman.temporal, "left").at_work() as fake_host:
        run = await steersman.start(ask(workspace))
        await fake_host.fake_run(run).started.wait()
        await steersman.stop(run, reason="that is all")
    with pytest.raises(RunCancelled, match="that is all") as ended:
        await steersman.result(run)
    assert ended.value.reason == "that is all"
    assert ended.value.stop_report is None
