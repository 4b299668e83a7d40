"""Cancelling a loop, in every status: its run ends, what there is is kept, nothing is lost."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from steersman.contracts.loop_activities import DropInput, Dropped, Survey, SurveyInput
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, Loop
from tests.workflows.loop_client import cancelled, ended, kinds, never_retried, reaches, refused, state, tell
from tests.workflows.loop_results import exits, limited, result

pytestmark = pytest.mark.integration


async def closed(loop_fake: FakeLoopHost, run: str) -> str | None:
    """How a run has closed."""
    status = (await loop_fake.client.get_workflow_handle(run).describe()).status
    return status.name if status else None


async def test_while_the_agent_works(uncached_fake: FakeLoopHost) -> None:
    uncached_fake.script = [HELD]
    loop = await uncached_fake.start()
    await uncached_fake.at_hold()
    await tell(loop, "feedback", text="use tabs")
    await loop.cancel()
    now = await cancelled(loop)
    assert (now.status, now.stop_reason, now.run, now.failures, now.last_error) == ("cancelled", None, None, 0, None)
    assert kinds(now) == ["baseline", "end"]
    last = now.checkpoints[-1]
    assert (last.run, last.session_id, last.cost_usd, last.error) == (f"{loop.id}-1", "s-1", 0.005, None)
    assert (now.totals.cost_usd, now.totals.usage.output_tokens, now.totals.iterations) == (0.005, 5, 1)
    assert [each.text for each in now.feedback] == ["use tabs"]
    assert await closed(uncached_fake, f"{loop.id}-1") == "CANCELED"
    await never_retried(loop)


async def test_the_reason_is_the_loops_and_its_runs(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.cancel(reason="too dear")
    assert (await cancelled(loop)).reason == "too dear"
    run = loop_fake.client.get_workflow_handle(f"{loop.id}-1")
    requested = [
        event.workflow_execution_cancel_requested_event_attributes.cause
        async for event in run.fetch_history_events()
        if event.HasField("workflow_execution_cancel_requested_event_attributes")
    ]
    assert requested == ["too dear"]


async def test_the_reason_of_an_exit_is_kept(loop_fake: FakeLoopHost) -> None:
    loop_fake.script, loop_fake.verdicts = [result()], [exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, "waiting_for_decision")
    await tell(loop, "exit", reason="good enough")
    told = await ended(loop)
    assert (told.status, told.reason) == ("exited", "good enough")
    assert (await state(loop)).reason == "good enough"


async def test_while_it_verifies(uncached_fake: FakeLoopHost) -> None:
    uncached_fake.verdicts = [HELD]
    loop = await uncached_fake.start()
    await uncached_fake.at_hold()
    await loop.cancel()
    now = await cancelled(loop)
    assert (kinds(now), now.verification) == (["baseline", "iteration", "end"], None)
    assert now.totals.cost_usd == 0.01
    assert await closed(uncached_fake, f"{loop.id}-1-verify") == "CANCELED"


@pytest.mark.parametrize("waits", ["paused", "waiting_for_decision", "waiting_rate_limit", "running"])
async def test_while_it_waits(loop_fake: FakeLoopHost, waits: str) -> None:
    loop_fake.script = [limited() if waits == "waiting_rate_limit" else result()]
    loop_fake.verdicts = [exits(1)]
    modes: dict[str, dict[str, Any]] = {
        "waiting_for_decision": {"mode": "checkpoint"},
        "paused": {"mode": "checkpoint"},
    }
    loop = await loop_fake.start(pause_between_s=3600, **modes.get(waits, {}))
    if waits == "paused":
        await reaches(loop, "waiting_for_decision")
        await tell(loop, "pause")
    await reaches(loop, lambda now: now.status == waits and (now.wakes_at or waits in modes))
    before = await state(loop)
    await loop.cancel()
    now = await cancelled(loop)
    assert now.status == "cancelled"
    assert kinds(now) == [*kinds(before), "end"]
    assert now.totals.cost_usd == 0.01
    assert (now.wakes_at, now.waits_for) == (None, None)


async def test_while_a_run_starts(temporal: Client) -> None:
    """No worker takes the run: it is withdrawn before it ever began."""
    fake = FakeLoopHost(temporal)
    gate = asyncio.Event()

    async def survey(wanted: SurveyInput) -> Survey:
        gate.set()
        return Survey(head="h", files="f")

    fake.play_survey = survey  # type: ignore[method-assign]
    async with fake.at_work():
        loop = await fake.start()
        await gate.wait()
        await loop.cancel()
        now = await cancelled(loop)
    assert now.status == "cancelled"
    assert kinds(now)[-1] == "end"
    described = await temporal.get_workflow_handle(f"{loop.id}-1").describe() if fake.asked else None
    assert described is None or described.close_time is not None


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [0, 1])
async def test_while_the_workspace_is_looked_at(loop_fake: FakeLoopHost, number: int) -> None:
    async def survey(wanted: SurveyInput) -> Survey:
        if wanted.number == number:
            await loop_fake.held()
        return Survey(head="h", files="f")

    loop_fake.play_survey = survey  # type: ignore[method-assign]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.cancel()
    now = await cancelled(loop)
    assert kinds(now) == ["baseline", "end"][1 - number :]
    assert now.totals.cost_usd == 0.01 * number
    last = now.checkpoints[-1]
    assert (last.number, last.run, last.cost_usd) == [(1, None, 0), (2, f"{loop.id}-1", 0.01)][number]
    # A worker that was slow to hear of the cancel may have kept its files.
    assert [each.numbers for each in loop_fake.drops] == [(number,)]


async def test_before_it_is_open(loop_fake: FakeLoopHost) -> None:
    async def admit(wanted: Any) -> None:
        await loop_fake.held()

    loop_fake.play_admit = admit  # type: ignore[method-assign]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.cancel()
    now = await cancelled(loop)
    assert (now.status, now.checkpoints, loop_fake.surveys) == ("cancelled", (), [])


async def test_while_a_run_that_was_stopped_is_looked_at(loop_fake: FakeLoopHost) -> None:
    """Its cost is counted, whichever came first."""
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await asyncio.gather(loop_fake.client.get_workflow_handle(f"{loop.id}-1").terminate(), loop.cancel())
    now = await cancelled(loop)
    assert now.totals.cost_usd == 0.005


async def test_in_the_moment_in_which_a_wait_ends(temporal: Client) -> None:
    """Both are in one workflow task: what was said, and the cancel."""
    fake = FakeLoopHost(temporal)
    fake.verdicts = [exits(1)]
    async with fake.at_work():
        loop = await fake.start(pause_between_s=3600)
        await reaches(loop, lambda now: now.wakes_at)
    await loop.signal("feedback", {"text": "use tabs"})
    await loop.cancel()
    async with fake.at_work(cached=0):
        assert (await cancelled(loop)).status == "cancelled"


@pytest.mark.exhaustive
@pytest.mark.parametrize("during", ["admission", "a survey"])
async def test_in_the_moment_in_which_the_host_answers(temporal: Client, during: str) -> None:
    fake = FakeLoopHost(temporal)

    async def admit(wanted: Any) -> None:
        if during == "admission":
            await fake.held()

    async def survey(wanted: SurveyInput) -> Survey:
        if during == "a survey" and wanted.number == 0:
            await fake.held()
        return Survey(head="h", files="f")

    fake.play_admit, fake.play_survey = admit, survey  # type: ignore[method-assign]
    async with fake.hosting():
        async with fake.at_work(host=False):
            loop = await fake.start()
            await fake.at_hold()
        fake.release()
        await until_answered(loop)
        await loop.cancel()
        async with fake.at_work(host=False, cached=0):
            now = await cancelled(loop)
    assert (now.status, fake.asked) == ("cancelled", [])


async def until_answered(loop: Loop) -> None:
    """Wait until all activities that were asked for have answered."""
    async with asyncio.timeout(20):
        while (await loop.describe()).raw_description.pending_activities:
            await asyncio.sleep(0.02)


async def test_twice(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.cancel()
    await loop.cancel()
    assert (await cancelled(loop)).checkpoints_total == 2


@pytest.mark.exhaustive
async def test_whoever_waits_for_something_is_told(loop_fake: FakeLoopHost) -> None:
    async def survey(wanted: SurveyInput) -> Survey:
        if wanted.message.startswith("rescue"):
            await loop_fake.held()
        return Survey(head="h", files="f", commit="c")

    loop_fake.play_survey = survey  # type: ignore[method-assign]
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, "waiting_for_decision")
    going_back = asyncio.ensure_future(loop.execute_update("rollback", {"checkpoint": 0}))
    await loop_fake.at_hold()
    await loop.cancel()
    await cancelled(loop)
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await going_back
    assert str(raised.value.cause) == "Refused: the loop ended before it could be done"


async def test_a_loop_that_ends_takes_no_more_wishes(loop_fake: FakeLoopHost) -> None:
    async def drop(wanted: DropInput) -> Dropped:
        await loop_fake.held()
        return Dropped(numbers=wanted.numbers)

    loop_fake.play_drop = drop  # type: ignore[method-assign]
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, "waiting_for_decision")
    cleaning = asyncio.ensure_future(loop.execute_update("checkpoints", {"all": True}))
    await loop_fake.at_hold()
    await tell(loop, "exit")
    await reaches(loop, "exited")
    for name, said in (("feedback", {"text": "x"}), ("pause", {}), ("restart", {}), ("exit", {})):
        assert await refused(loop, name, said) == ("Refused", "the loop has ended: exited")
    loop_fake.release()
    assert (await cleaning)["deleted"] == [0, 1]
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.checkpoints, outcome.last_checkpoint) == ("exit", 0, None)
