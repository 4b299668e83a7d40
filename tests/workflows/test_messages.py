"""Steer and interrupt: acknowledged, once, in order, kept while no worker can take them; refused with a reason."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from steersman.contracts import names
from steersman.contracts.activities import (
    Delivered,
    DeliverInput,
    FinalizeInput,
    MessagesSettled,
    RunOutcome,
    Settlement,
    StopInput,
)
from steersman.contracts.messages import MessageReceipt
from steersman.contracts.run import RunState, StopReport
from tests.workflows.machine import (
    QUIET,
    STOPPED,
    Machine,
    Run,
    cancelled,
    done,
    failed,
    phase,
    state,
    succeeded,
    until,
)

pytestmark = [pytest.mark.integration, QUIET]


async def say(run: Run, kind: str = names.STEER, **message: Any) -> MessageReceipt:
    return MessageReceipt.model_validate(await run.execute_update(kind, message))


async def refusal(run: Run, kind: str, *inputs: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await run.execute_update(kind, args=inputs)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.message


async def messages(run: Run) -> dict[str, str]:
    return {each.id: each.state for each in (await state(run)).messages}


async def test_a_steer_is_acknowledged(anywhere: Machine) -> None:
    run = await anywhere.start()
    await phase(run, "running")
    receipt = await say(run, text="use the other file", reason="it is newer")
    assert (receipt.id, receipt.state, receipt.how) == ("steer-1", "acknowledged", "mid_turn")
    assert 0 <= receipt.latency_ms < 10_000
    (parcel,) = anywhere.parcels
    assert [(each.kind, each.text) for each in parcel.messages] == [("steer", "use the other file")]
    (record,) = (await state(run)).messages
    assert (record.text, record.reason, record.state) == ("use the other file", "it is newer", "acknowledged")
    assert record.settled_at is not None
    anywhere.ending.set_result(done())
    assert (await succeeded(run)).messages_delivered == 1


async def test_a_session_that_was_frozen_and_comes_back_late_is_not_taken_for_the_newest(machine: Machine) -> None:
    async with machine.at_work(runs=False):
        run = await machine.start()
        await machine.began(run.id, worker=1, epoch=2)
        await machine.began(run.id, worker=0, epoch=1)
        async with machine.worker(machine.own_queue(1), activities=[machine.deliver_messages]):
            await say(run, text="to the newest")
        handle = (await state(run)).handle
    assert handle is not None
    assert handle.worker_queue == machine.own_queue(1)


async def test_an_interrupt_needs_no_text(machine: Machine) -> None:
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        receipt = MessageReceipt.model_validate(await run.execute_update(names.INTERRUPT))
        assert (receipt.id, receipt.state) == ("interrupt-1", "acknowledged")
        assert (await say(run, names.INTERRUPT, text="stop that, do this")).id == "interrupt-2"


async def test_the_same_id_twice_is_one_message(machine: Machine) -> None:
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        receipts = await asyncio.gather(*(say(run, id="m-1", text="once") for _ in range(5)))
        await run.signal(names.STEER, {"id": "m-1", "text": "once"})
        assert {(each.id, each.state) for each in receipts} == {("m-1", "acknowledged")}
        await say(run, id="m-2", text="last")
    assert machine.delivered() == ["m-1", "m-2"]


async def test_the_same_id_is_answered_after_the_run_takes_no_more(machine: Machine) -> None:
    """A client that lost its connection asks again: it must learn what became of its message."""
    ending, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(end: FinalizeInput) -> None:
        ending.set()
        await go_on.wait()

    machine.play_end = slowly  # type: ignore[method-assign]
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        await say(run, id="m-1", text="once")
        machine.ending.set_result(done())
        await ending.wait()
        assert (await say(run, id="m-1", text="once")).state == "acknowledged"
        assert "finalizing" in await refusal(run, names.STEER, {"text": "new"})
        go_on.set()
        await succeeded(run)


async def test_messages_arrive_in_the_order_in_which_they_were_said(machine: Machine) -> None:
    async with machine.at_work(delivery=False):
        run = await machine.start()
        await phase(run, "running")
        for number in range(6):
            await run.signal(names.STEER, {"id": f"m-{number}", "text": str(number)})
        async with machine.worker(machine.own_queue(), activities=[machine.deliver_messages]):
            await until(lambda: len(machine.delivered()) >= 6)
    seen = list(dict.fromkeys(machine.delivered()))
    assert seen == [f"m-{number}" for number in range(6)]


async def test_a_message_waits_while_its_worker_is_dead_and_goes_to_the_next(machine: Machine) -> None:
    async with machine.at_work(delivery=False):
        run = await machine.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, text="are you there?"))
        await until(lambda: _recorded(run, 1))
        assert await messages(run) == {"steer-1": "queued"}
        async with machine.worker(machine.own_queue(1), activities=[machine.deliver_messages]):
            await machine.began(run.id, worker=1, pid=4711, attempt=1)
            receipt = await waiting
        assert (receipt.id, receipt.state) == ("steer-1", "acknowledged")
        assert set(machine.delivered()) == {"steer-1"}
        handle = (await state(run)).handle
    assert handle is not None
    assert handle.worker_queue == machine.own_queue(1)


async def _recorded(run: Run, count: int) -> bool:
    return len((await state(run)).messages) >= count


async def test_what_was_delivered_but_not_acknowledged_is_said_again_to_the_next_worker(machine: Machine) -> None:
    async def half(parcel: DeliverInput) -> Delivered:
        taken = (Settlement(id=each.id, state="delivered") for each in parcel.messages)
        return Delivered(here=True, messages=tuple(taken))

    machine.play_delivery = half  # type: ignore[method-assign]
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        assert (await say(run, text="one")).state == "delivered"
        async with machine.worker(machine.own_queue(1), activities=[machine.deliver_messages]):
            await machine.began(run.id, worker=1)
            await until(lambda: machine.delivered() == ["steer-1", "steer-1"])
            settled = MessagesSettled(messages=(Settlement(id="steer-1", state="acknowledged", how="new_turn"),))
            await run.signal(names.MESSAGES_SETTLED, settled)
            await machine.began(run.id, worker=1)
            assert (await say(run, text="two")).id == "steer-2"
    assert machine.delivered() == ["steer-1", "steer-1", "steer-2"]


async def test_a_worker_that_no_longer_holds_the_session_is_asked_again_later(machine: Machine) -> None:
    async def not_here(parcel: DeliverInput) -> Delivered:
        if len(machine.parcels) == 1:
            return Delivered(here=False)
        return await Machine.play_delivery(machine, parcel)

    machine.play_delivery = not_here  # type: ignore[method-assign]
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        assert (await say(run, text="one")).state == "acknowledged"
    assert len(machine.parcels) == 2


async def test_said_before_the_agent_runs_it_is_kept(machine: Machine) -> None:
    async with machine.at_work(runs=False):
        run = await machine.start()
        early = asyncio.ensure_future(say(run, text="early"))
        await until(lambda: _recorded(run, 1))
        async with machine.worker(names.runs_queue(machine.host), activities=[machine.run_agent]):
            assert (await early).state == "acknowledged"


async def test_what_the_agent_refuses_is_rejected_with_its_reason(machine: Machine) -> None:
    async def refuse(parcel: DeliverInput) -> Delivered:
        taken = (Settlement(id=each.id, state="rejected", how="it was interrupted first") for each in parcel.messages)
        return Delivered(here=True, messages=tuple(taken))

    machine.play_delivery = refuse  # type: ignore[method-assign]
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        receipt = await say(run, text="one")
        assert (receipt.state, receipt.how) == ("rejected", "it was interrupted first")
        machine.ending.set_result(done())
        assert (await succeeded(run)).messages_delivered == 0


async def test_what_comes_too_late_is_answered_so(machine: Machine) -> None:
    async with machine.at_work(delivery=False):
        run = await machine.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, text="too late"))
        await until(lambda: _recorded(run, 1))
        machine.ending.set_result(done())
        receipt = await waiting
        assert (receipt.state, receipt.how) == ("too_late", "the run ended first")
        assert (await succeeded(run)).messages_delivered == 0
        assert await messages(run) == {"steer-1": "too_late"}


async def test_a_waiting_message_is_answered_when_the_run_is_cancelled(machine: Machine) -> None:
    async with machine.at_work(delivery=False):
        run = await machine.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, names.INTERRUPT))
        await until(lambda: _recorded(run, 1))
        await run.cancel()
        assert (await waiting).state == "too_late"
        await cancelled(run)


async def test_what_the_agents_end_says_of_a_message_counts(machine: Machine) -> None:
    async with machine.at_work(delivery=False):
        run = await machine.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, text="one"))
        await until(lambda: _recorded(run, 1))
        told = {"messages": [{"id": "steer-1", "state": "acknowledged", "how": "mid_turn"}]}
        machine.ending.set_result(RunOutcome.model_validate({**done().model_dump(), **told}))
        assert (await waiting).state == "acknowledged"
        assert (await succeeded(run)).messages_delivered == 1


@pytest.mark.parametrize(
    ("kind", "inputs", "says"),
    [
        (names.STEER, (), "text is required"),
        (names.STEER, ({"text": "  "},), "text is required"),
        (names.STEER, ({"text": 7},), "Message: text"),
        (names.STEER, ({"txt": "x"},), "Message: txt: unknown field"),
        (names.STEER, ({"text": "x", "id": "a b"},), "Message: id"),
        (names.STEER, ("go on",), "Message"),
        (names.STEER, (["go on"],), "Message"),
        (names.INTERRUPT, ({"text": "x" * 100_001},), "Message: text"),
        (names.INTERRUPT, (3,), "Message"),
        (names.INTERRUPT, ({"text": "x", "end": True},), "Message: end goes without a text"),
        (names.INTERRUPT, ({"end": "perhaps"},), "Message: end"),
        (names.STEER, ({"text": "x", "end": True},), "Message: end is only for interrupt"),
        (names.STEER, ({"end": True},), "Message: end is only for interrupt"),
        (names.DECIDE, (), "Decision: id"),
        (names.DECIDE, ({"id": "a", "decision": "maybe"},), "Decision: decision"),
    ],
)
async def test_a_wrong_message_is_refused_with_the_field(
    machine: Machine, kind: str, inputs: tuple[Any, ...], says: str
) -> None:
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        assert says in await refusal(run, kind, *inputs)
        assert not await messages(run)
        await run.signal(kind, args=inputs)
        machine.ending.set_result(done())
        await succeeded(run)
    assert not machine.parcels


@pytest.mark.parametrize(("kind", "verb"), [(names.STEER, "steer"), (names.INTERRUPT, "interrupt")])
async def test_an_agent_that_cannot_refuses(machine: Machine, kind: str, verb: str) -> None:
    async with machine.at_work():
        run = await machine.start(agent="process", command=["true"])
        await phase(run, "running")
        assert await refusal(run, kind, {"text": "x"}) == f'agent "process" cannot {verb}'
        await run.signal(kind, {"text": "x"})
        assert not await messages(run)
        assert await refusal(run, names.INTERRUPT, {"end": True}) == 'agent "process" cannot interrupt'


async def test_a_stopping_run_takes_no_more(machine: Machine) -> None:
    stopping, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(stop: StopInput) -> StopReport:
        stopping.set()
        await go_on.wait()
        return STOPPED

    machine.play_stop = slowly  # type: ignore[method-assign]
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        await run.cancel()
        await stopping.wait()
        assert await refusal(run, names.STEER, {"text": "x"}) == "the run is stopping: it takes no more messages"
        go_on.set()
        await cancelled(run)


async def test_a_closed_run_refuses(machine: Machine) -> None:
    async with machine.at_work():
        run = await machine.start_raw(None)
        await failed(run)
        with pytest.raises((RPCError, WorkflowUpdateFailedError)):
            await run.execute_update(names.STEER, {"text": "x"})


async def test_signals_do_the_same_without_an_answer(machine: Machine) -> None:
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        await run.signal(names.STEER, {"text": "by signal"})
        await run.signal(names.INTERRUPT)

        async def settled() -> bool:
            return list((await messages(run)).values()) == ["acknowledged", "acknowledged"]

        await until(settled)
    assert machine.delivered() == ["steer-1", "interrupt-2"]


async def test_a_conversation_of_some_length_stays_under_a_hundred_events_beside_its_messages(machine: Machine) -> None:
    async with machine.at_work():
        run = await machine.start()
        await phase(run, "running")
        for number in range(3):
            await say(run, text=str(number))
        machine.ending.set_result(done())
        await succeeded(run)
    closed: RunState
    async with machine.at_work():
        closed = await state(run)
    assert len(closed.messages) == 3
    history = await run.fetch_history()
    assert len(history.events) < 100
