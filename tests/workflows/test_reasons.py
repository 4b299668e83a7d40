"""Why a run was stopped is kept in the words of whoever did it, wherever one looks."""

from typing import Any

import pytest

from steersman.contracts import names
from steersman.contracts.activities import RunAgentInput, RunOutcome, Settlement
from steersman.contracts.errors import ErrorType
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent
from steersman.contracts.run import MAX_REASON, StopReport
from tests.workflows.fake_host import QUIET, STOPPED, FakeHost, Run, cancelled, failed, phase, state, succeeded, until

pytestmark = [pytest.mark.integration, QUIET]

ENDED = StopReport(outcome="stopped", phase="running", how="exited", processes=1, took_ms=12)


async def details(run: Run) -> str:
    """What the Web UI shows of the run now."""
    return str(await run.query("__temporal_workflow_metadata", result_type=dict))


async def test_of_a_cancel(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel(reason="it costs too much")
        closed = await cancelled(run)
        assert "terminated, 2 processes, 7 ms: it costs too much" in await details(run)
    report = STOPPED.model_copy(update={"reason": "it costs too much"})
    assert (closed.stop_report, closed.closed_as) == (report, "cancelled")
    (end,) = fake.ends
    assert isinstance(end.event, CancelledEvent)
    assert (end.event.stop_report, end.event.reason, end.event.terminated) == (report, report.reason, False)
    # The shim is told what kind of stop it is: a person's words must not pass for a limit there.
    assert [each.reason for each in fake.stops] == ["cancelled"]


async def test_of_a_cancel_that_comes_before_anything_else(fake: FakeHost) -> None:
    async with fake.at_work(runs=False):
        run = await fake.start()

        async def claimed() -> bool:
            return (await state(run)).host is not None

        await until(claimed)
        await run.cancel(reason="never mind")
        report = (await cancelled(run)).stop_report
    assert report is not None
    assert (report.phase, report.reason) == ("queued", "never mind")


@pytest.mark.parametrize(("said", "kept"), [("", None), ("x" * 5000, "x" * MAX_REASON)])
async def test_it_is_bounded_and_none_where_nothing_was_said(fake: FakeHost, said: str, kept: str | None) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel(reason=said)
        report = (await cancelled(run)).stop_report
    assert report is not None
    assert report.reason == kept


async def test_of_the_limit_that_the_workflow_holds(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start(limits={"duration_s": 3})  # a busy machine needs a second to begin
        _, message, result = await failed(run)
        report = (await state(run)).stop_report
    assert message == "limits.duration_s: the run took longer than 3 s"
    assert report == STOPPED.model_copy(update={"reason": message})
    assert (result.stop_report, result.code) == (report, None)
    assert isinstance(fake.ends[0].event, FailedEvent)
    assert fake.ends[0].event.stop_report == report


async def test_of_a_limit_that_the_session_holds(fake: FakeHost) -> None:
    limit = "limits.cost_usd: the agent has cost $2 of $1"
    report = STOPPED.model_copy(update={"reason": limit})
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        outcome = RunOutcome(status="failed", error=ErrorType.BUDGET_EXCEEDED, message=limit, stop_report=report)
        fake.ending.set_result(outcome)
        assert (await failed(run))[2].stop_report == report
        assert (await state(run)).stop_report == report


async def ends(run: Run, **more: Any) -> None:
    """A person ends the run with its turn."""
    await run.signal(names.INTERRUPT, {"id": "end", "end": True, "reason": "lunch", **more})


async def test_of_an_end(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await ends(run)
        await until(lambda: fake.delivered() == ["end"])
        outcome = {"status": "succeeded", "stop_reason": "interrupted", "attempts": 1, "stop_report": ENDED}
        fake.ending.set_result(RunOutcome.model_validate(outcome))
        result = await succeeded(run)
        found = await state(run)
    report = ENDED.model_copy(update={"reason": "lunch"})
    assert (result.stop_report, result.code, found.stop_report) == (report, None, report)
    assert isinstance(fake.ends[0].event, DoneEvent)
    assert fake.ends[0].event.stop_report == report


@pytest.mark.parametrize(
    ("error", "code"), [(ErrorType.AUTHENTICATION_FAILED, "interrupted"), (ErrorType.BUDGET_EXCEEDED, None)]
)
async def test_a_failure_tells_that_a_person_had_ended_the_run(
    fake: FakeHost, error: ErrorType, code: str | None
) -> None:
    async def play(run: RunAgentInput) -> RunOutcome:
        await fake.began(run.key.run)
        return await fake.ending

    fake.play_agent = play  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await ends(run)
        await until(lambda: fake.delivered() == ["end"])
        messages = (Settlement(id="end", state="too_late"),)
        fake.ending.set_result(RunOutcome(status="failed", error=error, message="no key", messages=messages))
        kind, _, result = await failed(run)
    assert (kind, result.code) == (error, code)
    assert isinstance(fake.ends[0].event, FailedEvent)
    assert fake.ends[0].event.code == code
