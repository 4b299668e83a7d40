"""Cancel, in every phase of a run: Canceled, with a report of what the stop found."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.activities import Claim, FinalizeInput, RunAgentInput, RunOutcome, SessionStarted, StopInput
from steersman.contracts.errors import ActivityErrorType
from steersman.contracts.run import StopReport
from tests.workflows.fake_host import (
    QUIET,
    STOPPED,
    FakeHost,
    cancelled,
    done,
    event_types,
    failed,
    found_nothing,
    never_retried,
    phase,
    replays,
    state,
    succeeded,
    took,
    until,
)

pytestmark = [pytest.mark.integration, QUIET]


async def test_a_running_agent_is_stopped_with_proof(any_fake: FakeHost) -> None:
    run = await any_fake.start()
    await took(run, names.SESSION_STARTED)
    await run.cancel()
    closed = await cancelled(run)
    assert closed.phase == "closed"
    assert closed.stop_report == STOPPED.model_copy(update={"phase": "running"})
    assert any_fake.cancelled.is_set()
    (stop,) = any_fake.stops
    assert (stop.key.run, stop.reason, stop.phase) == (run.id, "cancelled", "running")
    (end,) = any_fake.ends
    assert end.event.type == "cancelled"
    assert end.event.stop_report == closed.stop_report
    await never_retried(run)


async def test_queued_with_no_worker_at_all(fake: FakeHost) -> None:
    run = await fake.start()
    await run.cancel()
    async with fake.at_work():
        closed = await cancelled(run)
    assert closed.stop_report is not None
    assert (closed.stop_report.outcome, closed.stop_report.phase, closed.stop_report.processes) == (
        "stopped",
        "queued",
        0,
    )
    assert not fake.runs


async def test_queued_for_want_of_room(anywhere_queued: FakeHost) -> None:
    anywhere_queued.play_stop = found_nothing  # type: ignore[method-assign]
    run = await anywhere_queued.start()
    await until(lambda: _is_claimed(run))
    await run.cancel()
    closed = await cancelled(run)
    assert closed.stop_report is not None
    assert (closed.stop_report.outcome, closed.stop_report.phase) == ("stopped", "queued")
    assert (closed.stop_report.how, closed.stop_report.processes) == ("exited", 0)
    assert not anywhere_queued.runs


async def test_a_worker_that_was_killed_before_it_could_tell_may_have_begun(anywhere_queued: FakeHost) -> None:
    run = await anywhere_queued.start()
    await until(lambda: _is_claimed(run))
    await run.cancel()
    closed = await cancelled(run)
    assert closed.stop_report == STOPPED.model_copy(update={"phase": "queued"})
    await replays(run)


async def test_without_a_worker_of_its_host_nobody_knows_whether_a_run_was_started(fake: FakeHost) -> None:
    async with fake.at_work(runs=False, host=False):
        run = await fake.start()
        await until(lambda: _is_claimed(run))
        await run.cancel()
        await until(lambda: _stop_report(run))
        async with fake.hosting(runs=False, delivery=False):
            closed = await cancelled(run)
    assert closed.stop_report == StopReport(outcome="unverified", phase="queued")


async def _is_claimed(run: Any) -> bool:
    return (await state(run)).host is not None


async def _stop_report(run: Any) -> StopReport | None:
    return (await state(run)).stop_report


@pytest.fixture
async def anywhere_queued(fake: FakeHost) -> Any:
    async with fake.at_work(runs=False):
        yield fake


async def test_a_worker_that_falls_before_it_could_tell_may_have_begun(fake: FakeHost) -> None:
    async def fall(run: RunAgentInput) -> RunOutcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ApplicationError("the worker that was at it is gone", type="Detached") from None
        raise AssertionError

    fake.play_agent = fall  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await until(lambda: bool(fake.runs))
        await run.cancel()
        closed = await cancelled(run)
    assert closed.stop_report == STOPPED.model_copy(update={"phase": "queued"})
    assert len(fake.stops) == 1


async def test_while_a_host_is_being_claimed(fake: FakeHost) -> None:
    claiming = asyncio.Event()

    async def dawdle(request: Any) -> Claim:
        claiming.set()
        await asyncio.Event().wait()
        raise AssertionError

    fake.play_claim = dawdle  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await claiming.wait()
        await run.cancel()
        closed = await cancelled(run)
    assert closed.stop_report is not None
    assert closed.stop_report.outcome == "stopped"
    assert not fake.runs


async def test_that_comes_with_the_news_of_the_claim(fake: FakeHost, temporal: Client) -> None:
    """The workflow learns of both in one task: while it was away, its host was claimed and a person cancelled."""
    other = FakeHost(temporal)
    claiming, go_on = asyncio.Event(), asyncio.Event()

    async def dawdle(request: Any) -> Claim:
        claiming.set()
        await go_on.wait()
        return Claim(host=other.host)

    other.play_claim = dawdle  # type: ignore[method-assign]
    async with other.at_work():
        async with fake.at_work():
            run = await fake.start(workspace={"path": "/w", "host": other.host})
            await claiming.wait()
        go_on.set()
        await until(lambda: _has(run, "ACTIVITY_TASK_COMPLETED"))
        await run.cancel()
        async with fake.at_work():
            closed = await cancelled(run)
    assert closed.stop_report is not None
    assert closed.stop_report.outcome == "stopped"
    assert not other.runs


async def _has(run: Any, event: str) -> bool:
    return event in await event_types(run)


async def test_while_the_workspace_is_being_prepared(fake: FakeHost) -> None:
    async def prepare(run: RunAgentInput) -> RunOutcome:
        handle = fake.client.get_workflow_handle(run.key.run)
        await handle.signal(names.SESSION_STARTED, SessionStarted(worker_queue=fake.own_queue()))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return RunOutcome(status="stopped")

    fake.play_agent = prepare  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "preparing")
        await run.cancel()
        closed = await cancelled(run)
    assert [stop.phase for stop in fake.stops] == ["preparing"]
    assert closed.stop_report is not None
    assert closed.stop_report.phase == "preparing"


async def test_twice_and_while_it_stops(fake: FakeHost) -> None:
    stopping, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(stop: StopInput) -> StopReport:
        stopping.set()
        await go_on.wait()
        return STOPPED

    fake.play_stop = slowly  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel()
        await stopping.wait()
        assert (await state(run)).phase == "stopping"
        await run.cancel()
        await run.cancel()
        go_on.set()
        closed = await cancelled(run)
    assert closed.stop_report == STOPPED
    assert len(fake.stops) == 1
    assert len(fake.ends) == 1


async def test_while_it_is_being_finalized_changes_nothing(fake: FakeHost) -> None:
    finalizing, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(end: FinalizeInput) -> None:
        finalizing.set()
        await go_on.wait()

    fake.play_end = slowly  # type: ignore[method-assign]
    fake.ending.set_result(done())
    async with fake.at_work():
        run = await fake.start()
        await finalizing.wait()
        await run.cancel()
        go_on.set()
        assert (await succeeded(run)).status == "succeeded"
    assert not fake.stops


async def test_after_the_end_it_is_not_found(fake: FakeHost) -> None:
    fake.ending.set_result(done())
    async with fake.at_work():
        run = await fake.start()
        await succeeded(run)
        await run.cancel()
        assert (await state(run)).stop_report is None
    assert not fake.stops


async def test_an_agent_that_finished_in_the_same_moment_has_succeeded(fake: FakeHost) -> None:
    """The work is done: to call it cancelled would throw the answer away."""

    async def finish(run: RunAgentInput) -> RunOutcome:
        await fake.began(run.key.run)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return done("finished just now")

    async def too_late(stop: StopInput) -> StopReport:
        return StopReport(outcome="already_finished", phase=stop.phase, how="exited")

    fake.play_agent = finish  # type: ignore[method-assign]
    fake.play_stop = too_late  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel()
        result = await succeeded(run)
        assert (result.status, result.text) == ("succeeded", "finished just now")
        report = (await state(run)).stop_report
    assert report is not None
    assert report.outcome == "already_finished"


async def test_an_agent_that_failed_in_the_same_moment_is_cancelled(fake: FakeHost) -> None:
    async def fail(run: RunAgentInput) -> RunOutcome:
        await fake.began(run.key.run)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return RunOutcome(status="failed", message="broke off", attempts=1)

    fake.play_agent = fail  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel()
        await cancelled(run)


async def test_a_stop_that_cannot_be_proven_is_called_unverified(fake: FakeHost) -> None:
    async def fail(stop: StopInput) -> StopReport:
        raise ApplicationError("the shim does not answer", non_retryable=True)

    fake.play_stop = fail  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel()
        closed = await cancelled(run)
    assert closed.stop_report == StopReport(outcome="unverified", phase="running")


async def test_a_stop_is_tried_again(fake: FakeHost) -> None:
    async def stumble(stop: StopInput) -> StopReport:
        if len(fake.stops) < 3:
            raise RuntimeError("no file descriptor left")
        return STOPPED

    fake.play_stop = stumble  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel()
        closed = await cancelled(run)
    assert closed.stop_report == STOPPED


async def test_the_result_of_a_cancelled_run_keeps_what_was_known(fake: FakeHost) -> None:
    async def spend(run: RunAgentInput) -> RunOutcome:
        await fake.began(run.key.run)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return RunOutcome(status="stopped", session_id="s-9", cost_usd=0.5, turns=4, attempts=2)

    fake.play_agent = spend  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel()
        closed = await cancelled(run)
    assert (closed.session_id, closed.cost_usd, closed.turns, closed.attempt) == ("s-9", 0.5, 4, 2)


async def test_the_duration_limit_stops_the_agent(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start(limits={"duration_s": 3})  # a busy machine needs a second to begin
        await phase(run, "running")
        kind, message, result = await failed(run)
        assert (kind, result.session_id) == ("RunTimedOut", "s-1")
        assert message == "limits.duration_s: the run took longer than 3 s"
        assert [stop.reason for stop in fake.stops] == ["duration"]
        assert (await state(run)).stop_report == STOPPED.model_copy(update={"phase": "running", "reason": message})


async def test_a_cancel_while_the_duration_limit_stops_the_agent(fake: FakeHost) -> None:
    stopping, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(stop: StopInput) -> StopReport:
        stopping.set()
        await go_on.wait()
        return STOPPED

    fake.play_stop = slowly  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start(limits={"duration_s": 3})  # as above
        await stopping.wait()
        await run.cancel()
        go_on.set()
        with pytest.raises(WorkflowFailureError):
            await run.result()
    assert len(fake.stops) == 1
    assert len(fake.ends) == 1


async def test_while_a_worker_that_has_no_place_for_it_gives_it_back(fake: FakeHost) -> None:
    asked, handed = asyncio.Event(), asyncio.Event()

    async def play_agent(run: RunAgentInput) -> RunOutcome:
        handed.set()
        await asked.wait()
        raise ApplicationError(
            "runs with agents at work go first",
            type=ActivityErrorType.DETACHED,
            next_retry_delay=timedelta(seconds=2),
        )

    fake.play_agent = play_agent  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await handed.wait()
        await run.cancel()
        await until(lambda: fake.stops)
        asked.set()
        closed = await cancelled(run)
    assert closed.stop_report is not None
    assert len(fake.runs) == 1
