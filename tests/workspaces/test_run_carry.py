"""Copies of runs on machines that are lost, and those that a loop's runs share: nobody waits for one that is gone, and
nothing stays for ever.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.admission.policy import Policy
from activities.ports.machine import Stream
from activities.run_backups import RunBackups
from activities.run_carry import RunCarry
from activities.run_changes import RunChanges
from activities.run_sessions import RunSessions
from activities.runtimes.shim_runtime import ShimRuntime
from activities.shim.client import MachineGone, MachineUnreachable
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import WorkspaceError
from steersman.contracts.run import CarriedWorkspace
from tests.runtimes.machines import Elsewhere
from tests.workspaces.carrying import COMMIT, Carrying


class Lost:
    """A run whose copy is on another machine."""

    def __init__(self, root: Path) -> None:
        self.work = Carrying(root, borrow=False)
        self.work.here("echo one > a")
        self.machine = Elsewhere(self.work.machine)
        self.store = store = RunStore(root / "store", Ownership("c", "n"))
        self.directory = self.run("run")
        changes = RunChanges(WorkspaceCheckpoints({}, []), root / "store")
        kept = KeptCopies(root / "store", Ownership("c", "n"))
        sessions = RunSessions({}, kept, self._copy_at, store, ShimRuntime(store, "host"))
        policy = Policy({}, workspace_roots=(self.work.top,))
        backups = RunBackups(self.work.carrier, kept, self._copy_at, sessions, policy.within)
        self.carry = RunCarry(backups, changes, root / "store")

    def run(self, id: str) -> RunDirectory:
        """The directory of another run there."""
        return self.store.create(RunKey(run=id, execution="e"), {"kind": "ssh", "address": "place"})

    async def _copy_at(self, where: CopyLocation) -> WorkspaceCopy:
        root = str(self.work.there / "copies" / where.id)
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


async def test_a_run_whose_copy_never_came_to_be_leaves_nothing_in_the_repository(lost: Lost) -> None:
    """As where its machine is away, or it is cancelled meanwhile."""
    lost.work.git()
    lost.work.here(f"true{COMMIT}one")
    lost.machine.reachable = False
    with pytest.raises(MachineUnreachable):
        await lost.carry.out(lost.directory, lost.work.top)
    assert lost.work.here("git for-each-ref refs/steersman")
    await lost.carry.forget(lost.directory)
    assert not lost.work.here("git for-each-ref refs/steersman")


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


async def test_a_machine_that_is_lost_over_its_backup_costs_nothing_of_it(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.work.here("echo one > a")
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "new").write_text("two\n")
    assert await lost.carry.backups.of(lost.directory, carried, 60).take() is None
    (copy,) = lost.copies
    shutil.rmtree(copy)

    async def gone(*_: str, stdin: bytes | None = None) -> Stream:
        raise MachineGone("it is gone once more")

    with monkeypatch.context() as patched:
        patched.setattr(lost.machine, "exec", gone)
        with pytest.raises(MachineGone):
            await lost.carry.again(lost.directory, carried, lost.work.top, ())
    assert await lost.carry.again(lost.directory, carried, lost.work.top, ())
    assert (Path(carried.directory) / "new").read_text() == "two\n"
    back = await lost.carry.back(lost.directory, carried, lost.work.top, keep=False)
    assert back.finalize.status == "succeeded"
    assert (lost.work.top / "new").read_text() == "two\n"
    assert not (lost.directory.path / "backup").exists()


async def test_a_copy_that_is_lost_for_good_is_told_of_twice_in_the_same_words(lost: Lost) -> None:
    """As where a worker is killed before it has said so."""
    lost.work.git()
    lost.work.here(f"echo one > a{COMMIT} first")
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "new").write_text("two\n")
    assert await lost.carry.backups.of(lost.directory, carried, 60).take() is None
    lost.carry.note_loss(lost.directory, "it was evicted")
    told = [await lost.carry.back(lost.directory, carried, lost.work.top, keep=False) for _ in range(2)]
    assert told[0] == told[1]
    assert told[0].finalize.ref
    assert lost.work.here(f"git show {told[0].finalize.ref}:new") == "two\n"
    assert not lost.carry.is_gate(lost.directory)


async def test_a_copy_that_is_lost_for_good_leaves_no_gate(lost: Lost) -> None:
    """Whoever ends a run that closed unseen shuts it as long as that takes."""
    await lost.carry.out(lost.directory, lost.work.top)
    lost.carry.note_loss(lost.directory, "it was evicted")
    back = await lost.carry.finish(lost.directory)
    assert back
    assert back.finalize.lost
    assert list((lost.store.state / "gates").iterdir()) == []


async def test_a_backup_that_was_spoilt_is_done_without(lost: Lost) -> None:
    """An agent of this machine can write there."""
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "new").write_text("two\n")
    assert await lost.carry.backups.of(lost.directory, carried, 60).take() is None
    for pack in (lost.directory.path / "backup" / "pack").iterdir():
        pack.chmod(0o600)
        pack.write_bytes(b"spoilt")
    (copy,) = lost.copies
    shutil.rmtree(copy)
    assert await lost.carry.again(lost.directory, carried, lost.work.top, ()) is None
    assert not (Path(carried.directory) / "new").exists()


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


# The runs of a loop.

LOOP = RunKey(run="loop", execution="l")


async def ends(lost: Lost, run: RunDirectory, carried: CarriedWorkspace, *, keep: bool = False) -> str:
    return (await lost.carry.back(run, carried, lost.work.top, keep=keep)).finalize.status


async def closed(loop: RunKey) -> bool:
    return loop == LOOP


async def open_still(loop: RunKey) -> bool:
    return loop != LOOP


async def test_runs_of_a_loop_find_what_is_ignored_and_what_has_changed(lost: Lost) -> None:
    lost.work.here("git init -q; echo built > .gitignore; git add -A")
    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    there = Path(first.directory)
    (there / "a").write_text("two\n")
    (there / "built").write_text("by the first\n")
    assert await ends(lost, lost.directory, first) == "succeeded"
    lost.work.here("echo of a person > b")

    run = lost.run("second")
    second = await lost.carry.out(run, lost.work.top, loop=LOOP)
    assert second.directory == first.directory
    found = {name: (there / name).read_text() for name in ("a", "b", "built")}
    assert found == {"a": "two\n", "b": "of a person\n", "built": "by the first\n"}
    (there / "b").write_text("of the second\n")
    assert await ends(lost, run, second) == "succeeded"
    assert (lost.work.top / "b").read_text() == "of the second\n"
    assert not (lost.work.top / "built").exists()
    assert len(lost.copies) == 1


async def test_another_loop_has_a_copy_of_its_own(lost: Lost) -> None:
    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    assert await ends(lost, lost.directory, first) == "none"
    other = await lost.carry.out(lost.run("other"), lost.work.top, loop=RunKey(run="loop", execution="another"))
    assert other.directory != first.directory


async def test_a_copy_in_which_something_may_be_at_work_is_not_shared(lost: Lost) -> None:
    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    (Path(first.directory) / "a").write_text("two\n")
    assert await ends(lost, lost.directory, first, keep=True) == "succeeded"
    second = await lost.carry.out(run := lost.run("second"), lost.work.top, loop=LOOP)
    assert second.directory != first.directory
    assert (Path(second.directory) / "a").read_text() == "two\n"
    await lost.carry.remove_kept(closed)
    assert len(lost.copies) == 2

    await lost.carry.settle(lost.directory)
    assert await ends(lost, run, second) == "none"
    third = await lost.carry.out(lost.run("third"), lost.work.top, loop=LOOP)
    assert third.directory in (first.directory, second.directory)


async def test_a_run_that_never_began_leaves_what_another_one_has_built(lost: Lost) -> None:
    lost.work.here("echo built > .gitignore")
    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    await lost.carry.abandon(lost.directory)
    assert lost.copies == []  # nobody has worked in it

    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    (Path(first.directory) / "built").touch()
    await ends(lost, lost.directory, first)
    for name in ("second", "third"):
        again = await lost.carry.out(run := lost.run(name), lost.work.top, loop=LOOP)
        assert again.directory == first.directory
        await lost.carry.abandon(run)
        assert not lost.carry.has_copy(run)
        assert (Path(first.directory) / "built").exists()
    await lost.carry.remove_kept(closed)
    assert lost.copies == []


async def test_what_waits_for_its_machine_is_merged_by_a_person_once_the_workspace_was_taken_back(lost: Lost) -> None:
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "a").write_text("two\n")
    await lost.carry.fail(lost.directory, "it is away", unreachable=True)
    await lost.carry.leave_to_people(lost.work.top)
    await lost.carry.settle(lost.directory)
    assert (lost.work.top / "a").read_text() == "one\n"
    with pytest.raises(WorkspaceError, match="it is away"):
        lost.carry.check_gates(lost.work.top)
    assert (await lost.carry.retry(lost.directory)).finalize.status == "succeeded"
    assert (lost.work.top / "a").read_text() == "two\n"


async def test_a_workspace_is_not_taken_back_while_a_sweep_merges_into_it(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "a").write_text("two\n")
    await lost.carry.fail(lost.directory, "it is away", unreachable=True)
    merges, goes_on, merge = asyncio.Event(), asyncio.Event(), lost.carry._returned  # noqa: SLF001 - while it is at it

    async def slowly(*about: Any) -> Any:
        merges.set()
        await goes_on.wait()
        return await merge(*about)

    monkeypatch.setattr(lost.carry, "_returned", slowly)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lost.carry.settle(lost.directory))
        await merges.wait()
        with pytest.raises(WorkspaceError, match="being merged at the moment"):
            await lost.carry.leave_to_people(lost.work.top)
        await lost.carry.settle(lost.directory)  # another sweep leaves it to the first
        asked = tasks.create_task(lost.carry.finish(lost.directory))
        assert not (await asyncio.wait({asked}, timeout=0.3))[0], "a client hears what becomes of it"
        goes_on.set()
    back = asked.result()
    assert back is not None
    assert back.finalize.status == "succeeded"
    await lost.carry.leave_to_people(lost.work.top)
    assert (lost.work.top / "a").read_text() == "two\n"


@pytest.mark.parametrize("again", ["a sweep", "the same"])
async def test_what_nobody_waited_for_is_a_gate_until_it_is_merged(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Else a loop's next run would begin without it."""
    carried = await lost.carry.out(lost.directory, lost.work.top)
    (Path(carried.directory) / "a").write_text("two\n")
    with monkeypatch.context() as slow:
        slow.setattr(lost.carry, "_returned", lambda *_: asyncio.Event().wait())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await lost.carry.finish(lost.directory)
    with pytest.raises(WorkspaceError, match="a sweep"):
        lost.carry.check_gates(lost.work.top)
    if again == "a sweep":
        await lost.carry.settle(lost.directory)
    else:
        back = await lost.carry.finish(lost.directory)
        assert back is not None
        assert back.finalize.status == "succeeded"
    lost.carry.check_gates(lost.work.top)
    assert (lost.work.top / "a").read_text() == "two\n"


