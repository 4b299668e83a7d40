"""Approvals wait durably: one answer counts, the agent hears it whichever worker holds it, silence is a denial."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.messages import DecisionReceipt
from tests.support.histories import searched_phases
from tests.workflows.fake_host import QUIET, FakeHost, Run, cancelled, done, event_types, phase, state, succeeded, until

pytestmark = [pytest.mark.integration, QUIET]


async def decide(run: Run, name: str, decision: str = "allow", **fields: Any) -> DecisionReceipt:
    answer = await run.execute_update(names.DECIDE, {"id": name, "decision": decision, **fields})
    return DecisionReceipt.model_validate(answer)


async def refusal(run: Run, name: str, decision: str = "allow") -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await decide(run, name, decision)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.message


async def open_ones(run: Run) -> list[str]:
    return [each.id for each in (await state(run)).approvals]


async def asking(fake: FakeHost, *names_: str) -> Run:
    run = await fake.start(permissions={"mode": "ask"})
    await phase(run, "running")
    for name in names_:
        await fake.ask(run.id, name)
    return run


async def test_an_approval_is_shown_and_decided(any_fake: FakeHost) -> None:
    run = await asking(any_fake, "a-1")
    (approval,) = (await state(run)).approvals
    assert (approval.id, approval.tool, approval.input) == ("a-1", "Bash", {"command": "ls"})
    receipt = await decide(run, "a-1", remember=True)
    assert (receipt.id, receipt.decision, receipt.tool) == ("a-1", "allow", "Bash")
    await until(lambda: any_fake.decisions() == [("a-1", "allow")])
    (delivery,) = any_fake.deliveries
    assert [(each.tool, each.decision.remember) for each in delivery.decisions] == [("Bash", True)]
    assert await open_ones(run) == []
    any_fake.ending.set_result(done())
    await succeeded(run)


async def test_the_first_answer_wins_and_the_second_is_told_so(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1")
        answers = await asyncio.gather(decide(run, "a-1", "allow"), decide(run, "a-1", "deny"), return_exceptions=True)
        (receipt,) = [each for each in answers if isinstance(each, DecisionReceipt)]
        (refused,) = [each for each in answers if isinstance(each, WorkflowUpdateFailedError)]
        assert str(refused.cause) == f"Refused: approval a-1 was already decided: {receipt.decision}"
        await run.signal(names.DECIDE, {"id": "a-1", "decision": "deny"})
        assert f"already decided: {receipt.decision}" in await refusal(run, "a-1", "deny")
        await until(lambda: fake.decisions() == [("a-1", receipt.decision)])


async def test_a_signal_decides_too(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1", "a-2")
        await run.signal(names.DECIDE, {"id": "a-2", "decision": "deny", "message": "not that one"})
        await until(lambda: fake.decisions() == [("a-2", "deny")])
        assert await open_ones(run) == ["a-1"]
    (delivery,) = fake.deliveries
    assert [each.decision.message for each in delivery.decisions] == ["not that one"]


async def test_unknown_and_withdrawn_ones_are_refused(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1")
        assert await refusal(run, "x") == "no approval x is waiting"
        await fake.ask(run.id, "a-1", withdrawn=True)
        assert await open_ones(run) == []
        assert await refusal(run, "a-1") == "approval a-1 was withdrawn by the agent"


async def test_a_decision_reaches_the_next_worker_if_the_first_died(fake: FakeHost) -> None:
    async with fake.at_work(delivery=False):
        run = await asking(fake, "a-1")
        await decide(run, "a-1")
        async with fake.worker(fake.own_queue(1), activities=[fake.deliver_messages]):
            await fake.began(run.id, worker=1)
            await fake.ask(run.id, "a-1")
            await until(lambda: ("a-1", "allow") in fake.decisions())
            assert await open_ones(run) == []


async def test_an_open_question_survives_the_worker(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1")
        first = (await state(run)).approvals[0].since
        async with fake.worker(fake.own_queue(1), activities=[fake.deliver_messages]):
            await fake.began(run.id, worker=1)
            await fake.ask(run.id, "a-1")
            (again,) = (await state(run)).approvals
            assert again.since == first
            await decide(run, "a-1")
            await until(lambda: ("a-1", "allow") in fake.decisions())


@pytest.mark.parametrize("by", ["update", "signal"])
async def test_it_can_be_decided_before_the_next_session_has_asked_again(fake: FakeHost, by: str) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1")
        async with fake.worker(fake.own_queue(1), activities=[fake.deliver_messages]):
            await fake.began(run.id, worker=1)
            if by == "update":
                await decide(run, "a-1")
            else:
                handle = fake.client.get_workflow_handle(run.id)
                await handle.signal(names.DECIDE, {"id": "a-1", "decision": "allow"})
            await until(lambda: fake.decisions() == [("a-1", "allow")])
            await fake.began(run.id, worker=1, pid=4712, attempt=2)
            assert "no approval a-2 is waiting" in await refusal(run, "a-2")
            await fake.ask(run.id, "a-2")
            await fake.began(run.id, worker=1, pid=4713, attempt=3)
            assert "no approval a-2 is waiting" in await refusal(run, "a-2")


async def test_nobody_answers_in_time(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start(permissions={"mode": "ask"}, limits={"approval_s": 0.5})
        await phase(run, "running")
        await fake.ask(run.id, "a-1")
        await until(lambda: fake.decisions() == [("a-1", "deny")])
        assert "already decided: deny" in await refusal(run, "a-1")
    (delivery,) = fake.deliveries
    assert "Nobody answered" in (delivery.decisions[0].decision.message or "")


async def test_a_question_that_comes_late_has_its_time_from_then_on(fake: FakeHost) -> None:
    """As of a host whose clock is slow, or after an hour without the server."""
    async with fake.at_work():
        run = await fake.start(permissions={"mode": "ask"})
        await phase(run, "running")
        await fake.ask(run.id, "a-1", since=datetime.now(UTC) - timedelta(hours=2))
        await phase(run, "waiting")
        (approval,) = (await state(run)).approvals
        assert approval.deadline is not None
        assert approval.deadline - datetime.now(UTC) > timedelta(minutes=59)
        assert fake.decisions() == []
        await decide(run, "a-1")
        await phase(run, "running")
        fake.ending.set_result(done())
        await succeeded(run)


async def test_the_deadline_is_told_and_null_waits_for_ever(fake: FakeHost) -> None:
    asked_at = datetime.now(UTC) - timedelta(days=30)
    async with fake.at_work():
        hurried = await asking(fake, "a-1")
        (approval,) = (await state(hurried)).approvals
        assert approval.deadline == approval.since + timedelta(hours=1)
        patient = await fake.start(permissions={"mode": "ask"}, limits={"approval_s": None})
        await phase(patient, "running")
        await fake.ask(patient.id, "a-1", since=asked_at)
        await phase(patient, "waiting")
        (approval,) = (await state(patient)).approvals
        assert (approval.since, approval.deadline) == (asked_at, None)
        shown = str(await patient.query("__temporal_workflow_metadata", result_type=dict))
        assert "Bash (a-1), waits for ever: ls" in shown.replace("`", "")
        assert await timers(patient) == 0
        await decide(patient, "a-1")
        await phase(patient, "running")
        fake.ending.set_result(done())
        await asyncio.gather(succeeded(patient), succeeded(hurried))


async def timers(run: Run) -> int:
    return (await event_types(run)).count("TIMER_STARTED")


async def test_a_run_that_waits_says_so_until_the_last_answer_and_tells_searches_once(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1", "a-2")
        await phase(run, "waiting")
        await decide(run, "a-1")
        assert (await state(run)).phase == "waiting"
        await fake.ask(run.id, "a-2", withdrawn=True)
        await phase(run, "running")
        await fake.ask(run.id, "a-3")
        await phase(run, "waiting")
        # Another worker takes over: what is asked again is asked by the same agent.
        await fake.began(run.id, epoch=7)
        await fake.ask(run.id, "a-3")
        await until(lambda: open_ones(run))
        await run.cancel()
        closed = await cancelled(run)
    assert (closed.phase, closed.approvals) == ("closed", ())
    told = await searched_phases(run)
    assert told[:5] == ["queued", "running", "waiting", "running", "waiting"]
    assert told[-3:] == ["stopping", "finalizing", "closed"]
    assert all(before != after for before, after in pairwise(told))
    assert closed.stop_report is not None
    assert closed.stop_report.phase in ("waiting", "running")


async def test_a_run_that_waits_takes_messages(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1")
        await phase(run, "waiting")
        receipt = await run.execute_update(names.STEER, {"text": "left"})
        assert receipt["state"] == "acknowledged"
        fake.ending.set_result(done())
        await succeeded(run)


async def test_the_end_closes_what_is_open(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1")
        fake.ending.set_result(done())
        await succeeded(run)
        assert await open_ones(run) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("since", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00"])
async def test_a_forged_age_of_a_question_wedges_nobody(fake: FakeHost, since: str) -> None:
    async with fake.at_work():
        run = await asking(fake)
        forged = {"id": "f-1", "tool": "Bash", "input": {}, "since": since}
        await run.signal(names.APPROVAL_ASKED, {"approval": forged, "withdrawn": False})
        await fake.ask(run.id, "a-1")
        await until(lambda: _has(run, "a-1"))
        assert (await decide(run, "a-1")).decision == "allow"
        await run.cancel()
        await cancelled(run)


async def _has(run: Run, name: str) -> bool:
    return name in await open_ones(run)
