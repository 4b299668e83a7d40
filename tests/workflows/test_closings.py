"""How a run closed whose host was away meanwhile: told as the server has it, not as a guess."""

from pathlib import Path

import pytest
from temporalio.client import Client

from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.event_reader import terminal_event
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.temporal.closed_runs import FORGOTTEN, ClosedRuns
from steersman.contracts.activities import CarriedBack, RunKey
from steersman.contracts.events import CancelledEvent, FailedEvent, TerminalEvent
from steersman.contracts.run import RunState, StopReport
from tests.workflows.fake_host import QUIET, FakeHost, Run, cancelled, done, phase, succeeded

pytestmark = [pytest.mark.integration, QUIET]

NOTHING = StopReport(outcome="already_finished", phase="running", how="exited")


async def _no_copy(_: RunDirectory, __: CarriedBack | None) -> None:
    """No run here has a copy of its workspace."""


async def _nothing_kept(_: RunDirectory, __: RunState | None) -> None:
    """Nothing is kept of any workspace here."""


class Host:
    """What a host does for a run that closed behind its back: the log is begun, and has no end."""

    def __init__(self, client: Client, state: Path) -> None:
        store = RunStore(state, Ownership("cluster", "default"))
        self._store, self.closings = (
            store,
            ClosedRuns(client, ShimRuntime(store, "host"), store, _no_copy, _nothing_kept),
        )

    async def ends(self, key: RunKey) -> TerminalEvent | None:
        directory: RunDirectory = self._store.create(key)
        closing = await self.closings.close_of(key)
        if closing is not None:
            await self.closings.end_log(directory, closing, NOTHING)
        return terminal_event(directory.events)


@pytest.fixture
def host(temporal: Client, tmp_path: Path) -> Host:
    return Host(temporal, tmp_path)


async def key_of(run: Run) -> RunKey:
    return RunKey(run=run.id, execution=(await run.describe()).run_id)


async def test_one_that_succeeded_has_not_failed(fake: FakeHost, host: Host) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        assert await host.ends(await key_of(run)) is None
        fake.ending.set_result(done("42"))
        await succeeded(run)
    event = await host.ends(await key_of(run))
    assert event == fake.ends[0].event.model_copy(update={"seq": 1})


async def test_one_that_was_cancelled_keeps_its_reason_and_its_proof(fake: FakeHost, host: Host) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel(reason="enough")
        await cancelled(run)
    event = await host.ends(await key_of(run))
    assert isinstance(event, CancelledEvent)
    assert event == fake.ends[0].event.model_copy(update={"seq": 1})
    assert (event.reason, event.terminated) == ("enough", False)


async def test_one_whose_id_was_used_again_is_told_by_its_own_end(fake: FakeHost, host: Host) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        key = await key_of(run)
        await run.terminate(reason="enough")
        request = {"agent": "claude", "prompt": "again", "workspace": {"path": "/w"}}
        again = await fake.client.start_workflow("AgentRun", request, id=run.id, task_queue=fake.queue)
        event = await host.ends(key)
        assert isinstance(event, CancelledEvent)
        assert (event.terminated, event.reason) == (True, "enough")
        await again.terminate()


async def test_of_one_that_temporal_has_forgotten_nothing_is_made_up(host: Host) -> None:
    event = await host.ends(RunKey(run="run-forgotten", execution="0"))
    assert isinstance(event, FailedEvent)
    assert event.message == FORGOTTEN
