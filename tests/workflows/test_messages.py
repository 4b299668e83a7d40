"""Steer and interrupt: acknowledged, once, in order, kept while no worker can take them; refused with a reason."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from steersman.attachments import MAX_BYTES
from steersman.contracts import names
from steersman.contracts.activities import (
    ApprovalAsked,
    Claim,
    Delivered,
    DeliverInput,
    FinalizeInput,
    MessagesSettled,
    RunOutcome,
    Settlement,
    StopInput,
)
from steersman.contracts.agents import CAPABILITIES, at_most
from steersman.contracts.errors import ErrorType
from steersman.contracts.messages import MessageReceipt
from steersman.contracts.run import Approval, RunState, StopReport
from tests.support.images import attached, png
from tests.workflows.fake_host import (
    QUIET,
    STOPPED,
    FakeHost,
    Run,
    cancelled,
    done,
    failed,
    never_retried,
    phase,
    state,
    succeeded,
    timers,
    until,
)
from tests.workflows.test_input import raw
from workflows.agent_run import delivery

pytestmark = [pytest.mark.integration, QUIET]
PAUSED = "the activity is paused"
SILENT = CAPABILITIES["process"].model_copy(update={"soft_steer": False})
"""What a host says of a program that takes no messages."""


async def say(run: Run, kind: str = names.STEER, **message: Any) -> MessageReceipt:
    return MessageReceipt.model_validate(await run.execute_update(kind, message))


async def refusal(run: Run, kind: str, *inputs: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await run.execute_update(kind, args=inputs)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.message


async def test_an_update_that_is_wrong_is_refused_in_our_words_alone(fake: FakeHost) -> None:
    """Pydantic's have the values, which may be secret; and a second input would be ignored."""
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        for kind in (names.STEER, names.INTERRUPT, names.DECIDE):
            two = await refusal(run, kind, {"text": "x"}, {"text": "y"})
            assert two.endswith("the input must be one JSON object, not 2 values")
            for wrong in ({"text": ["hush"], "id": 5}, raw(rb'{"text": "hush \ud800"}')):
                with pytest.raises(WorkflowUpdateFailedError) as refused:
                    await run.execute_update(kind, wrong)
                assert isinstance(refused.value.cause, ApplicationError)
                assert refused.value.cause.type == ErrorType.INVALID_REQUEST
                assert refused.value.cause.__cause__ is None
                assert "hush" not in str(refused.value.cause)
        assert await messages(run) == {}
        await run.cancel()


async def messages(run: Run) -> dict[str, str]:
    return {each.id: each.state for each in (await state(run)).messages}


def held_at_its_end(fake: FakeHost) -> tuple[asyncio.Event, asyncio.Event]:
    """Set once the run closes its log; what lets it go on."""
    ending, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(end: FinalizeInput) -> None:
        ending.set()
        await go_on.wait()

    fake.play_end = slowly  # type: ignore[method-assign]
    return ending, go_on


async def test_a_steer_is_acknowledged(any_fake: FakeHost) -> None:
    run = await any_fake.start()
    await phase(run, "running")
    receipt = await say(run, text="use the other file", reason="it is newer")
    assert (receipt.state, receipt.how) == ("acknowledged", "mid_turn")
    assert 0 <= receipt.latency_ms < 10_000
    (delivery,) = any_fake.deliveries
    assert [(each.kind, each.text) for each in delivery.messages] == [("steer", "use the other file")]
    (record,) = (await state(run)).messages
    assert (record.text, record.reason, record.state) == ("use the other file", "it is newer", "acknowledged")
    assert record.settled_at is not None
    any_fake.ending.set_result(done())
    assert (await succeeded(run)).messages_delivered == 1


async def test_a_session_that_was_frozen_and_comes_back_late_is_not_taken_for_the_newest(fake: FakeHost) -> None:
    async with fake.at_work(runs=False):
        run = await fake.start()
        await fake.began(run.id, worker=1, epoch=2)
        await fake.began(run.id, worker=0, epoch=1)
        async with fake.worker(fake.own_queue(1), activities=[fake.deliver_messages]):
            await say(run, text="to the newest")
        handle = (await state(run)).handle
    assert handle is not None
    assert handle.worker_queue == fake.own_queue(1)


