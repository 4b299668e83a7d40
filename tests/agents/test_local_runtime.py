"""This machine as a runtime: start, adopt, fence, stop with proof, whatever died in between."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.ports.runtime import (
    AlreadyStopped,
    Channel,
    ChannelClosed,
    Fenced,
    Incompatible,
    Launch,
    Record,
    StopTimes,
)
from activities.runtimes.local import LocalRuntime
from activities.shim import client as shim
from activities.shim.client import launching
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentFailed, AgentNotInstalled, RunError, WorkspaceError
from steersman.contracts.run import StopReport
from tests.support.processes import kill_marked, lives, marked, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

QUICK = StopTimes(0.05, 0.3)
DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("grandchild", "w") as file:
            file.write(str(os.getpid()))
        print("ready", flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""
ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"


class Place:
    """One run on a local runtime."""

    def __init__(self, directory: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.key = RunKey(run=f"run-{self.mark[:8]}", execution="e")
        self.store = RunStore(directory / "state", Ownership("cluster", "default"))
        self.directory = self.store.create(self.key)
        self.runtime = LocalRuntime(self.store, "host")
        self.work = directory / "work"
        self.work.mkdir()
        self.channels: list[Channel] = []

    def launch(self, code: str, **fields: object) -> Launch:
        """A program in Python."""
        given = {
            "argv": (sys.executable, "-u", "-c", code),
            "cwd": str(self.work),
            "env": {"PATH": os.environ["PATH"], "PLACE_MARK": self.mark},
            "stop_times": QUICK,
            **fields,
        }
        return Launch(**given)  # type: ignore[arg-type]

    async def open(self, launch: Launch | None, *, attempt: int = 1, epoch: int = 1) -> Channel:
        """As a session does."""
        channel = await self.runtime.open(self.key, attempt, epoch, launch)
        self.channels.append(channel)
        return channel

    async def shim_pid(self, attempt: int = 1) -> int:
        """The shim's own process."""
        async with await shim.connect(self.directory.attempt(attempt), epoch=None) as connection:
            return connection.hello.shim_pid

    async def kill_shim(self) -> None:
        """SIGKILL to the shim, which cannot clear anything away then."""
        pid = await self.shim_pid()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not lives(pid))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    for channel in place.channels:
        await channel.close()
    await place.runtime.release(place.key)
    kill_marked(place.mark)


async def records(channel: Channel) -> list[Record]:
    """All of them, to the end."""
    async with asyncio.timeout(30):
        return [record async for batch in channel.records() for record in batch]


async def line(channel: Channel, data: bytes) -> None:
    """Read from the start until this line."""
    async with asyncio.timeout(30):
        async for batch in channel.records():
            if any(record.data == data for record in batch):
                return
    raise AssertionError(f"{data!r} never came")


async def test_a_process_is_started_and_named_for_all_time(place: Place) -> None:
    channel = await place.open(place.launch("print('hello')"))
    found = await records(channel)
    assert [record.data for record in found if record.stream == "out"] == [b"hello"]
    assert found[-1].stream == "exit"
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert channel.handle is not None
    assert channel.handle.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert place.runtime.attempts(place.key) == 1


