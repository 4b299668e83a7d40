"""A run or a loop that is reset hears again what was said to it, and its new history replays."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import ResetReapplyType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.activities import Claim, Delivered, DeliverInput, MessagesSettled, Settlement, StopInput
from steersman.contracts.run import StopReport
from tests.workflows import loop_client
from tests.workflows.fake_host import (
    QUIET,
    STOPPED,
    FakeHost,
    Run,
    cancelled,
    done,
    found_nothing,
    replays,
    state,
    succeeded,
    until,
)
from tests.workflows.fake_loop_host import HELD, FakeLoopHost

pytestmark = [pytest.mark.integration, QUIET]

FIRST_TASK = 4
"""The event of its completion."""


async def reset(client: Client, run: Run, to: int = FIRST_TASK, *, told: bool = True) -> Run:
    """To its first workflow task, as by the Web UI; the new execution. `told`: it hears again what was said."""
    kind = ResetReapplyType.RESET_REAPPLY_TYPE_ALL_ELIGIBLE if told else ResetReapplyType.RESET_REAPPLY_TYPE_NONE
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id),
            workflow_task_finish_event_id=to,
            reset_reapply_type=kind,
            request_id=f"reset-{run.id}-{to}",
        )
    )
    return client.get_workflow_handle(run.id, run_id=answer.run_id)


async def claimed(run: Run) -> None:
    async def host() -> str | None:
        return (await state(run)).host

    await until(host)


async def settled(run: Run, name: str) -> None:
    words = MessagesSettled(messages=(Settlement(id=name, state="acknowledged", how="mid_turn"),))
    await run.signal(names.MESSAGES_SETTLED, words)


async def talk(fake: FakeHost, run: Run) -> None:
    """Updates and signals by turns, so that what an update found when it came was said after another one."""
    await run.execute_update(names.STEER, {"text": "one", "id": "m-1"})
    await fake.ask(run.id, "a-1")
    await run.execute_update(names.DECIDE, {"id": "a-1", "decision": "allow"})
    await settled(run, "m-1")
    await run.signal(names.STEER, {"text": "two", "id": "m-2"})
    await run.execute_update(names.STEER, {"text": "three", "id": "m-3"})
    await settled(run, "m-2")
    await fake.ask(run.id, "a-2")
    await run.execute_update(names.INTERRUPT, {"text": "four", "id": "m-4"})
    await settled(run, "m-3")
    await run.execute_update(names.DECIDE, {"id": "a-2", "decision": "deny"})
    await settled(run, "m-4")


async def test_a_run_that_was_talked_to_goes_on_after_a_reset(fake: FakeHost) -> None:
    async def take(delivery: DeliverInput) -> Delivered:
        hasty = any(each.kind == "interrupt" for each in delivery.messages)
        messages = tuple(
            Settlement(id=each.id, state="acknowledged" if hasty else "delivered", how="mid_turn")
            for each in delivery.messages
        )
        return Delivered(here=True, messages=messages)

    fake.play_delivery = take  # type: ignore[method-assign]
    async with fake.at_work(cached=0):
        run = await fake.start()
        await until(lambda: fake.runs)
        await talk(fake, run)

        again = await reset(fake.client, run)

        await until(lambda: len(fake.runs) == 2)
        # Nothing is kept in memory between tasks: from here on each replays all that was said.
        receipt = await asyncio.wait_for(again.execute_update(names.STEER, {"text": "five", "id": "m-5"}), 20)
        assert receipt["state"] == "delivered"
        # In the order in which the agent has them, and none twice.
        assert [each.id for each in (await state(again)).messages] == ["m-2", "m-1", "m-3", "m-4", "m-5"]
        fake.ending.set_result(done())
        await succeeded(again)
    await replays(again)


async def test_a_question_that_was_heard_late_between_two_messages_replays_after_a_reset(fake: FakeHost) -> None:
    """Its signal's handler asks for a patch, which is a command; so is the answer of an update that came before it."""
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    async with fake.at_work(cached=0):
        run = await fake.start(limits={"approval_s": 3600})
        await until(lambda: fake.runs)
        await run.execute_update(names.STEER, {"text": "one", "id": "m-1"})
        await fake.ask(run.id, "a-1", since=long_ago)
        await run.execute_update(names.STEER, {"text": "two", "id": "m-2"})

        again = await reset(fake.client, run)

        await until(lambda: len(fake.runs) == 2)
        await asyncio.wait_for(again.execute_update(names.STEER, {"text": "three", "id": "m-3"}), 20)
        fake.ending.set_result(done())
        await succeeded(again)
    await replays(again)