async def test_the_host_that_claims_a_run_says_what_it_can_do(fake: FakeHost) -> None:
    claiming, go_on = asyncio.Event(), asyncio.Event()

    async def dawdle(request: Any) -> Claim:
        claiming.set()
        await go_on.wait()
        return Claim(host=fake.host, capabilities=SILENT)

    fake.play_claim = dawdle  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start(agent="process", command=["true"])
        await claiming.wait()
        assert "cannot interrupt" in await refusal(run, names.INTERRUPT, {"text": "the table says so"})
        early = asyncio.ensure_future(say(run, id="early", text="some requests of that agent take messages"))
        await until(lambda: messages(run))
        go_on.set()
        why = 'agent "process" cannot steer: stop the run, or wait for its end'
        assert ((await early).state, (await early).how) == ("rejected", why)
        assert why in await refusal(run, names.STEER, {"text": "this one takes none"})
        await phase(run, "running")
    assert not fake.deliveries


async def test_files_go_with_a_message(fake: FakeHost) -> None:
    picture, notes = attached(png(), "red.png"), attached(b"look here", "notes")
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        receipt = await say(run, text="what is it?", attachments=[picture, notes])
        assert receipt.state == "acknowledged"
        (record,) = (await state(run)).messages
        assert "attachments go with a text" in await refusal(run, names.STEER, {"attachments": [notes]})
        assert "attachments.0" in await refusal(run, names.STEER, {"text": "x", "attachments": [{"name": "a"}]})
    ((message,),) = (each.messages for each in fake.deliveries)
    assert [(each.name, each.content) for each in message.attachments] == [("red.png", png()), ("notes", b"look here")]
    assert message.text == "what is it?"
    assert (record.text, record.attachments) == ("what is it?", ("red.png", "notes"))


async def test_an_agent_that_cannot_see_is_given_no_images(fake: FakeHost) -> None:
    """Known by the claim: what was taken before it is rejected."""
    claiming, go_on = asyncio.Event(), asyncio.Event()
    blind = at_most("claude").model_copy(update={"images": False})

    async def dawdle(request: Any) -> Claim:
        claiming.set()
        await go_on.wait()
        return Claim(host=fake.host, capabilities=blind)

    fake.play_claim = dawdle  # type: ignore[method-assign]
    picture, notes = [attached(png(), "red.png")], [attached(b"look here", "notes")]
    async with fake.at_work():
        run = await fake.start()
        await claiming.wait()
        early = asyncio.ensure_future(say(run, id="early", text="look", attachments=picture))
        await until(lambda: messages(run))
        go_on.set()
        assert (await early).state == "rejected"
        assert "cannot be given images" in ((await early).how or "")
        await phase(run, "running")
        assert "cannot be given images" in await refusal(run, names.STEER, {"text": "x", "attachments": picture})
        assert (await say(run, text="read", attachments=notes)).state == "acknowledged"
    assert [each.text for delivery in fake.deliveries for each in delivery.messages] == ["read"]


async def test_attached_texts_that_grow_as_json_are_delivered_all_the_same(fake: FakeHost) -> None:
    """A control character is one byte of a file, and six of a JSON text: 3 MB, where a payload may have 2."""
    bells = attached(b"\a" * MAX_BYTES, "bells")
    async with fake.at_work():
        run = await fake.start(attachments=[bells])
        await phase(run, "running")
        for kind in ("one", "two"):
            assert (await say(run, text=kind, attachments=[bells])).state == "acknowledged"
        fake.ending.set_result(done())
        await succeeded(run)
    told = [each.as_told() for delivery in fake.deliveries for each in delivery.messages]
    assert [(len(each.text or "") > MAX_BYTES, each.attachments) for each in told] == [(True, ())] * 2


