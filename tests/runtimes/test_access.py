"""The shims of a place: on this machine, on one that can only run programs, on one reached by ssh, and in a pod."""

import asyncio
import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.ports.machine import Machine
from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.installation import archive
from activities.runtimes.kubernetes.manifest import HOME
from activities.runtimes.kubernetes.pod_access import PodAccess
from activities.runtimes.machine import ChildMachine
from activities.runtimes.ssh import SshMachine
from activities.runtimes.ssh_address import SshAddress
from activities.shim import client as shim
from activities.shim.client.access import LocalAccess, ShimAccess
from activities.shim.program.strays import tag_of
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from tests.runtimes.machines import Elsewhere
from tests.runtimes.pods import run_pod
from tests.shim.agents import SLEEP, python
from tests.shim.conftest import oldest_python, pythons
from tests.support.disks import may_mount, small_disk
from tests.support.processes import lives, until
from tests.support.sshd import Sshd, missing

pytestmark = [pytest.mark.integration, pytest.mark.linux]

FAMILY = "import os, time; os.fork() or (os.setsid(), os.fork()); print('ready', flush=True); time.sleep(600)"
ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"


class Here:
    """Shims on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root / "here"
        self.access = LocalAccess()

    async def start(self, directory: Path, spec: shim.Spec) -> shim.Status:
        return await shim.start(directory, spec)

    async def aclose(self) -> None:
        pass


class There:
    """Shims on a machine with a home of its own that runs programs, under the oldest Python.

    `root` is for the shims, as they see it; `home` as this computer sees it.
    """

    def __init__(self, root: Path) -> None:
        self.root = self.home = root / "there"
        self.root.mkdir()
        self.python = oldest_python() or sys.executable
        self.machine = Elsewhere(self._machine())
        self.access: ShimAccess = ExecAccess(self.machine, self.python)

    async def ready(self) -> None:
        """Have made what has to be there first."""

    async def start(self, directory: Path, spec: shim.Spec) -> shim.Status:
        return await self.access.start(directory, spec)

    async def aclose(self) -> None:
        await self.machine.aclose()

    def _machine(self) -> Machine:
        return ChildMachine(self.root, {"PATH": os.environ["PATH"]})


class BySsh(There):
    """The same, with a real OpenSSH between."""

    async def aclose(self) -> None:
        await super().aclose()
        self.sshd.close()

    def _machine(self) -> Machine:
        if reason := missing():
            pytest.skip(reason)
        self.sshd = Sshd(self.root.parent / "sshd", self.root)
        return SshMachine(SshAddress("place", config=self.sshd.config))


class InPod(There):
    """The same, in a pod of the tests' own cluster."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = Path(HOME)
        directory = RunStore(root / "state", Ownership("cluster", "default")).create(RunKey(run="run", execution="e"))
        self.access = PodAccess(ExecAccess(self.machine, self.python), self.pod.pod, directory)

    async def ready(self) -> None:
        await self.pod.prepare()
        self.home = self.pod.home

    async def start(self, directory: Path, spec: shim.Spec) -> shim.Status:
        """Its numbers are this computer's."""
        started = await super().start(directory, spec)
        pid, shim_pid = (self.pod.pid(number) or 0 for number in (started.pid or 0, started.shim_pid))
        return dataclasses.replace(started, pid=pid, shim_pid=shim_pid)

    async def aclose(self) -> None:
        await super().aclose()
        await self.pod.aclose()

    def _machine(self) -> Machine:
        self.pod = run_pod("pod", self.root.parent, self.python)
        return self.pod.pod


