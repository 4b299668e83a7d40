"""What takes hours and days, on the server that skips time. Sessions are played by signals; no run_agent runs."""

from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from steersman.contracts import names
from tests.workflows.machine import Machine, cancelled, failed, state, until

pytestmark = pytest.mark.integration


async def test_an_approval_nobody_answers_is_denied_after_an_hour(skipping: WorkflowEnvironment) -> None:
    machine = Machine(skipping.client)
    async with machine.at_work(runs=False):
        run = await machine.start(permissions={"mode": "ask"})
        await machine.began(run.id)
        await machine.ask(run.id, "a-1")
        await skipping.sleep(timedelta(minutes=59))
        assert [each.id for each in (await state(run)).approvals] == ["a-1"]
        assert machine.decisions() == []
        await machine.ask(run.id, "a-2")
        await skipping.sleep(timedelta(minutes=2))
        await until(lambda: machine.decisions() == [("a-1", "deny")])
        assert [each.id for each in (await state(run)).approvals] == ["a-2"]


async def test_a_run_that_waits_for_room_longer_than_its_duration_is_over(skipping: WorkflowEnvironment) -> None:
    machine = Machine(skipping.client)
    async with machine.at_work(runs=False):
        run = await machine.start(limits={"duration_s": 86400})
        kind, message, _ = await failed(run)
        assert (kind, message) == ("RunTimedOut", "limits.duration_s: the run took longer than 86400 s")
        report = (await state(run)).stop_report
    assert report is not None
    assert (report.outcome, report.phase, report.processes) == ("stopped", "queued", 0)


async def test_a_host_that_is_gone_leaves_a_stop_unverified(skipping: WorkflowEnvironment) -> None:
    """The result waits as long as the lease: by then the shim has ended the agent, but nobody has seen it."""
    machine = Machine(skipping.client)
    async with machine.at_work(runs=False, host=False):
        run = await machine.start(lease_s=600)
        await machine.began(run.id)
        before = await skipping.get_current_time()
        await run.cancel()
        closed = await cancelled(run)
        waited = await skipping.get_current_time() - before
    assert closed.stop_report is not None
    assert (closed.stop_report.outcome, closed.stop_report.how) == ("unverified", None)
    assert timedelta(seconds=600) < waited < timedelta(seconds=1200)


async def test_messages_wait_for_days_for_a_worker_to_come_back(skipping: WorkflowEnvironment) -> None:
    machine = Machine(skipping.client)
    async with machine.at_work(runs=False, delivery=False):
        run = await machine.start()
        await machine.began(run.id)
        await run.signal(names.STEER, {"text": "one"})
        await skipping.sleep(timedelta(days=2))
        events = len((await run.fetch_history()).events)
        async with machine.worker(machine.own_queue(1), activities=[machine.deliver_messages]):
            await machine.began(run.id, worker=1)
            await until(lambda: machine.delivered() == ["steer-1"])
    # Every attempt at a dead queue costs history.
    assert events < 8000
