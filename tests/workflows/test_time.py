"""What takes hours, on the server that skips time.

It does not skip while an activity is at work or waits for a worker, so here every activity that is to last fails at
once and is tried again; sessions are played by signals.
"""

from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from steersman.contracts import names
from steersman.contracts.activities import Delivered, DeliverInput, RunAgentInput, RunOutcome, StopInput
from steersman.contracts.run import StopReport
from tests.workflows.fake_host import QUIET, FakeHost, cancelled, failed, state, until

pytestmark = [pytest.mark.integration, QUIET]


class Stumbling(FakeHost):
    """No attempt of its run_agent comes to anything."""

    async def play_agent(self, run: RunAgentInput) -> RunOutcome:
        raise RuntimeError("not yet")


async def test_an_approval_nobody_answers_is_denied_after_an_hour(skipping: WorkflowEnvironment) -> None:
    fake = Stumbling(skipping.client)
    async with fake.at_work(local=True):
        run = await fake.start(permissions={"mode": "ask"})
        await fake.began(run.id)
        await fake.ask(run.id, "a-1", since=await skipping.get_current_time())
        await skipping.sleep(timedelta(minutes=59))
        assert [each.id for each in (await state(run)).approvals] == ["a-1"]
        assert fake.decisions() == []
        await fake.ask(run.id, "a-2", since=await skipping.get_current_time())
        await skipping.sleep(timedelta(minutes=2))
        await until(lambda: fake.decisions() == [("a-1", "deny")])
        assert [each.id for each in (await state(run)).approvals] == ["a-2"]


async def test_a_run_is_over_after_its_duration_even_if_no_attempt_came_to_anything(
    skipping: WorkflowEnvironment,
) -> None:
    fake = Stumbling(skipping.client)
    async with fake.at_work():
        run = await fake.start(limits={"duration_s": 1800})
        kind, message, result = await failed(run)
    assert (kind, message) == ("RunTimedOut", "limits.duration_s: the run took longer than 1800 s")
    assert timedelta(seconds=1800) <= result.ended_at - result.started_at < timedelta(seconds=1900)


async def test_a_host_on_which_nothing_can_be_stopped_leaves_a_stop_unverified(skipping: WorkflowEnvironment) -> None:
    """The result waits as long as the lease: by then the shim has ended the agent, but nobody has seen it."""

    class Broken(Stumbling):
        async def play_stop(self, stop: StopInput) -> StopReport:
            raise RuntimeError("the disk is gone")

    fake = Broken(skipping.client)
    async with fake.at_work():
        run = await fake.start(lease_s=600)
        await until(lambda: bool(fake.runs))
        await fake.began(run.id)
        await run.cancel()
        closed = await cancelled(run)
    description = await run.describe()
    assert description.close_time is not None
    waited = description.close_time - description.start_time
    assert closed.stop_report is not None
    assert (closed.stop_report.outcome, closed.stop_report.how) == ("unverified", None)
    assert timedelta(seconds=600) < waited < timedelta(seconds=1200)


@pytest.mark.exhaustive
async def test_a_message_waits_for_hours_and_costs_little_history(skipping: WorkflowEnvironment) -> None:
    class Away(Stumbling):
        away = True

        async def play_delivery(self, delivery: DeliverInput) -> Delivered:
            return Delivered(here=False) if self.away else await super().play_delivery(delivery)

    fake = Away(skipping.client)
    async with fake.at_work():
        run = await fake.start()
        await fake.began(run.id)
        await run.signal(names.STEER, {"text": "one"})
        await skipping.sleep(timedelta(hours=1))
        fake.away = False
        await fake.began(run.id)

        async def taken() -> bool:
            return [each.state for each in (await state(run)).messages] == ["acknowledged"]

        await until(taken)
    assert len((await run.fetch_history()).events) < 400