class Attempt:
    """One attempt's directory at a place."""

    def __init__(self, place: Here | There) -> None:
        self.place, self.access = place, place.access
        self.directory = place.root / "attempts" / "1"
        self.tag = tag_of(self.directory.parent, "1")

    async def start(self, *argv: str) -> shim.Status:
        spec = shim.Spec(argv, "/", {"PATH": os.environ["PATH"]}, tag=self.tag)
        return await self.place.start(self.directory, spec)

    async def connect(self, epoch: int | None = 1) -> shim.Connection:
        return await shim.connect(self.directory, epoch=epoch, access=self.access)

    def records(self, after: int = 0, offset: int = 0, epoch: int | None = None) -> shim.RecordStream:
        return shim.records(self.directory, after=after, offset=offset, epoch=epoch, access=self.access)

    async def all_records(self, after: int = 0, offset: int = 0) -> list[shim.Record]:
        async with asyncio.timeout(60):
            return [record async for record in self.records(after, offset)]


@pytest.fixture(params=[Here, There, BySsh, InPod])
async def attempt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Attempt]:
    place = request.param(tmp_path)
    if isinstance(place, There):
        await place.ready()
    made = Attempt(place)
    yield made
    if isinstance(place, There):
        place.machine.reachable, place.machine.cuts, place.machine.delay_s = True, [], 0
    await made.access.ask("kill", made.directory)
    await made.access.ask("kill-strays", made.directory.parent, "1", made.tag)
    await place.aclose()


@pytest.fixture
def there(attempt: Attempt) -> There:
    if not isinstance(attempt.place, There):
        pytest.skip("this machine is always there")
    return attempt.place


async def test_each_write_is_done_once_and_comes_back(attempt: Attempt) -> None:
    await attempt.start(*python(ECHO))
    async with await attempt.connect() as connection:
        first = await connection.write("one\n", id="a")
        again = await connection.write("one\n", id="a")
        assert (first.duplicate, again.duplicate, again.seq) == (False, True, first.seq)
        await connection.close_stdin()
        records = await attempt.all_records()
        assert [record.data for record in records if record.stream == "out"] == [b"heard one"]
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert records[-1].stream == "exit"


async def test_a_line_of_5_mb_arrives_whole(attempt: Attempt) -> None:
    await attempt.start(*python("import os\nos.write(1, b'x' * 5_000_000 + b'\\n')"))
    records = await attempt.all_records()
    assert sum(len(record.data) for record in records if record.stream.startswith("out")) == 5_000_000


async def test_what_a_dead_shim_wrote_is_read_from_any_record_on(attempt: Attempt) -> None:
    started = await attempt.start(*python("for n in range(50): print(n)"))
    whole = await attempt.all_records()
    async with await attempt.connect() as connection:
        await connection.release()
    await until(lambda: not lives(started.shim_pid))
    with pytest.raises(shim.ShimGone):
        await attempt.connect()
    assert await attempt.all_records() == whole
    stream, read = attempt.records(), []
    while batch := await stream.batch():
        read += batch
    assert (stream.ending, read) == ("exit", whole)
    assert await attempt.all_records(30) == whole[30:]
    assert await attempt.all_records(30, stream.offset) == []
    assert await attempt.all_records(30, 7) == whole[30:]  # no record begins there
    assert (await attempt.access.ask("alive", attempt.directory))["ended"]


async def test_a_higher_epoch_fences_off_a_lower_one(attempt: Attempt) -> None:
    await attempt.start(*SLEEP)
    async with await attempt.connect(5) as older, await attempt.connect(6):
        with pytest.raises(shim.Fenced):
            await older.write("x", id="x")
        with pytest.raises(shim.Fenced):
            await attempt.connect(5)
    stream = attempt.records(epoch=7)
    reading = asyncio.create_task(stream.batch())
    async with await attempt.connect(8):
        with pytest.raises(shim.Fenced):
            await asyncio.wait_for(reading, 10)


async def test_a_stop_ends_all_descendants_and_proves_it(attempt: Attempt) -> None:
    started = await attempt.start(*python(FAMILY))
    async with await attempt.connect(None) as observer:
        report = await observer.stop()
    assert (report.outcome, report.left) == ("stopped", ())
    assert not lives(started.pid)


