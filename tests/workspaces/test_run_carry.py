"""Copies of runs on machines that are lost: nobody waits for one that is gone, and nothing stays for ever."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.run_carry import RunCarry
from activities.run_changes import RunChanges
from activities.run_sessions import RunSessions
from activities.runtimes.shim_runtime import ShimRuntime
from activities.shim.client import MachineUnreachable
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import WorkspaceError
from tests.runtimes.machines import Elsewhere
from tests.workspaces.carrying import Carrying


class Lost:
    """A run whose copy is on another machine."""

    def __init__(self, root: Path) -> None:
        self.work = Carrying(root, borrow=False)
        self.work.here("echo one > a")
        self.machine = Elsewhere(self.work.machine)
        store = RunStore(root / "store", Ownership("c", "n"))
        self.directory = store.create(RunKey(run="run", execution="e"), {"kind": "ssh", "address": "place"})
        changes = RunChanges(WorkspaceCheckpoints({}, []), root / "store")
        sessions = RunSessions({}, self._copy_of, store, ShimRuntime(store, "host"))
        self.carry = RunCarry(self.work.carrier, self._copy_of, changes, sessions, root / "store")

    async def _copy_of(self, run: RunDirectory) -> WorkspaceCopy:
        root = str(self.work.there / "copies" / run.id)
        return WorkspaceCopy(self.machine, root, sys.executable, is_here=False)

    @property
    def copies(self) -> list[Path]:
        return list(self.work.there.glob("copies/*"))


@pytest.fixture
async def lost(tmp_path: Path) -> AsyncIterator[Lost]:
    found = Lost(tmp_path)
    yield found
    await found.work.close()


def lose(machine: Elsewhere, how: str) -> None:
    if how == "unusable":
        machine.unusable = True
    else:
        machine.reachable = False


def find(machine: Elsewhere) -> None:
    machine.unusable, machine.reachable = False, True


@pytest.mark.parametrize("how", ["unusable", "unreachable"])
async def test_what_waits_on_a_machine_that_is_gone_can_be_given_up(lost: Lost, how: str) -> None:
    """As one has to whose name nobody resolves any more, or whose host key is another one."""
    await lost.carry.out(lost.directory, lost.work.top)
    await lost.carry.fail(lost.directory, "no way there")
    with pytest.raises(WorkspaceError, match="no way there"):
        lost.carry.check_gates(lost.work.top)
    lose(lost.machine, how)
    assert (await lost.carry.discard(lost.directory)).finalize.status == "none"
    lost.carry.check_gates(lost.work.top)
    assert lost.copies
    find(lost.machine)
    await lost.carry.settle(lost.directory)
    assert lost.copies == []
    assert not lost.carry.has_copy(lost.directory)


@pytest.mark.parametrize("how", ["unusable", "unreachable"])
async def test_a_copy_that_nobody_worked_in_keeps_nobody_waiting(lost: Lost, how: str) -> None:
    await lost.carry.out(lost.directory, lost.work.top)
    lose(lost.machine, how)
    await lost.carry.abandon(lost.directory)
    assert not lost.carry.is_gate(lost.directory)
    with pytest.raises((MachineUnreachable, WorkspaceError)):
        await lost.carry.settle(lost.directory)
    find(lost.machine)
    await lost.carry.settle(lost.directory)
    assert lost.copies == []


async def test_a_run_that_is_carried_out_again_after_that_is_carried_back(lost: Lost) -> None:
    await lost.carry.out(lost.directory, lost.work.top)
    lose(lost.machine, "unreachable")
    await lost.carry.abandon(lost.directory)
    find(lost.machine)
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "a").write_text("two\n")
    back = await lost.carry.back(lost.directory, carried, lost.work.top, keep=False)
    assert back.finalize.status == "succeeded"
    assert (lost.work.top / "a").read_text() == "two\n"


async def test_a_run_that_is_reset_after_its_merge_loses_nothing_of_what_follows(lost: Lost) -> None:
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (lost.directory.attempt(1)).mkdir(parents=True)
    (lost.directory.attempt(1) / "journal").touch()
    (Path(carried.directory) / "a").write_text("two\n")
    assert (await lost.carry.back(lost.directory, carried, lost.work.top, keep=False)).finalize.status == "succeeded"
    again = await lost.carry.out(lost.directory, lost.work.top)
    (Path(again.directory) / "b").write_text("of the second time\n")
    back = await lost.carry.back(lost.directory, again, lost.work.top, keep=False)
    assert back.finalize.status == "succeeded"
    assert (lost.work.top / "b").read_text() == "of the second time\n"
    assert (lost.work.top / "a").read_text() == "two\n"