async def test_the_handle_is_the_agents_own_process(place: Place) -> None:
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    assert channel.handle is not None
    stat = Path(f"/proc/{channel.handle.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[19]) == channel.handle.start_time
    assert place.runtime.has_living(place.key)


async def test_another_worker_adopts_it_and_the_first_is_fenced_off(place: Place) -> None:
    first = await place.open(place.launch(ECHO), epoch=1)
    await first.write("a", "one\n")
    await line(first, b"heard one")
    second = await place.open(None, epoch=2)
    assert first.handle is not None
    assert second.handle is not None
    assert first.handle.pid == second.handle.pid
    assert second.known >= 2
    with pytest.raises(Fenced):
        await first.write("b", "two\n")
    with pytest.raises(Fenced):
        await records(first)
    with pytest.raises(Fenced):
        await place.open(None, epoch=1)
    await second.write("c", "three\n")
    await second.write("close", None)
    out = [record.data for record in await records(second) if record.stream == "out"]
    assert out == [b"heard one", b"heard three"]


async def test_a_start_that_was_done_already_is_an_adoption(place: Place) -> None:
    first = await place.open(place.launch(ECHO), epoch=1)
    second = await place.open(place.launch("print('a second process')"), epoch=2)
    assert first.handle == second.handle


async def test_each_write_is_done_once(place: Place) -> None:
    channel = await place.open(place.launch(ECHO, first_input=(("prompt", "zero\n"),)))
    assert not await channel.write("prompt", "zero\n")
    assert await channel.write("a", "one\n")
    assert not await channel.write("a", "one\n")
    again = await place.open(None, epoch=2)
    assert not await again.write("a", "one\n")
    await again.write("close", None)
    out = [record.data for record in await records(again) if record.stream == "out"]
    assert out == [b"heard zero", b"heard one"]
    with pytest.raises(ChannelClosed):
        await again.write("b", "late\n")


async def test_lines_of_any_length_and_of_any_bytes(place: Place) -> None:
    code = "import os\nos.write(1, b'x' * 1_500_000 + b'\\n\\xff\\xfe\\n')\nos.write(2, b'e' * 400_000)"
    found = await records(await place.open(place.launch(code)))
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    out = [record.data for record in found if record.stream == "out"]
    assert out == [b"x" * 1_500_000, b"\xff\xfe"]
    assert b"".join(record.data for record in found if record.stream == "err") == b"e" * 400_000


async def test_a_stop_leaves_nothing_and_nothing_follows(place: Place) -> None:
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    report = await place.runtime.stop(place.key, QUICK, "cancelled")
    assert (report.outcome, report.how, report.left) == ("stopped", "killed", ())
    assert report.processes >= 2
    assert not marked(place.mark) or all("steersman-shim" in line for line in marked(place.mark).values())
    assert not lives(int((place.work / "grandchild").read_text()))
    again = await place.runtime.stop(place.key, QUICK, "cancelled")
    assert (again.outcome, again.processes) == (report.outcome, report.processes)
    with pytest.raises(AlreadyStopped):
        await place.open(place.launch("print('never')"), attempt=2)


async def test_a_stop_before_the_start_prevents_it(place: Place) -> None:
    report = await place.runtime.stop(place.key, QUICK, "cancelled")
    assert (report.outcome, report.how, report.processes) == ("stopped", "exited", 0)
    with pytest.raises(AlreadyStopped):
        await place.open(place.launch("print('never')"))
    assert place.runtime.attempts(place.key) == 0


async def test_a_stop_after_the_end(place: Place) -> None:
    await records(await place.open(place.launch("print('x')")))
    assert (await place.runtime.stop(place.key, QUICK, "cancelled")).outcome == "already_finished"
    await place.runtime.release(place.key)
    assert (await place.runtime.stop(place.key, QUICK, "cancelled")).outcome == "already_finished"


async def test_a_stop_finds_the_newest_process(place: Place) -> None:
    await records(await place.open(place.launch("raise SystemExit(1)")))
    channel = await place.open(place.launch(DEAF), attempt=2)
    await line(channel, b"ready")
    report = await place.runtime.stop(place.key, QUICK, "cancelled")
    assert (report.outcome, report.how) == ("stopped", "killed")
    assert channel.handle is not None
    assert not lives(channel.handle.pid)


async def test_a_stop_and_a_start_at_once_leave_nothing(place: Place) -> None:
    for _round in range(5):
        other = Place(place.work / uuid.uuid4().hex)
        other.mark = place.mark
        started, stopped = await asyncio.gather(
            other.open(other.launch(DEAF)), other.runtime.stop(other.key, QUICK, "cancelled"), return_exceptions=True
        )
        assert not isinstance(stopped, BaseException), stopped
        assert stopped.outcome in {"stopped", "already_finished"}
        if not isinstance(started, BaseException):
            await started.close()
        await until(lambda: all("steersman-shim" in line for line in marked(place.mark).values()))
        await other.runtime.release(other.key)


async def test_what_a_killed_shim_left_is_found_by_a_stop(place: Place) -> None:
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    grandchild = int((place.work / "grandchild").read_text())
    await place.kill_shim()
    assert lives(grandchild)
    report = await place.runtime.stop(place.key, QUICK, "cancelled")
    assert (report.outcome, report.how, report.left) == ("stopped", "killed", ())
    assert report.processes >= 1
    assert not lives(grandchild)
    assert not place.runtime.has_living(place.key)


async def test_what_a_killed_shim_left_is_cleared_away_before_the_run_goes_on(place: Place) -> None:
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    grandchild = int((place.work / "grandchild").read_text())
    await place.kill_shim()
    found = await records(channel)
    assert found[-1].stream != "exit", "nobody saw the end"
    again = await place.open(None, epoch=2)
    assert not lives(grandchild)
    assert again.handle is None
    assert [record.data for record in await records(again) if record.stream == "out"] == [b"ready"]
    with pytest.raises(ChannelClosed):
        await again.write("a", "anybody?")
    following = await place.open(place.launch("print('next')"), attempt=2, epoch=2)
    assert [record.data for record in await records(following) if record.stream == "out"] == [b"next"]


async def test_a_released_shim_leaves_and_its_journal_stays(place: Place) -> None:
    channel = await place.open(place.launch("print('hello')"))
    await records(channel)
    pid = await place.shim_pid()
    await channel.close()
    await place.runtime.release(place.key)
    await until(lambda: not lives(pid))
    again = await place.open(None, epoch=2)
    assert [record.data for record in await records(again) if record.stream == "out"] == [b"hello"]


async def test_a_living_agent_is_not_released(place: Place) -> None:
    channel = await place.open(place.launch(ECHO))
    await place.runtime.release(place.key)
    await channel.write("a", "one\n")
    await line(channel, b"heard one")


async def test_a_worker_that_lets_go_leaves_the_agent_at_work(place: Place) -> None:
    channel = await place.open(place.launch(ECHO))
    await channel.close()
    again = await place.open(None, epoch=2)
    await again.write("a", "one\n")
    await line(again, b"heard one")


async def test_without_a_worker_for_longer_than_its_lease_it_is_stopped(place: Place) -> None:
    channel = await place.open(place.launch(DEAF, lease_s=3))
    await line(channel, b"ready")
    grandchild = int((place.work / "grandchild").read_text())
    await channel.close()
    await until(lambda: not lives(grandchild))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"argv": ("no-such-program",)}, AgentNotInstalled),
        ({"argv": ("/no/such/program",)}, AgentNotInstalled),
        ({"argv": ("/etc/passwd",)}, AgentNotInstalled),
        ({"cwd": "/no/such/directory"}, WorkspaceError),
        ({"argv": ("a\0b",)}, AgentFailed),
    ],
)
async def test_what_cannot_be_started(place: Place, fields: dict[str, object], error: type[RunError]) -> None:
    with pytest.raises(error):
        await place.open(place.launch("", **fields))
    assert place.runtime.attempts(place.key) == 0