async def test_a_start_is_refused_by_name(attempt: Attempt) -> None:
    with pytest.raises(shim.AgentNotFound, match="no-such-program"):
        await attempt.start("no-such-program")
    await attempt.start(*SLEEP)
    with pytest.raises(shim.AlreadyRunning):
        await attempt.start(*SLEEP)
    assert (await attempt.access.ask("entomb", attempt.directory))["entombed"] is False
    with pytest.raises(shim.AlreadyRunning):
        await attempt.access.ask("clear", attempt.directory)


async def test_nothing_starts_behind_a_tombstone(attempt: Attempt) -> None:
    assert (await attempt.access.ask("entomb", attempt.directory))["entombed"]
    with pytest.raises(shim.Tombstoned):
        await attempt.start(*SLEEP)


async def test_a_killed_shims_agent_is_cleared_away(attempt: Attempt) -> None:
    started = await attempt.start(*python(FAMILY))
    os.kill(started.shim_pid, signal.SIGKILL)
    await until(lambda: not lives(started.shim_pid))
    stream = attempt.records()
    while await stream.batch():
        pass
    assert stream.ending == "crash"
    cleared = await attempt.access.ask("clear", attempt.directory)
    assert cleared["left"] == []
    assert not lives(started.pid)


async def test_a_machine_that_is_lost_is_named_and_the_agent_works_on(attempt: Attempt, there: There) -> None:
    await attempt.start(*python(ECHO))
    there.machine.reachable = False
    for asking in (attempt.connect(), attempt.all_records(), attempt.access.ask("alive", attempt.directory)):
        with pytest.raises(shim.MachineUnreachable, match="pulled the plug"):
            await asking
    there.machine.reachable = True
    async with await attempt.connect() as connection:
        assert (await connection.status()).state == "running"
        await connection.close_stdin()
    assert (await attempt.all_records())[-1].stream == "exit"


async def test_a_stream_that_is_cut_at_any_byte_loses_and_doubles_nothing(attempt: Attempt, there: There) -> None:
    started = await attempt.start(*python("for n in range(300): print('line', n)"))
    async with await attempt.connect() as connection:
        async with asyncio.timeout(20):
            while (await connection.status()).exit is None:
                await asyncio.sleep(0.02)
        whole = await attempt.all_records()
        there.machine.cuts = [*range(1000, 12000, 371)]  # in the hello, in a header, in the bytes of a record
        assert await attempt.all_records() == whole
        there.machine.cuts = []
        await connection.release()
    await until(lambda: not lives(started.shim_pid))
    for cut in (0, 5, 200, 3000):
        there.machine.cuts = [1 << 30, cut]  # the first one finds that no shim is there
        with pytest.raises((shim.MachineUnreachable, shim.ShimGone)):
            await attempt.all_records()


async def test_the_program_is_brought_there_once(attempt: Attempt, there: There) -> None:
    name, data = archive()
    assert archive() == (name, data)
    await attempt.start(*SLEEP)
    place = there.home / ".cache" / "steersman" / name / "program"
    assert (place / "shim.py").stat().st_mode & 0o077 == 0
    before = len(there.machine.commands)
    again = ExecAccess(there.machine, there.python)
    assert (await again.ask("alive", attempt.directory))["alive"]
    assert len(there.machine.commands) == before + 1
    assert [path.name for path in (there.home / ".cache" / "steersman").iterdir()] == [name]


@pytest.mark.parametrize("lost", [".", "program", "program/control.py", "program/main.py", "program/census.py"])
async def test_the_program_is_brought_there_again_where_it_was_deleted(
    attempt: Attempt, there: There, lost: str
) -> None:
    await attempt.start(*python(ECHO))
    path = there.home / ".cache" / "steersman" / archive()[0] / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    assert (await attempt.access.ask("alive", attempt.directory))["alive"]
    async with await attempt.connect() as connection:
        assert (await connection.status()).state == "running"