async def test_what_could_not_be_merged_stays_until_somebody_has_decided(lost: Lost) -> None:
    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    (Path(first.directory) / "a").write_text("two\n")
    await lost.carry.fail(lost.directory, "no way back")
    await lost.carry.remove_kept(closed)
    with pytest.raises(WorkspaceError, match="no way back"):
        lost.carry.check_gates(lost.work.top)
    assert (await lost.carry.retry(lost.directory)).finalize.status == "succeeded"
    assert (lost.work.top / "a").read_text() == "two\n"
    await lost.carry.remove_kept(closed)
    assert lost.copies == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["unusable", "unreachable"])
async def test_it_goes_when_the_loop_has_closed_and_is_taken_by_nobody_then(lost: Lost, how: str) -> None:
    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    await lost.carry.remove_kept(closed)
    assert lost.copies  # its run has it
    assert await ends(lost, lost.directory, first) == "none"
    await lost.carry.remove_kept(open_still)
    assert lost.copies
    lose(lost.machine, how)
    await lost.carry.remove_kept(closed)
    find(lost.machine)
    assert lost.copies
    again = await lost.carry.out(run := lost.run("after a reset"), lost.work.top, loop=LOOP)
    assert again.directory != first.directory
    await lost.carry.remove_kept(closed)
    assert [each.name for each in lost.copies] == [Path(again.directory).parents[1].name]
    assert await ends(lost, run, again) == "none"
    await lost.carry.remove_kept(closed)
    assert lost.copies == []


async def test_one_that_cannot_be_marked_for_removal_keeps_a_sweep_from_nothing(lost: Lost) -> None:
    """As on a full disk, which the rest of the sweep may free."""
    first = await lost.carry.out(lost.directory, lost.work.top, loop=LOOP)
    assert await ends(lost, lost.directory, first) == "none"
    (record,) = (lost.store.state / "copies").glob("*.json")
    in_the_way = record.with_name(f"{record.name}.{os.getpid()}")
    in_the_way.mkdir()
    await lost.carry.remove_kept(closed)
    assert lost.copies
    in_the_way.rmdir()
    await lost.carry.remove_kept(closed)
    assert lost.copies == []


@pytest.mark.parametrize("said", ["kept as ../../x\n", "kept as \n", "kept as " + "a" * 33 + "\n", "kept as\0\n"])
def test_what_names_no_kept_copy_is_a_run_with_its_own(lost: Lost, said: str) -> None:
    (lost.directory.path / "copy").write_text(said)
    kept = KeptCopies(lost.store.state, Ownership("c", "n"))
    assert kept.location(lost.directory).path == lost.directory.path / "copy"