async def test_an_interrupt_needs_no_text(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        receipt = MessageReceipt.model_validate(await run.execute_update(names.INTERRUPT, id="my-update"))
        assert (receipt.id, receipt.state) == ("my-update", "acknowledged")
        other = await say(run, names.INTERRUPT, text="stop that, do this")
        assert (other.state, other.id != receipt.id) == ("acknowledged", True)


async def test_the_same_id_twice_is_one_message(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        receipts = await asyncio.gather(*(say(run, id="m-1", text="once") for _ in range(5)))
        await run.signal(names.STEER, {"id": "m-1", "text": "once"})
        assert {(each.id, each.state) for each in receipts} == {("m-1", "acknowledged")}
        await say(run, id="m-2", text="last")
    assert fake.delivered() == ["m-1", "m-2"]


async def test_the_same_id_is_answered_after_the_run_takes_no_more(fake: FakeHost) -> None:
    """A client that lost its connection asks again: it must learn what became of its message."""
    ending, go_on = held_at_its_end(fake)
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await say(run, id="m-1", text="once")
        fake.ending.set_result(done())
        await ending.wait()
        assert (await say(run, id="m-1", text="once")).state == "acknowledged"
        assert "finalizing" in await refusal(run, names.STEER, {"text": "new"})
        go_on.set()
        await succeeded(run)


async def test_messages_arrive_in_the_order_in_which_they_were_said(fake: FakeHost) -> None:
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        for number in range(6):
            await run.signal(names.STEER, {"id": f"m-{number}", "text": str(number)})
        async with fake.worker(fake.own_queue(), activities=[fake.deliver_messages]):
            await until(lambda: len(fake.delivered()) >= 6)
    seen = list(dict.fromkeys(fake.delivered()))
    assert seen == [f"m-{number}" for number in range(6)]


async def test_a_message_waits_while_its_worker_is_dead_and_goes_to_the_next(fake: FakeHost) -> None:
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, id="m", text="are you there?"))
        await until(lambda: _recorded(run, 1))
        assert await messages(run) == {"m": "queued"}
        async with fake.worker(fake.own_queue(1), activities=[fake.deliver_messages]):
            await fake.began(run.id, worker=1, pid=4711, attempt=1)
            assert (await waiting).state in ("queued", "acknowledged")
            await until(lambda: _all_settled(run, 1))
            receipt = await say(run, id="m", text="are you there?")
        assert (receipt.id, receipt.state) == ("m", "acknowledged")
        assert set(fake.delivered()) == {"m"}
        handle = (await state(run)).handle
    assert handle is not None
    assert handle.worker_queue == fake.own_queue(1)


async def test_a_delivery_that_nobody_answers_ends_with_the_run(fake: FakeHost) -> None:
    """Nobody else is asked any more."""
    hangs = asyncio.Event()

    async def hang(delivery: DeliverInput) -> Delivered:
        hangs.set()
        await asyncio.sleep(60)
        return Delivered(here=True)

    fake.play_delivery = hang  # type: ignore[method-assign]
    async with fake.at_work(local=True):
        run = await fake.start()
        await phase(run, "running")
        await run.signal(names.STEER, {"text": "are you there?"})
        await hangs.wait()
        fake.ending.set_result(done())
        await succeeded(run)
        assert await _activities(run, names.DELIVER_MESSAGES) == 1


async def _activities(run: Run, name: str) -> int:
    """How many of this type the run has asked for."""
    events = [each.activity_task_scheduled_event_attributes async for each in run.fetch_history_events()]
    return [each.activity_type.name for each in events].count(name)


