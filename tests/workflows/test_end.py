"""A run that a person ends together with its turn: it succeeds, says so, and needs no worker that has not taken it."""

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from steersman.contracts import names
from steersman.contracts.activities import RunAgentInput, RunOutcome
from steersman.contracts.messages import MessageReceipt
from tests.workflows.fake_host import QUIET, FakeHost, Run, event_types, found_nothing, phase, state, succeeded, until

pytestmark = [pytest.mark.integration, QUIET]


async def end(run: Run, **message: Any) -> MessageReceipt:
    return MessageReceipt.model_validate(await run.execute_update(names.INTERRUPT, {"end": True, **message}))


async def messages(run: Run) -> dict[str, str]:
    return {each.id: each.state for each in (await state(run)).messages}


INTERRUPTED = RunOutcome(status="succeeded", text="so far", session_id="s-1", stop_reason="interrupted", attempts=1)


async def test_an_end_goes_to_the_session_and_its_outcome_is_the_runs(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        assert (await end(run, id="first")).state == "acknowledged"
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update(names.STEER, {"text": "more"})
        assert "the run is ending: it takes no more messages" in str(refused.value.cause)
        assert (await end(run, id="again")).state == "acknowledged"
        fake.ending.set_result(INTERRUPTED)
        result = await succeeded(run)
    assert [(each.id, each.end) for delivery in fake.deliveries for each in delivery.messages] == [
        ("first", True),
        ("again", True),
    ]
    assert (result.status, result.stop_reason, result.text) == ("succeeded", "interrupted", "so far")
    assert result.session_id == "s-1"
    assert [end.event.type for end in fake.ends] == ["done"]
    assert not fake.stops


async def test_an_end_of_which_nobody_told_is_done_when_the_run_is_interrupted(fake: FakeHost) -> None:
    """The agent died of it, say: its answer never came, and the run is over all the same."""
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(end(run))
        await until(lambda: messages(run))
        fake.ending.set_result(INTERRUPTED)
        assert ((receipt := await waiting).state, receipt.how) == ("acknowledged", "interrupted")
        await succeeded(run)


@pytest.mark.parametrize("way", ["update", "signal"])
async def test_a_run_that_no_worker_has_taken_ends_at_once(fake: FakeHost, way: str) -> None:
    fake.play_stop = found_nothing  # type: ignore[method-assign]
    async with fake.at_work(runs=False):
        run = await fake.start()
        await until(lambda: _scheduled(run))
        if way == "signal":
            await run.signal(names.INTERRUPT, {"end": True})
        else:
            assert (await end(run, id="interrupt-1")).state == "acknowledged"
        result = await succeeded(run)
        assert await messages(run) == {"interrupt-1": "acknowledged"}
    assert (result.stop_reason, result.session_id, result.attempts, result.text) == ("interrupted", None, 0, "")
    assert not fake.runs


async def _scheduled(run: Run) -> bool:
    return "ACTIVITY_TASK_SCHEDULED" in await event_types(run)


async def test_an_end_that_crosses_the_workers_taking_of_the_run_ends_it_too(fake: FakeHost) -> None:
    """The worker has the run and has not said so yet: its activity is cancelled and the agent stopped."""
    taken = asyncio.Event()

    async def silent(run: RunAgentInput) -> RunOutcome:
        taken.set()
        try:
            return await asyncio.shield(fake.ending)
        except asyncio.CancelledError:
            return RunOutcome(status="stopped", session_id="s-1", attempts=1)

    fake.play_agent = silent  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await taken.wait()
        assert (await end(run)).state == "acknowledged"
        result = await succeeded(run)
    assert (result.stop_reason, result.session_id) == ("interrupted", "s-1")
    assert [stop.reason for stop in fake.stops] == ["ended"]


async def test_a_run_that_is_ended_with_its_start_begins_no_work(fake: FakeHost) -> None:
    async with fake.at_work():
        request = {"agent": "claude", "prompt": "work", "workspace": {"path": "/w"}}
        run: Run = await fake.client.start_workflow(
            names.RUN_WORKFLOW,
            request,
            id=f"run-{uuid.uuid4()}",
            task_queue=fake.queue,
            start_signal=names.INTERRUPT,
            start_signal_args=[{"end": True}],
        )
        assert (await succeeded(run)).stop_reason == "interrupted"
    assert not fake.runs
