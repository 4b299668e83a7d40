"""Approvals wait durably: one answer counts, the agent hears it whichever worker holds it, silence is a denial."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.messages import DecisionReceipt
from tests.workflows.machine import QUIET, Machine, Run, done, phase, state, succeeded, until

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


async def asking(machine: Machine, *names_: str) -> Run:
    run = await machine.start(permissions={"mode": "ask"})
    await phase(run, "running")
    for name in names_:
        await machine.ask(run.id, name)
    return run


async def test_an_approval_is_shown_and_decided(anywhere: Machine) -> None:
    run = await asking(anywhere, "a-1")
    (approval,) = (await state(run)).approvals
    assert (approval.id, approval.tool, approval.input) == ("a-1", "Bash", {"command": "ls"})
    receipt = await decide(run, "a-1", remember=True)
    assert (receipt.id, receipt.decision, receipt.tool) == ("a-1", "allow", "Bash")
    await until(lambda: anywhere.decisions() == [("a-1", "allow")])
    (parcel,) = anywhere.parcels
    assert [(each.tool, each.decision.remember) for each in parcel.decisions] == [("Bash", True)]
    assert await open_ones(run) == []
    anywhere.ending.set_result(done())
    await succeeded(run)


async def test_the_first_answer_wins_and_the_second_is_told_so(machine: Machine) -> None:
    async with machine.at_work():
        run = await asking(machine, "a-1")
        answers = await asyncio.gather(decide(run, "a-1", "allow"), decide(run, "a-1", "deny"), return_exceptions=True)
        (receipt,) = [each for each in answers if isinstance(each, DecisionReceipt)]
        (refused,) = [each for each in answers if isinstance(each, WorkflowUpdateFailedError)]
        assert str(refused.cause) == f"Refused: approval a-1 was already decided: {receipt.decision}"
        await run.signal(names.DECIDE, {"id": "a-1", "decision": "deny"})
        assert f"already decided: {receipt.decision}" in await refusal(run, "a-1", "deny")
        await until(lambda: machine.decisions() == [("a-1", receipt.decision)])


async def test_a_signal_decides_too(machine: Machine) -> None:
    async with machine.at_work():
        run = await asking(machine, "a-1", "a-2")
        await run.signal(names.DECIDE, {"id": "a-2", "decision": "deny", "message": "not that one"})
        await until(lambda: machine.decisions() == [("a-2", "deny")])
        assert await open_ones(run) == ["a-1"]
    (parcel,) = machine.parcels
    assert [each.decision.message for each in parcel.decisions] == ["not that one"]


async def test_unknown_and_withdrawn_ones_are_refused(machine: Machine) -> None:
    async with machine.at_work():
        run = await asking(machine, "a-1")
        assert await refusal(run, "x") == "no approval x is waiting"
        await machine.ask(run.id, "a-1", withdrawn=True)
        assert await open_ones(run) == []
        assert await refusal(run, "a-1") == "approval a-1 was withdrawn by the agent"


async def test_a_decision_reaches_the_next_worker_if_the_first_died(machine: Machine) -> None:
    async with machine.at_work(delivery=False):
        run = await asking(machine, "a-1")
        await decide(run, "a-1")
        async with machine.worker(machine.own_queue(1), activities=[machine.deliver_messages]):
            await machine.began(run.id, worker=1)
            await machine.ask(run.id, "a-1")
            await until(lambda: ("a-1", "allow") in machine.decisions())
            assert await open_ones(run) == []


async def test_an_open_question_survives_the_worker(machine: Machine) -> None:
    async with machine.at_work():
        run = await asking(machine, "a-1")
        first = (await state(run)).approvals[0].since
        async with machine.worker(machine.own_queue(1), activities=[machine.deliver_messages]):
            await machine.began(run.id, worker=1)
            await machine.ask(run.id, "a-1")
            (again,) = (await state(run)).approvals
            assert again.since == first
            await decide(run, "a-1")
            await until(lambda: ("a-1", "allow") in machine.decisions())


async def test_nobody_answers_in_time(machine: Machine) -> None:
    async with machine.at_work():
        run = await machine.start(permissions={"mode": "ask"}, limits={"approval_s": 0.5})
        await phase(run, "running")
        await machine.ask(run.id, "a-1")
        await until(lambda: machine.decisions() == [("a-1", "deny")])
        assert "already decided: deny" in await refusal(run, "a-1")
    (parcel,) = machine.parcels
    assert "Nobody answered" in (parcel.decisions[0].decision.message or "")


async def test_the_end_closes_what_is_open(machine: Machine) -> None:
    async with machine.at_work():
        run = await asking(machine, "a-1")
        machine.ending.set_result(done())
        await succeeded(run)
        assert await open_ones(run) == []
