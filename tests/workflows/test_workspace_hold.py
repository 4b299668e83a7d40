"""A run or loop whose workspace another one has takes it before it goes on, and costs nothing where nobody has it."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.activities import Claim
from steersman.contracts.workspace_hold import HoldWorkspace, Steered, WorkspaceHeld
from steersman.contracts.workspace_holder import WorkspaceHolder
from tests.workflows import loop_client
from tests.workflows.fake_host import (
    QUIET,
    FakeHost,
    cancelled,
    done,
    event_types,
    failed,
    never_retried,
    phase,
    state,
    succeeded,
    until,
)
from tests.workflows.fake_loop_host import FakeLoopHost

pytestmark = [pytest.mark.integration, QUIET]

HOLDER = WorkspaceHolder(id="run-1", path="/w", since=datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture
def overlapping(fake: FakeHost) -> FakeHost:
    """A host whose claims say that another run has the workspace."""

    async def claim(request: Any) -> Claim:
        return Claim(host=fake.host, workspace_held_by=(HOLDER,))

    fake.play_claim = claim  # type: ignore[method-assign]
    return fake


async def waits(fake: FakeHost) -> None:
    await until(lambda: fake.holds)


@pytest.mark.parametrize("cached", [0, 100])
async def test_it_waits_says_for_whom_and_goes_on(overlapping: FakeHost, cached: int) -> None:
    async with overlapping.at_work(cached=cached) as fake:
        run = await fake.start(workspace={"path": "/w", "on_overlap": "queue"})
        await waits(fake)
        assert ((await state(run)).phase, (await state(run)).workspace_held_by) == ("queued", (HOLDER,))
        assert fake.runs == []
        fake.free.set_result(WorkspaceHeld(path="/w"))
        fake.ending.set_result(done())
        assert (await succeeded(run)).text == "done"
        assert (await state(run)).workspace_held_by == ()
        await never_retried(run)
    (hold,) = fake.holds
    assert (hold.request.workspace.on_overlap, hold.request.prompt) == ("queue", "-")


async def test_where_nobody_has_it_there_is_no_further_event(fake: FakeHost) -> None:
    async with fake.at_work() as host:
        host.ending.set_result(done())
        run = await host.start()
        await succeeded(run)
        assert host.holds == []
        assert (await event_types(run)).count("ACTIVITY_TASK_SCHEDULED") == 3
        assert "MARKER_RECORDED" in await event_types(run)
        assert (await event_types(run)).count("MARKER_RECORDED") == 1


async def test_a_refusal_fails_it_by_its_type_and_says_who_has_it(overlapping: FakeHost) -> None:
    async def refuse(hold: HoldWorkspace) -> WorkspaceHeld:
        raise ApplicationError("run-1 has it", {"workspace_holder": "run-1"}, type="InvalidRequest", non_retryable=True)

    overlapping.play_hold = refuse  # type: ignore[method-assign]
    async with overlapping.at_work() as fake:
        kind, message, result = await failed(await fake.start(workspace={"path": "/w", "on_overlap": "steer"}))
    assert (kind, message, result.facts) == ("InvalidRequest", "run-1 has it", {"workspace_holder": "run-1"})
    assert fake.holds[0].request.prompt == "work"
    assert fake.ends[0].event.type == "failed"


async def test_one_whose_prompt_was_given_away_succeeds_and_says_so(overlapping: FakeHost) -> None:
    steered = Steered(kind="loop", id="loop-1", state="queued", how="for the next iteration")
    overlapping.free.set_result(WorkspaceHeld(path="/w", steered=steered))
    async with overlapping.at_work() as fake:
        result = await succeeded(await fake.start(workspace={"path": "/w", "on_overlap": "steer"}))
    assert result.text == "given to loop loop-1, which has the workspace: queued (for the next iteration)"
    assert (result.stop_reason, result.facts) == ("steered", {"steered": "loop-1", "state": "queued"})
    assert (fake.runs, fake.stops) == ([], [])


@pytest.mark.parametrize("answer", ["queue", "rollback"])
async def test_a_cancel_ends_the_wait(overlapping: FakeHost, answer: str) -> None:
    async with overlapping.at_work() as fake:
        run = await fake.start(workspace={"path": "/w", "on_overlap": answer})
        await waits(fake)
        await run.cancel(reason="not now")
        closed = await cancelled(run)
    assert closed.stop_report is not None
    assert (closed.stop_report.outcome, closed.stop_report.reason) == ("stopped", "not now")
    assert (fake.runs, fake.stops) == ([], [])
    assert fake.ends[0].event.type == "cancelled"


async def test_an_end_asked_by_a_person_ends_the_wait(overlapping: FakeHost) -> None:
    async with overlapping.at_work() as fake:
        run = await fake.start(workspace={"path": "/w", "on_overlap": "queue"})
        await waits(fake)
        await run.signal(names.INTERRUPT, {"end": True, "reason": "enough"})
        result = await succeeded(run)
    assert (result.stop_reason, fake.runs) == ("interrupted", [])


@pytest.mark.exhaustive
async def test_its_time_limit_holds_over_the_wait_and_the_work(overlapping: FakeHost) -> None:
    async with overlapping.at_work() as fake:
        waiting = await fake.start(workspace={"path": "/w", "on_overlap": "queue"}, limits={"duration_s": 1})
        kind, _, result = await failed(waiting)
        assert (kind, fake.runs) == ("RunTimedOut", [])
        assert result.stop_report is not None
        both = await fake.start(workspace={"path": "/w", "on_overlap": "queue"}, limits={"duration_s": 6})
        await until(lambda: len(fake.holds) == 2)
        await asyncio.sleep(4)
        fake.free.set_result(WorkspaceHeld(path="/w"))
        await phase(both, "running")
        kind, _, result = await failed(both)
    assert kind == "RunTimedOut"
    assert 5.5 < (result.ended_at - result.started_at).total_seconds() < 9.5  # 10 from when it was let in


async def test_a_loop_waits_before_it_looks_at_anything(loop_fake: FakeLoopHost) -> None:
    loop_fake.held_by = (HOLDER,)
    loop = await loop_fake.start()
    await until(lambda: loop_fake.holds)
    now = await loop_client.state(loop)
    assert (now.status, now.workspace_held_by) == ("running", (HOLDER,))
    assert (await loop_client.state(loop)).totals.active_s == now.totals.active_s
    assert now.waits_for == "its workspace: run run-1 came before"
    assert not loop_fake.surveys
    assert not loop_fake.asked
    loop_fake.free.set()
    result = await loop_client.ended(loop)
    assert result.status == "completed"
    assert (await loop_client.state(loop)).workspace_held_by == ()


async def test_a_loop_that_waits_can_be_exited_and_cancelled(loop_fake: FakeLoopHost) -> None:
    loop_fake.held_by = (HOLDER,)
    exited, stopped = await loop_fake.start(), await loop_fake.start()
    await until(lambda: len(loop_fake.holds) == 2)
    await exited.execute_update(names.EXIT, {"reason": "not needed"})
    result = await loop_client.ended(exited)
    assert (result.status, result.reason) == ("exited", "not needed")
    await stopped.cancel()
    await loop_client.cancelled(stopped)
    assert not loop_fake.surveys
    assert not loop_fake.asked


async def test_a_fork_that_goes_where_the_files_are_gives_back_what_it_took_elsewhere(loop_fake: FakeLoopHost) -> None:
    loop = await loop_fake.start()
    await loop_client.ended(loop)
    there, loop_fake.host = loop_fake.host, "another-host"
    async with loop_fake.hosting():
        fork = await loop_fake.start(from_checkpoint={"loop": loop.id, "number": 1})
        assert (await loop_client.ended(fork)).status == "completed"
    assert loop_fake.released == [names.host_queue("another-host")]
    assert (await loop_client.state(fork)).host == there
