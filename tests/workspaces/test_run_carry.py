"""Copies of runs on machines that are lost: nobody waits for one that is gone, and nothing stays for ever."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.admission.policy import Policy
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
        policy = Policy({}, workspace_roots=(self.work.top,))
        self.carry = RunCarry(self.work.carrier, self._copy_of, changes, sessions, root / "store", policy.within)

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


@pytest.mark.parametrize("how", ["sweep", "retry"])
async def test_nothing_is_merged_where_requests_may_not_work(lost: Lost, how: str, tmp_path: Path) -> None:
    """An agent of this machine can write what is written down of a run."""
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "new").write_text("two\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    link = lost.work.top.parent / "link"
    link.symlink_to(lost.work.top)
    for top in (outside, link, lost.work.top / ".." / "outside"):
        forged = carried.model_copy(update={"top": str(top), "repository": False})
        (lost.directory.path / "carried.json").write_text(forged.model_dump_json())
        if how == "sweep":
            (lost.directory.path / "carried-back.json").unlink(missing_ok=True)
            back = await lost.carry.finish(lost.directory)
        else:
            back = await lost.carry.retry(lost.directory)
        assert back
        assert back.finalize.status == "failed"
        assert "the run's workspace: " in (back.finalize.error or "")
    assert list(outside.iterdir()) == []
    (lost.directory.path / "carried.json").write_text(carried.model_dump_json())
    assert (await lost.carry.retry(lost.directory)).finalize.status == "succeeded"
    assert (lost.work.top / "new").read_text() == "two\n"


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