async def test_a_stop_after_a_reset_asks_the_host_though_nothing_was_started_since(fake: FakeHost) -> None:
    """The process of the execution before it may be at work, and the new one was not told of it."""
    async with fake.at_work(runs=False):
        run = await fake.start()
        await claimed(run)
        again = await reset(fake.client, run, told=False)
        await claimed(again)

        await again.cancel()

        closed = await cancelled(again)
        assert [each.reason for each in fake.stops] == ["cancelled"]
        assert closed.stop_report == STOPPED.model_copy(update={"phase": "queued"})
        await replays(again)


async def test_a_stop_after_a_reset_that_finds_nothing_was_before_the_start(fake: FakeHost) -> None:
    async def nothing(stop: StopInput) -> StopReport:
        return StopReport(outcome="already_finished", phase=stop.phase, how="exited")

    fake.play_stop = nothing  # type: ignore[method-assign]
    async with fake.at_work(runs=False):
        run = await fake.start()
        await claimed(run)
        again = await reset(fake.client, run, told=False)
        await claimed(again)
        await again.cancel()
        report = (await cancelled(again)).stop_report
        assert report
        assert (report.outcome, report.phase, report.processes) == ("stopped", "queued", 0)


async def test_a_cancel_after_a_reset_that_no_host_can_be_asked_about_is_unverified(fake: FakeHost) -> None:
    run = await fake.start()
    async with fake.at_work(runs=False):
        await claimed(run)
    again = await reset(fake.client, run, told=False)
    await again.cancel()

    async def nobody(_request: object) -> Claim:
        raise ApplicationError("not here", non_retryable=True)

    fake.play_claim = nobody  # type: ignore[method-assign, assignment]
    async with fake.at_work(runs=False):
        report = (await cancelled(again)).stop_report
        assert report
        assert (report.outcome, report.phase) == ("unverified", "queued")
        await replays(again)


async def test_a_cancel_after_a_reset_looks_for_the_host_before_it_says_so(fake: FakeHost) -> None:
    run = await fake.start()
    async with fake.at_work(runs=False):
        await claimed(run)
    again = await reset(fake.client, run, told=False)
    await again.cancel()
    async with fake.at_work(runs=False):
        report = (await cancelled(again)).stop_report
        assert report == STOPPED.model_copy(update={"phase": "queued"})
        assert [each.reason for each in fake.stops] == ["cancelled"]
        await replays(again)


async def test_what_was_decided_before_a_reset_is_replayed_as_it_was(fake: FakeHost) -> None:
    """That the first execution found no process to be stopped stays so in a second one that goes on from there."""
    fake.play_stop = found_nothing  # type: ignore[method-assign]
    async with fake.at_work(runs=False):
        run = await fake.start()
        await claimed(run)
        await run.cancel()
        await cancelled(run)
        tasks = [
            each.event_id
            async for each in run.fetch_history_events()
            if each.HasField("workflow_task_completed_event_attributes")
        ]
        again = await reset(fake.client, run, tasks[-1])
        report = (await cancelled(again)).stop_report
        assert report
        assert (report.outcome, report.processes) == ("stopped", 0)
        assert len(fake.stops) == 1
        await replays(again)


async def test_a_loop_that_was_talked_to_goes_on_after_a_reset(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start(limits={"iterations": 9, "cost_usd": 5})
    await loop_fake.at_hold()
    await loop.execute_update(names.FEEDBACK, {"text": "one", "id": "f-1"})
    await loop.signal(names.FEEDBACK, {"text": "two", "id": "f-2"})
    await loop.execute_update(names.REMOVE_FEEDBACK, {"id": "f-1"})
    await loop.signal(names.SET_LIMITS, {"cost_usd": 7})
    await loop.execute_update(names.REVISE, {"plan": "another plan"})
    await loop.signal(names.REVISE, {"plan": "a third plan"})
    await loop.execute_update(names.FEEDBACK, {"text": "three", "id": "f-3"})

    again = await reset(loop_fake.client, loop)

    now = await loop_client.reaches(again, lambda now: now.iteration == 1 and now.feedback)
    assert [each.id for each in now.feedback] == ["f-2", "f-3"]
    assert now.limits.cost_usd == 7
    await again.execute_update(names.EXIT, {"reason": "enough"})
    assert (await loop_client.ended(again)).status == "exited"
    await replays(again)