async def test_what_is_said_after_a_long_wait_waits_no_longer_than_the_first(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that its worker took and did not confirm is said again, ever later; the next one as soon as any."""
    monkeypatch.setattr(delivery, "RESEND_INTERVAL", timedelta(seconds=0.2))

    async def lose(delivery: DeliverInput) -> Delivered:
        return Delivered(here=True)

    fake.play_delivery = lose  # type: ignore[method-assign]
    async with fake.at_work(local=True):
        run = await fake.start()
        await phase(run, "running")
        for id, times in (("first", 4), ("second", 2)):
            await run.signal(names.STEER, {"id": id, "text": "are you there?"})
            await until(lambda i=id, t=times: fake.delivered().count(i) >= t)  # type: ignore[misc]
            settled = Settlement(id=id, state="acknowledged")
            await run.signal(names.MESSAGES_SETTLED, MessagesSettled(messages=(settled,)))
        fake.ending.set_result(done())
        await succeeded(run)
        waits = [
            each.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
            async for each in run.fetch_history_events()
            if each.HasField("timer_started_event_attributes")
        ]
    assert [wait.total_seconds() for wait in waits[:5]] == [0.2, 0.4, 0.8, 1.6, 0.2]


async def test_what_is_new_is_tried_at_once_and_what_waits_with_it(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_INTERVAL", timedelta(hours=1))
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        await run.signal(names.STEER, {"id": "first", "text": "are you there?"})
        await until(lambda: _waits(run, "deliver it again"))
        async with fake.worker(fake.own_queue(), activities=[fake.deliver_messages]):
            await run.signal(names.STEER, {"id": "second", "text": "are you?"})
            await until(lambda: fake.delivered() == ["first", "second"])


async def _waits(run: Run, timer: str) -> bool:
    return any(timer in each for each in await timers(run))


async def _recorded(run: Run, count: int) -> bool:
    return len((await state(run)).messages) >= count


async def test_what_was_delivered_but_not_acknowledged_is_said_again_to_the_next_worker(fake: FakeHost) -> None:
    async def half(delivery: DeliverInput) -> Delivered:
        taken = (Settlement(id=each.id, state="delivered") for each in delivery.messages)
        return Delivered(here=True, messages=tuple(taken))

    fake.play_delivery = half  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        assert (await say(run, id="m-1", text="one")).state == "delivered"
        async with fake.worker(fake.own_queue(1), activities=[fake.deliver_messages]):
            await fake.began(run.id, worker=1)
            await until(lambda: fake.delivered() == ["m-1", "m-1"])
            settled = MessagesSettled(messages=(Settlement(id="m-1", state="acknowledged", how="new_turn"),))
            await run.signal(names.MESSAGES_SETTLED, settled)
            await fake.began(run.id, worker=1)
            await say(run, id="m-2", text="two")
    assert fake.delivered() == ["m-1", "m-1", "m-2"]


@pytest.mark.exhaustive
async def test_a_worker_that_no_longer_holds_the_session_is_asked_again_later(fake: FakeHost) -> None:
    looked_at = asyncio.Event()

    async def not_here(delivery: DeliverInput) -> Delivered:
        if len(fake.deliveries) == 1:
            return Delivered(here=False, why=PAUSED)
        await looked_at.wait()
        return await FakeHost.play_delivery(fake, delivery)

    fake.play_delivery = not_here  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        receipt = await say(run, id="m", text="one")
        assert (receipt.state, receipt.how) == ("queued", PAUSED)
        assert (await state(run)).messages_wait == PAUSED
        looked_at.set()
        await until(lambda: _all_settled(run, 1))
        assert (await say(run, id="m", text="one")).state == "acknowledged"
        assert (await state(run)).messages_wait is None
    assert fake.delivered() == ["m"] * len(fake.deliveries)


async def test_said_before_the_agent_runs_it_is_kept(fake: FakeHost) -> None:
    async with fake.at_work(runs=False):
        run = await fake.start()
        early = asyncio.ensure_future(say(run, text="early"))
        await until(lambda: _recorded(run, 1))
        async with fake.worker(names.runs_queue(fake.host), activities=[fake.run_agent]):
            assert (await early).state == "acknowledged"


async def test_what_the_agent_refuses_is_rejected_with_its_reason(fake: FakeHost) -> None:
    async def refuse(delivery: DeliverInput) -> Delivered:
        taken = (Settlement(id=each.id, state="rejected", how="it was interrupted first") for each in delivery.messages)
        return Delivered(here=True, messages=tuple(taken))

    fake.play_delivery = refuse  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        receipt = await say(run, text="one")
        assert (receipt.state, receipt.how) == ("rejected", "it was interrupted first")
        fake.ending.set_result(done())
        assert (await succeeded(run)).messages_delivered == 0


async def test_what_comes_too_late_is_answered_so(fake: FakeHost) -> None:
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, id="m", text="too late"))
        await until(lambda: _recorded(run, 1))
        fake.ending.set_result(done(journal_read=True))
        receipt = await waiting
        assert (receipt.state, receipt.how) == ("too_late", "the run ended first")
        assert (await succeeded(run)).messages_delivered == 0
        assert await messages(run) == {"m": "too_late"}


async def test_a_waiting_message_is_answered_when_the_run_is_cancelled(fake: FakeHost) -> None:
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, names.INTERRUPT))
        await until(lambda: _recorded(run, 1))
        await run.cancel()
        # It was on its way, and nobody has read the journal to its end.
        assert (await waiting).state == "unverified"
        await cancelled(run)


async def test_what_the_agents_end_says_of_a_message_counts(fake: FakeHost) -> None:
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        waiting = asyncio.ensure_future(say(run, id="m", text="one"))
        await until(lambda: _recorded(run, 1))
        told = {"messages": [{"id": "m", "state": "acknowledged", "how": "mid_turn"}]}
        fake.ending.set_result(RunOutcome.model_validate({**done().model_dump(), **told}))
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
    fake: FakeHost, kind: str, inputs: tuple[Any, ...], says: str
) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        assert says in await refusal(run, kind, *inputs)
        assert not await messages(run)
        await run.signal(kind, args=inputs)
        fake.ending.set_result(done())
        await succeeded(run)
    assert not fake.deliveries


@pytest.mark.parametrize(("kind", "verb"), [(names.STEER, "steer"), (names.INTERRUPT, "interrupt")])
async def test_an_agent_that_cannot_refuses(fake: FakeHost, kind: str, verb: str) -> None:
    async def claim(request: Any) -> Claim:
        return Claim(host=fake.host, capabilities=SILENT)

    fake.play_claim = claim  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start(agent="process", command=["true"])
        await phase(run, "running")
        instead = "stop the run, or wait for its end"
        assert await refusal(run, kind, {"text": "x"}) == f'agent "process" cannot {verb}: {instead}'
        await run.signal(kind, {"text": "x"})
        assert not await messages(run)
        assert await refusal(run, names.INTERRUPT, {"end": True}) == f'agent "process" cannot interrupt: {instead}'


async def test_a_stopping_run_takes_no_more(fake: FakeHost) -> None:
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
        assert await refusal(run, names.STEER, {"text": "x"}) == "the run is stopping: it takes no more messages"
        go_on.set()
        await cancelled(run)


async def test_a_closed_run_refuses(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start_raw(None)
        await failed(run)
        with pytest.raises((RPCError, WorkflowUpdateFailedError)):
            await run.execute_update(names.STEER, {"text": "x"})


async def test_signals_do_the_same_without_an_answer(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.signal(names.STEER, {"text": "by signal"})
        await run.signal(names.INTERRUPT)

        async def settled() -> bool:
            return list((await messages(run)).values()) == ["acknowledged", "acknowledged"]

        await until(settled)
    assert fake.delivered() == ["steer-1", "interrupt-2"]


async def test_a_conversation_of_some_length_stays_under_a_hundred_events_beside_its_messages(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        for number in range(3):
            await say(run, text=str(number))
        fake.ending.set_result(done())
        await succeeded(run)
    closed: RunState
    async with fake.at_work():
        closed = await state(run)
    assert len(closed.messages) == 3
    history = await run.fetch_history()
    assert len(history.events) < 100


async def test_what_waits_is_said_to_wait_within_five_seconds(fake: FakeHost) -> None:
    """The worker that held the session is dead: the message is kept, and whoever said it can go."""
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        for kind in (names.STEER, names.INTERRUPT):
            receipt = await asyncio.wait_for(say(run, kind, id=kind, text="are you there?"), 30)
            assert (receipt.id, receipt.state) == (kind, "queued")
            assert "no worker holds the agent's session" in (receipt.how or "")
        assert (await state(run)).messages_wait is not None


@pytest.mark.exhaustive
async def test_what_is_said_to_a_run_that_no_worker_takes_is_answered_within_five_seconds(fake: FakeHost) -> None:
    async with fake.at_work(runs=False):
        run = await fake.start()
        receipt = await asyncio.wait_for(say(run, id="m", text="are you there?"), 30)
        assert (receipt.state, receipt.how) == ("queued", "no worker has taken the run yet")
        assert await timers(run) == ['"answer that it waits"']


async def test_a_worker_that_is_known_to_hold_the_session_gets_what_another_is_asked_for(fake: FakeHost) -> None:
    """A takeover that had nothing to tell: the workflow still knows the worker before."""

    async def elsewhere(delivery: DeliverInput) -> Delivered:
        if activity.info().task_queue == fake.own_queue(1):
            return await FakeHost.play_delivery(fake, delivery)
        return Delivered(here=False, queue=fake.own_queue(1))

    fake.play_delivery = elsewhere  # type: ignore[method-assign]
    async with fake.at_work(), fake.worker(fake.own_queue(1), activities=[fake.deliver_messages]):
        run = await fake.start()
        await phase(run, "running")
        assert (await say(run, text="one")).state == "acknowledged"


async def test_the_answer_to_an_update_whose_task_the_server_lost_is_what_became_of_it(fake: FakeHost) -> None:
    """It was delivered and read; then the run ended. The same update comes again, to a run that takes no more."""
    ending, go_on = held_at_its_end(fake)
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        read = Settlement(id="lost", state="acknowledged", how="mid_turn")
        fake.ending.set_result(done(journal_read=True, messages=(read,)))
        await ending.wait()
        for known_as in ({"id": "lost"}, {}):
            receipt = MessageReceipt.model_validate(
                await run.execute_update(names.STEER, {"text": "x", **known_as}, id="lost")
            )
            assert (receipt.id, receipt.state, receipt.how) == ("lost", "acknowledged", "mid_turn")
        go_on.set()
        await succeeded(run)


@pytest.mark.exhaustive
async def test_ten_times_what_may_wait_is_refused_and_a_cancel_closes_the_run(fake: FakeHost) -> None:
    """24 messages of 99,000 characters used to wedge a run for ever, its cancel included."""
    text = "x" * 99_000
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        for number in range(60):
            await run.signal(names.STEER, {"id": f"m-{number}", "text": text})
        assert "no more than 512,000 do" in await refusal(run, names.STEER, {"text": text})
        assert list(await messages(run)) == [f"m-{number}" for number in range(5)]
        await run.cancel()
        await cancelled(run)
        assert set((await messages(run)).values()) <= {"unverified", "too_late"}
    await never_retried(run)


async def test_what_waited_for_a_worker_all_arrives(fake: FakeHost) -> None:
    async with fake.at_work(delivery=False):
        run = await fake.start()
        await phase(run, "running")
        for number in range(50):
            await run.signal(names.STEER, {"id": f"m-{number}", "text": "x" * 10_000})
        async with fake.worker(fake.own_queue(), activities=[fake.deliver_messages]):
            await until(lambda: _all_settled(run, 50))
        assert list(dict.fromkeys(fake.delivered())) == [f"m-{number}" for number in range(50)]
        assert all(len(each.text or "") <= 80 for each in (await state(run)).messages)
    await never_retried(run)


async def _all_settled(run: Run, count: int) -> bool:
    states = list((await messages(run)).values())
    return len(states) == count and set(states) == {"acknowledged"}


@pytest.mark.exhaustive
async def test_all_the_bytes_that_a_run_takes_and_ten_times_as_many_leave_it_answering(fake: FakeHost) -> None:
    async with fake.at_work(cached=10, local=True):
        run = await fake.start()
        await phase(run, "running")
        for number in range(80):
            await say(run, id=f"m-{number}", text="x" * 99_000)
        for _ in range(20):
            assert "no more than 8,000,000 in all" in await refusal(run, names.STEER, {"text": "x" * 99_000})
        assert len((await state(run)).messages) == 80
        await run.cancel()
        await cancelled(run)


async def test_a_request_that_is_too_large_to_be_handed_on_is_refused_and_the_largest_one_closes(
    fake: FakeHost,
) -> None:
    async with fake.at_work(cached=10):
        kind, message, _ = await failed(await fake.start(prompt="x" * 1_000_001))
        assert (kind, "may have 1,000,000" in message) == ("InvalidRequest", True)
        kind, message, _ = await failed(await fake.start(labels={"a": "x" * 33_000}))
        assert (kind, "labels" in message) == ("InvalidRequest", True)
        run = await fake.start(prompt="x" * 999_000)
        await phase(run, "running")
        fake.ending.set_result(done("ö" * 300_000))
        assert len((await succeeded(run)).text) == 300_000
    await never_retried(run)


@pytest.mark.exhaustive
async def test_an_approval_of_any_size_leaves_the_run_answering(fake: FakeHost) -> None:
    async with fake.at_work(cached=10):
        run = await fake.start()
        await phase(run, "running")
        for number in range(300):
            approval = Approval(id=f"a-{number}", tool="Bash", input={"command": "x" * 20_000}, since=datetime.now(UTC))
            await run.signal(names.APPROVAL_ASKED, ApprovalAsked(approval=approval))
        await until(lambda: _asked(run, 100))
        shown = [each.input for each in (await state(run)).approvals]
        assert sum(len(str(each)) for each in shown) < 600_000
        await run.cancel()
        await cancelled(run)
    await never_retried(run)


async def _asked(run: Run, count: int) -> bool:
    return len((await state(run)).approvals) == count


@pytest.mark.exhaustive
async def test_a_worker_that_hangs_over_a_delivery_keeps_nobody_waiting(fake: FakeHost) -> None:
    let_go = asyncio.Event()

    async def hangs(delivery: DeliverInput) -> Delivered:
        await let_go.wait()
        return Delivered(here=False)

    fake.play_delivery = hangs  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        receipt = await asyncio.wait_for(say(run, id="m", text="are you there?"), 30)
        let_go.set()
        assert receipt.state == "queued"
        assert receipt.how