async def test_an_agent_under_a_shim_of_another_version_is_left_at_work(place: Place) -> None:
    """A shim as a later release may bring it, which no longer speaks this release's protocol."""
    program = (launching.PROGRAM / "shim.py").read_text()
    other = place.work / "other"
    other.mkdir()
    later = program.replace("\nPROTOCOL = 1\n", "\nPROTOCOL = 3\n")
    later = later.replace("\nMIN_PROTOCOL = 1\n", "\nMIN_PROTOCOL = 2\n")
    (other / "shim.py").write_text(later)
    attempt = place.directory.attempt(1)
    attempt.parent.mkdir()
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    spec = {"protocol": 3, "argv": argv, "cwd": str(place.work), "env": {"PLACE_MARK": place.mark}}
    started = subprocess.run(
        [sys.executable, str(other / "shim.py"), "run", str(attempt)],
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        check=True,
    )
    agent = json.loads(started.stdout)["status"]["pid"]
    with pytest.raises(Incompatible, match="left at work"):
        await place.open(None)
    assert lives(agent)
    os.kill(json.loads(started.stdout)["status"]["shim_pid"], signal.SIGTERM)
    await until(lambda: not lives(agent))


async def test_two_stops_at_once_tell_the_same(tmp_path: Path) -> None:
    """A cancel reaches the session and the host at once: neither may say that there was nothing to stop."""
    for number in range(25):
        directory = tmp_path / str(number)
        directory.mkdir()
        place = Place(directory)
        channel = await place.open(place.launch("import time; time.sleep(600)"))

        async def stop(after_s: float, place: Place = place) -> StopReport:
            await asyncio.sleep(after_s)
            return await place.runtime.stop(place.key, StopTimes(0, 1.5), "cancelled")

        reports = await asyncio.gather(stop(0), stop(number / 2500))
        assert {(report.outcome, report.how) for report in reports} == {("stopped", "terminated")}
        await channel.close()
        await place.runtime.release(place.key)


async def test_a_workspace_that_leads_elsewhere_by_now_is_refused(place: Place) -> None:
    inner, outside = place.work / "inner", place.work.parent / "outside"
    inner.mkdir()
    outside.mkdir()
    launch = place.launch("open('was-here', 'w')", cwd=str(inner))
    inner.rmdir()
    inner.symlink_to(outside)
    with pytest.raises(WorkspaceError, match=r"workspace\.path"):
        await place.open(launch)
    assert not list(outside.iterdir())
    assert place.runtime.attempts(place.key) == 0