async def test_workers_that_bring_the_program_at_once_do_not_disturb_each_other(attempt: Attempt, there: There) -> None:
    workers = [ExecAccess(there.machine, there.python) for _ in range(8)]
    answers = await asyncio.gather(*(worker.ask("alive", attempt.directory) for worker in workers for _ in range(2)))
    assert not any(answer["alive"] for answer in answers)
    places = list((there.home / ".cache" / "steersman").iterdir())
    assert [place.name for place in places] == [archive()[0]]
    assert [path.name for path in places[0].iterdir()] == ["program"]


async def test_a_slow_way_is_not_taken_for_a_shim_that_does_not_answer(attempt: Attempt, there: There) -> None:
    started = await attempt.start(*SLEEP)
    there.machine.delay_s = 1.0
    connection = await shim.connect(attempt.directory, epoch=1, timeout=timedelta(seconds=0.5), access=attempt.access)
    await connection.aclose()
    os.kill(started.shim_pid, signal.SIGSTOP)
    try:
        with pytest.raises(shim.ShimUnresponsive):
            await shim.connect(attempt.directory, epoch=1, timeout=timedelta(seconds=0.5), access=attempt.access)
    finally:
        os.kill(started.shim_pid, signal.SIGCONT)
    there.machine.delay_s = 0.0


async def test_a_way_on_which_nothing_comes_is_a_lost_machine(
    attempt: Attempt, there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await attempt.start(*python("print('x')"))
    monkeypatch.setattr("activities.runtimes.exec_access._WAY_S", 0.3)
    monkeypatch.setattr("activities.runtimes.exec_access._ANSWER_S", 0.3)
    there.machine.cut_silently = True
    there.machine.cuts = [0]
    with pytest.raises(shim.MachineUnreachable):
        await shim.connect(attempt.directory, epoch=1, timeout=timedelta(seconds=0.5), access=attempt.access)
    there.machine.cuts = [0]
    with pytest.raises(shim.MachineUnreachable):
        await attempt.access.ask("alive", attempt.directory)
    monkeypatch.undo()
    async with await attempt.connect() as connection:
        await until(lambda: _ended(connection))
        await connection.release()
    await until(lambda: not lives(started.shim_pid))
    monkeypatch.setattr("activities.runtimes.exec_access._ANSWER_S", 1.0)
    there.machine.cuts = [1 << 30, 30]  # the first one finds that no shim is there
    with pytest.raises(shim.MachineUnreachable, match="standstill"):
        await attempt.all_records()


async def _ended(connection: shim.Connection) -> bool:
    return (await connection.status()).exit is not None


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8"])
async def test_a_python_that_is_too_old_is_named(tmp_path: Path, version: str) -> None:
    old = next(iter(pythons(version)), None)
    if old is None:
        pytest.skip(f"no Python {version} on this machine")
    machine = ChildMachine(tmp_path, {"PATH": os.environ["PATH"]})
    with pytest.raises(shim.MachineUnusable, match=r"a shim takes (Python )?3\.9 or newer"):
        await ExecAccess(machine, old).ask("alive", tmp_path)
    assert not list(tmp_path.iterdir())
    await machine.aclose()


@pytest.mark.skipif(not may_mount(), reason="mounts file systems")
async def test_a_home_without_room_for_the_program_is_named(tmp_path: Path) -> None:
    machine = ChildMachine(tmp_path / "home", {"PATH": os.environ["PATH"]})
    access = ExecAccess(machine)
    with small_disk(tmp_path / "home") as disk:
        disk.fill()
        with pytest.raises(shim.MachineUnusable, match="No space left"):
            await access.ask("alive", tmp_path)
        disk.free()
        assert not (await access.ask("alive", tmp_path))["alive"]
    await machine.aclose()


async def test_a_machine_without_python_is_named(tmp_path: Path) -> None:
    machine = ChildMachine(tmp_path, {"PATH": "/nowhere"})
    with pytest.raises(shim.MachineUnusable, match="/no/python3: No such file"):
        await ExecAccess(machine, "/no/python3").ask("alive", tmp_path)
    with pytest.raises(shim.MachineUnreachable, match="no Python"):
        await ExecAccess(machine, "/bin/sh").ask("alive", tmp_path)
    await machine.aclose()
