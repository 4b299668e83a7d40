"""Many ended runs on machines that do not answer: a sweep waits once, and sees to all that do answer."""

import asyncio
import os
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.admission.policy import Policy
from activities.context import ActivityContext
from activities.host_sweep import Retention, closed_runs_of, end_all_closed, prune
from activities.loops.loop_store import LoopStore
from activities.ports.machine import Stream
from activities.run_backups import RunBackups
from activities.run_carry import RunCarry
from activities.run_changes import RunChanges
from activities.run_sessions import RunSessions
from activities.run_worktrees import RunWorktrees
from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.machine import ChildMachine
from activities.runtimes.place import MachinePlace
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.shim_runtime import ShimRuntime, local_place
from activities.store.event_reader import is_ended
from activities.store.eventlog import end_log
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.notes import note
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.workspaces.carry.carrier import WorkspaceCarrier
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.shadows import Shadows
from steersman.contracts.activities import PruneInput, RunKey
from steersman.contracts.errors import ErrorType
from steersman.contracts.events import FailedEvent
from steersman.contracts.run import CarriedWorkspace
from tests.support.processes import until
from tests.support.temporal import new_namespace

pytestmark = [pytest.mark.integration, pytest.mark.linux]

DEAD, ALIVE = {"kind": "ssh", "address": "dead"}, {"kind": "ssh", "address": "alive"}


class Silence:
    """A machine from which nothing ever comes."""

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        await asyncio.sleep(3600)
        raise AssertionError

    async def aclose(self) -> None: ...


class Host:
    """A worker host's state; its runs are unknown to the server."""

    def __init__(self, root: Path, client: Client) -> None:
        self.store = RunStore(root / "state", Ownership("cluster", "default"))
        (root / "home").mkdir()
        self.places = root / "home" / ".local" / "state" / "steersman" / "places"
        alive = ExecAccess(ChildMachine(root / "home", {"PATH": os.environ["PATH"]}), sys.executable)
        self.machines = {
            "alive": RemoteMachine("alive", alive),
            "dead": RemoteMachine("dead", ExecAccess(Silence())),
        }
        runtime = ShimRuntime(
            self.store,
            "host",
            {"local": local_place, "ssh": lambda run: MachinePlace(run, self.machines[str(run.placement["address"])])},
        )
        changes = RunChanges(WorkspaceCheckpoints({}, []), root / "state")
        carrier = WorkspaceCarrier(Shadows({}, []), root / "state" / "workspaces")
        kept = KeptCopies(self.store.state, self.store.owner)
        sessions = RunSessions({}, kept, self._copy_at, self.store, runtime)
        backups = RunBackups(carrier, kept, self._copy_at, sessions, Policy({}).within)
        carry = RunCarry(backups, changes, root / "state")
        worktrees = RunWorktrees(Shadows({}, []), root / "state")
        self.context = ActivityContext(client, "host", {}, runtime, self.store, Policy({}), changes, carry, worktrees)

    async def _copy_at(self, where: CopyLocation) -> WorkspaceCopy:
        raise AssertionError("no run has a copy")

    def run(self, name: str, placement: dict[str, str], *, ended: bool, ago: timedelta = timedelta()) -> RunDirectory:
        directory = self.store.create(RunKey(run=name, execution=str(uuid.uuid4())), dict(placement))
        if ended:
            event = FailedEvent(time=datetime.now(UTC), attempt=1, error=ErrorType.AGENT_FAILED, message="x")
            end_log(directory.events, event)
            then = time.time() - ago.total_seconds()
            os.utime(directory.events, (then, then))
        return directory

    async def sweep(self) -> float:
        """How many seconds it took."""
        began = time.monotonic()
        await end_all_closed(self.context, closed_runs_of(self.context))
        return time.monotonic() - began


@pytest.fixture
async def host(tmp_path: Path, dev_server: str) -> Host:
    namespace = await new_namespace(dev_server)
    return Host(tmp_path, await namespace.connect())


@pytest.mark.exhaustive
async def test_a_sweep_waits_once_for_a_machine_that_does_not_answer(host: Host) -> None:
    dead = [host.run(f"dead-{number}", DEAD, ended=number % 2 == 0) for number in range(30)]
    living = [host.run(f"alive-{number}", ALIVE, ended=True) for number in range(3)]
    here = host.run("here", {"kind": "local"}, ended=False)
    assert await host.sweep() < 60  # five minutes, one after another
    assert all(is_ended(each.events) for each in (*dead, here))
    assert [host.context.runtime.has_living(each.key) for each in (*dead, *living)] == [True] * 30 + [False] * 3
    host.machines["dead"] = host.machines["alive"]

    async def swept() -> bool:
        await host.sweep()
        return not any(host.context.runtime.has_living(each.key) for each in dead)

    assert await until(swept)


async def test_a_sweep_removes_private_files_that_a_killed_worker_has_left(host: Host) -> None:
    """Between the end of the run's log and their removal: nobody else looks at a run that has ended."""
    here = host.run("here", {"kind": "local"}, ended=True)
    (files := here.attempt(1) / "files").mkdir(parents=True)
    (files / "mcp.json").write_text("a key")
    (files / "home" / "claude").mkdir(parents=True)
    await host.sweep()
    assert list(files.iterdir()) == []


@pytest.mark.exhaustive
async def test_what_is_left_on_a_machine_that_is_lost_is_pruned_in_the_end(host: Host) -> None:
    fresh = host.run("fresh", DEAD, ended=True, ago=timedelta(days=40))
    old = host.run("old", DEAD, ended=True, ago=timedelta(days=70))
    given_up = host.run("given-up", DEAD, ended=True, ago=timedelta(days=40))
    given_up.note_given_up()
    decided = host.run("decided", DEAD, ended=True, ago=timedelta(days=400))
    carried = CarriedWorkspace(top="/w", repository=False, snapshot="a" * 40, files="b" * 40, directory="/c")
    note(decided.path / "carried.json", carried)
    (decided.path / "copy").touch()
    alive = host.run("alive", ALIVE, ended=True, ago=timedelta(days=70))
    asked = PruneInput(keep_days=30)
    retention = Retention(30, LoopStore(host.store.state, host.store.owner))
    planned = await prune(host.context, retention, asked.model_copy(update={"dry_run": True}))
    assert set(planned.pruned) == {"old", "given-up", "alive"}
    assert set((await prune(host.context, retention, asked)).pruned) == {"old", "given-up"}
    assert [each.path.exists() for each in (fresh, old, given_up, decided, alive)] == [True, False, False, True, True]

    async def pruned() -> tuple[str, ...]:  # once a sweep was told by the machine, however busy, that nothing is left
        await host.sweep()
        return (await prune(host.context, retention, asked)).pruned

    assert set(await until(pruned, 60)) == {"alive"}
