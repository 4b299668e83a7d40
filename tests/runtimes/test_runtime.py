"""What every runtime holds: start, adopt, fence, stop with proof, whatever died in between.

Each test runs at every kind of place: on this machine, through one that is reached by programs alone, each with a
connection of its own or all over one, through one that is reached by ssh, and in a pod; these have a home of their own.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.ports.runtime import (
    AlreadyStopped,
    ChannelClosed,
    Fenced,
    Incompatible,
    StopTimes,
    Unreachable,
)
from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.place import MachinePlace
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.shim_runtime import ShimRuntime
from activities.shim.client import RecordParser, launching
from steersman.contracts.errors import AgentFailed, AgentNotInstalled, RunError, WorkspaceError
from steersman.contracts.run import StopReport
from tests.runtimes.stage import DEAF, ECHO, KINDS, QUICK, Place, line, records
from tests.support.processes import lives, marked, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    place = await Place(tmp_path, request.param).ready()
    yield place
    await place.aclose()


@pytest.fixture
def there(place: Place) -> Place:
    if place.kind == "local":
        pytest.skip("this machine is always there")
    return place


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
    stat = Path(f"/proc/{place.pid(channel.handle.pid)}/stat").read_text().rpartition(")")[2].split()
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
    assert not place.lives(int((place.work / "grandchild").read_text()))
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
    assert not place.lives(channel.handle.pid)


async def test_a_stop_and_a_start_at_once_leave_nothing(place: Place) -> None:
    for _round in range(5):
        (directory := place.work / uuid.uuid4().hex).mkdir()
        other = await Place(directory, place.kind).ready()
        other.mark = place.mark
        started, stopped = await asyncio.gather(
            other.open(other.launch(DEAF)), other.runtime.stop(other.key, QUICK, "cancelled"), return_exceptions=True
        )
        assert not isinstance(stopped, BaseException), stopped
        assert stopped.outcome in {"stopped", "already_finished"}
        if not isinstance(started, BaseException):
            await started.close()
        await until(lambda: all("steersman-shim" in line for line in marked(place.mark).values()))
        await other.aclose()


async def test_what_a_killed_shim_left_is_found_by_a_stop(place: Place) -> None:
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    grandchild = int((place.work / "grandchild").read_text())
    await place.kill_shim()
    assert place.lives(grandchild)
    report = await place.runtime.stop(place.key, QUICK, "cancelled")
    assert (report.outcome, report.how, report.left) == ("stopped", "killed", ())
    assert report.processes >= 1
    assert not place.lives(grandchild)
    # What is elsewhere counts as living until it was removed.
    assert place.runtime.has_living(place.key) == (place.kind != "local")


async def test_what_a_killed_shim_left_is_cleared_away_before_the_run_goes_on(place: Place) -> None:
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    grandchild = int((place.work / "grandchild").read_text())
    await place.kill_shim()
    found = await records(channel)
    assert found[-1].stream != "exit", "nobody saw the end"
    again = await place.open(None, epoch=2)
    assert not place.lives(grandchild)
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


async def test_a_living_agent_is_not_released(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 1)
    channel = await place.open(place.launch(ECHO))
    await place.runtime.release(place.key)
    await channel.write("a", "one\n")
    await line(channel, b"heard one")
    report = await place.runtime.stop(place.key, QUICK, "cancelled")
    assert (report.outcome, report.left) == ("stopped", ())
    assert channel.handle
    assert not place.lives(channel.handle.pid)


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
    await until(lambda: not place.lives(grandchild))


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
    attempt = (await place.runtime.files(place.key, 1)).parent
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    spec = {"protocol": 3, "argv": argv, "cwd": str(place.work), "env": {"PLACE_MARK": place.mark}}
    make = f"import os\nos.makedirs({str(attempt.parent)!r}, exist_ok=True)"
    await place.program(sys.executable, "-c", make, stdin=b"")
    run = (sys.executable, str(other / "shim.py"), "run", str(attempt))
    started = json.loads(await place.program(*run, stdin=json.dumps(spec).encode()))["status"]
    with pytest.raises(Incompatible, match="left at work"):
        await place.open(None)
    assert place.lives(started["pid"])
    os.kill(place.pid(started["shim_pid"]) or 0, signal.SIGTERM)
    await until(lambda: not place.lives(started["pid"]))


@pytest.mark.parametrize("kind", KINDS)
async def test_two_stops_at_once_tell_the_same(tmp_path: Path, kind: str) -> None:
    """A cancel reaches the leading worker and the host at once: neither may say that there was nothing to stop."""
    for number in range(25 if kind == "local" else 5):
        directory = tmp_path / str(number)
        directory.mkdir()
        place = await Place(directory, kind).ready()
        channel = await place.open(place.launch("import time; time.sleep(600)"))

        async def stop(after_s: float, place: Place = place) -> StopReport:
            await asyncio.sleep(after_s)
            return await place.runtime.stop(place.key, StopTimes(0, 1.5), "cancelled")

        reports = await asyncio.gather(stop(0), stop(number / 2500))
        assert {(report.outcome, report.how) for report in reports} == {("stopped", "terminated")}
        await channel.close()
        await place.aclose()


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


async def test_a_flood_arrives_whole_while_the_agent_works(place: Place) -> None:
    code = "import os\nfor n in range(40): os.write(1, (b'%07d ' % n * 16000)[:100_000] + b'\\n')\nprint('end')"
    found = await records(await place.open(place.launch(code)))
    out = [record.data for record in found if record.stream == "out"]
    assert [len(data) for data in out] == [100_000] * 40 + [3]
    assert [int(data[:7]) for data in out[:-1]] == list(range(40))


async def test_a_line_of_5_mb(place: Place) -> None:
    found = await records(await place.open(place.launch("import os\nos.write(1, b'x' * 5_000_000 + b'\\n')")))
    assert [len(record.data) for record in found if record.stream == "out"] == [5_000_000]


async def test_an_agent_that_closes_its_output_works_on(place: Place) -> None:
    code = "import os, sys\nos.close(1)\nfor line in sys.stdin: sys.stderr.write(line)\n"
    channel = await place.open(place.launch(code))
    await channel.write("a", "still here\n")
    await channel.write("close", None)
    found = await records(channel)
    assert [record.data for record in found if record.stream == "err"] == [b"still here"]
    assert found[-1].stream == "exit"


async def test_private_files_are_put_beside_the_process(place: Place) -> None:
    where = await place.runtime.files(place.key, 1)
    code = "import os, sys\nprint(open(sys.argv[1]).read(), oct(os.stat(sys.argv[1]).st_mode & 0o777), flush=True)"
    argv = (sys.executable, "-u", "-c", code, str(where / "secret"))
    channel = await place.open(place.launch("", argv=argv, files={"secret": b"a \xf0\x9f\x94\x91"}))
    found = await records(channel)
    assert [record.data for record in found if record.stream == "out"] == ["a \N{KEY} 0o600".encode()]
    assert not any("KEY" in line or "\N{KEY}" in line for line in marked(place.mark).values())


@pytest.mark.parametrize("name", ["../x", ".hidden", "", "a/b", "x" * 101, "nul\0"])
async def test_a_private_file_stays_beside_the_process(place: Place, name: str) -> None:
    with pytest.raises(AgentFailed):
        await place.open(place.launch("", files={name: b"x"}))
    assert place.runtime.attempts(place.key) == 0


async def test_reading_goes_on_at_any_record(place: Place) -> None:
    channel = await place.open(place.launch("for n in range(200): print(n)"))
    whole = await records(channel)
    end = channel.offset
    await channel.close()
    for after, offset in ((0, 0), (50, 0), (50, 7), (len(whole) - 1, end), (len(whole) - 1, 3), (150, end)):
        again = await place.open(None, epoch=2)
        async with asyncio.timeout(30):
            found = [record async for batch in again.records(after, offset) for record in batch]
        assert [record.seq for record in found] == [record.seq for record in whole if record.seq > after]
        assert [record.data for record in found] == [record.data for record in whole if record.seq > after]


async def test_a_worker_killed_after_any_step_of_a_start_is_followed_by_one_that_adopts(place: Place) -> None:
    """Each step is undone by nothing: the next worker does the same again, and finds what there is."""
    first = await place.open(place.launch(ECHO), epoch=1)
    pid = first.handle.pid if first.handle else 0
    if place.kind != "local":
        await first.close()
        (place.directory.attempt(1) / "journal").unlink()  # it had not come so far as to begin the copy
        (place.directory.attempt(1) / "journal.epoch").unlink()
        assert place.runtime.attempts(place.key) == 0
    place.runtime = place.worker()
    second = await place.open(place.launch("print('a second process')"), epoch=2)
    assert second.handle is not None
    assert second.handle.pid == pid
    assert place.runtime.attempts(place.key) == 1
    await second.write("a", "one\n")
    await line(second, b"heard one")


# What only another machine does.


async def test_a_machine_that_is_lost_and_comes_back_loses_and_doubles_nothing(there: Place) -> None:
    channel = await there.open(there.launch(ECHO))
    await channel.write("a", "one\n")
    await line(channel, b"heard one")
    there.machine.reachable = False
    there.machine.cut_all()
    writing = asyncio.create_task(channel.write("b", "two\n"))
    reading = asyncio.create_task(records(channel))
    with pytest.raises(Unreachable, match="pulled the plug"):
        await there.worker().open(there.key, 1, 2, None)
    assert there.runtime.has_living(there.key)
    there.machine.reachable = True
    assert await asyncio.wait_for(writing, 30)
    await channel.write("close", None)
    out = [record.data for record in await reading if record.stream == "out"]
    assert out == [b"heard one", b"heard two"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS[1:])
async def test_a_worker_lost_after_any_command_of_a_start_is_followed_by_one_that_goes_on(
    tmp_path: Path, kind: str
) -> None:
    """Whatever it had done by then is done once."""
    finished = False
    for commands in range(20):
        (directory := tmp_path / str(commands)).mkdir()
        place = await Place(directory, kind, fresh=True).ready()
        place.machine.commands_left = commands
        with contextlib.suppress(Unreachable, TimeoutError):
            async with asyncio.timeout(5):
                first = await place.open(place.launch(ECHO), epoch=1)
                await first.write("a", "one\n")
                finished = place.machine.reachable
        place.machine.reachable, place.machine.commands_left = True, None
        place.runtime = place.worker()
        again = None if place.runtime.attempts(place.key) else place.launch(ECHO)
        second = await place.open(again, epoch=2)
        await second.write("a", "one\n")
        await second.write("close", None)
        found = await records(second)
        assert [record.data for record in found if record.stream == "out"] == [b"heard one"], commands
        await place.aclose()
        if finished:
            return
    raise AssertionError("a start takes more commands than that")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS[1:])
async def test_a_worker_lost_after_any_command_of_a_stop_is_followed_by_one_that_proves_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 0)
    for commands in range(20):
        (directory := tmp_path / str(commands)).mkdir()
        place = await Place(directory, kind).ready()
        channel = await place.open(place.launch(DEAF))
        await line(channel, b"ready")
        place.machine.commands_left = commands
        first = await place.runtime.stop(place.key, QUICK, "cancelled")
        finished = place.machine.reachable
        place.machine.reachable, place.machine.commands_left = True, None
        second = await place.worker().stop(place.key, QUICK, "cancelled")
        assert (first.outcome, second.outcome) == ("stopped" if finished else "unverified", "stopped"), commands
        assert not place.lives(int((place.work / "grandchild").read_text()))
        with pytest.raises(AlreadyStopped):
            await place.open(place.launch("print('never')"), attempt=2, epoch=2)
        await place.aclose()
        if finished:
            return
    raise AssertionError("a stop takes more commands than that")


async def test_a_stop_that_cannot_reach_the_machine_says_so_and_a_later_one_proves_it(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 0.5)
    channel = await there.open(there.launch(DEAF))
    await line(channel, b"ready")
    there.machine.reachable = False
    assert (await there.runtime.stop(there.key, QUICK, "cancelled")).outcome == "unverified"
    assert there.lives(int((there.work / "grandchild").read_text()))
    there.machine.reachable = True
    assert (await there.runtime.stop(there.key, QUICK, "cancelled")).outcome == "stopped"
    assert not there.lives(int((there.work / "grandchild").read_text()))


async def test_nothing_is_left_there_after_the_run_and_the_journal_is_here(there: Place) -> None:
    channel = await there.open(there.launch("print('hello')", files={"secret": b"x"}))
    whole = await records(channel)
    elsewhere = await there.shim_directory()
    original = (elsewhere / "journal").read_bytes()
    await channel.close()
    assert there.runtime.has_living(there.key)
    await there.runtime.release(there.key)
    assert not elsewhere.parent.exists()
    assert not there.runtime.has_living(there.key)
    assert (there.directory.attempt(1) / "journal").read_bytes() == original
    there.machine.reachable = False
    again = await there.open(None, epoch=2)
    assert await records(again) == whole


async def test_a_copy_that_was_cut_or_spoilt_is_made_whole(there: Place) -> None:
    channel = await there.open(there.launch("for n in range(100): print('line', n)"))
    whole = await records(channel)
    await channel.close()
    copy = there.directory.attempt(1) / "journal"
    data = copy.read_bytes()
    for spoilt in (data[:-5], data[: len(data) // 2], data[:1000] + b"rubbish\n" + data[1000:], b""):
        copy.write_bytes(spoilt)
        again = await there.open(None, epoch=2)
        assert await records(again) == whole
        await again.close()
        assert copy.read_bytes() == data


async def test_a_newer_worker_takes_the_copy_over(there: Place) -> None:
    first = await there.open(there.launch(ECHO), epoch=1)
    reading = asyncio.create_task(records(first))
    second = await there.open(None, epoch=2)
    await second.write("a", "one\n")
    with pytest.raises(Fenced):
        await reading
    await second.write("close", None)
    whole = await records(second)
    parsed = RecordParser().feed((there.directory.attempt(1) / "journal").read_bytes())
    assert [record.seq for record in parsed] == [record.seq for record in whole]


@pytest.mark.parametrize("told", [{"kind": "elsewhere"}, "elsewhere", {"kind": "moon"}, {"kind": 7}, 7])
@pytest.mark.parametrize("removed", [False, True])
async def test_an_agent_that_says_that_it_lives_elsewhere_is_stopped_here(
    tmp_path: Path, told: object, *, removed: bool
) -> None:
    place = Place(tmp_path)
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    shim_pid = await place.shim_pid()
    meta = place.directory.path / "run.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "runtime": told}))
    if removed:
        (place.directory.path / "removed").touch()
    report = await asyncio.wait_for(place.runtime.stop(place.key, QUICK, "cancelled", known=1), 30)
    assert (report.outcome, report.how) in {("unverified", "killed"), ("stopped", "killed")}
    assert report.processes >= 2
    assert not place.lives(int((place.work / "grandchild").read_text()))
    await channel.close()
    await place.runtime.release(place.key)
    await until(lambda: not lives(shim_pid))
    await place.aclose()


async def test_a_run_whose_place_was_forgotten_is_stopped_here_and_not_vouched_for(there: Place) -> None:
    channel = await there.open(there.launch(ECHO))
    await channel.close()
    (there.directory.path / "run.json").unlink()
    assert (await there.runtime.stop(there.key, QUICK, "cancelled", known=1)).outcome == "unverified"
    assert (await there.runtime.stop(there.key, QUICK, "cancelled", known=1)).outcome == "unverified"
    with pytest.raises(Unreachable, match=r"run\.json"):
        await there.runtime.open(there.key, 1, 2, None)
    meta = there.directory.path / "run.json"
    meta.write_text(meta.read_text().replace('"runtime": {}', f'"runtime": {json.dumps(there.placement)}'))
    assert (await there.runtime.stop(there.key, QUICK, "cancelled", known=1)).outcome == "stopped"


async def test_what_a_person_has_to_mend_fails_a_start_and_spares_what_is_at_work(there: Place) -> None:
    there.machine.unusable = True
    with pytest.raises(AgentFailed, match="could not be started: the test has lost the key"):
        await there.open(there.launch(ECHO))
    if not there.pod:  # where its directories are is known without a word of it
        with pytest.raises(AgentFailed, match="lost the key"):
            await there.worker().files(there.key, 1)
    there.machine.unusable = False
    channel = await there.open(there.launch(ECHO))
    await channel.write("a", "one\n")
    await line(channel, b"heard one")
    there.machine.unusable = True
    there.machine.cut_all()
    with pytest.raises(Unreachable, match="lost the key"):
        await there.worker().open(there.key, 1, 2, None)
    async with asyncio.timeout(30):
        assert (await there.worker().stop(there.key, QUICK, "cancelled")).outcome == "unverified"
    there.machine.unusable = False
    await channel.write("close", None)
    out = [record.data for record in await records(channel) if record.stream == "out"]
    assert out == [b"heard one"]


async def test_records_that_stop_coming_unsaid_are_fetched_another_way(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.shim_channel.LOOK_S", 0.3)
    channel = await there.open(there.launch(ECHO))
    there.machine.cut_silently = True
    there.machine.cuts = [1500]  # the next is the one on which the records come
    reading = asyncio.create_task(records(channel))
    await until(lambda: not there.machine.cuts)
    for number in range(50):
        await channel.write(str(number), f"{number}\n")
    await channel.write("close", None)
    out = [record.data for record in await reading if record.stream == "out"]
    assert out == [b"heard %d" % number for number in range(50)]


async def test_letting_go_of_a_machine_that_answers_nothing_has_a_deadline(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.shim_runtime._RELEASE_S", 0.5)
    channel = await there.open(there.launch("print('x')"))
    await records(channel)
    there.machine.cut_silently = True
    there.machine.cuts = [0] * 10
    async with asyncio.timeout(30):
        await there.runtime.release(there.key)
    assert there.runtime.has_living(there.key)
    there.machine.cuts = []
    monkeypatch.undo()
    await there.runtime.release(there.key)
    assert not there.runtime.has_living(there.key)


async def test_a_stop_of_a_machine_that_answers_nothing_has_a_deadline(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 0.2)
    monkeypatch.setattr("activities.runtimes.shim_runtime._TRY_S", 0.2)
    monkeypatch.setattr("activities.runtimes.shim_runtime._STOP_S", 0.5)
    channel = await there.open(there.launch(ECHO))
    there.machine.cut_silently = True
    there.machine.cuts = [0] * 10
    async with asyncio.timeout(30):
        assert (await there.runtime.stop(there.key, QUICK, "cancelled")).outcome == "unverified"
    there.machine.cuts = []
    monkeypatch.undo()
    assert (await there.runtime.stop(there.key, QUICK, "cancelled")).outcome == "stopped"
    await channel.close()


async def test_a_stop_does_not_vouch_for_a_machine_that_knows_nothing_of_the_run(tmp_path: Path) -> None:
    """Its name leads to another one by now, or the user's home is another directory."""
    place = Place(tmp_path, "elsewhere")
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    other = RemoteMachine("other", ExecAccess(place.machine, sys.executable), str(tmp_path / "other"))
    worker = ShimRuntime(place.store, "host", {"elsewhere": lambda run: MachinePlace(run, other)})
    assert (await worker.stop(place.key, QUICK, "cancelled")).outcome == "unverified"
    assert place.lives(int((place.work / "grandchild").read_text()))
    assert (await place.runtime.stop(place.key, QUICK, "cancelled")).outcome == "stopped"
    await place.aclose()


async def test_a_stop_believes_no_file_that_says_that_all_was_removed(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of this machine can write it."""
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 0.5)
    channel = await there.open(there.launch(DEAF))
    await line(channel, b"ready")
    grandchild = int((there.work / "grandchild").read_text())
    (there.directory.path / "removed").touch()
    there.machine.reachable = False
    assert (await there.runtime.stop(there.key, QUICK, "cancelled")).outcome == "unverified"
    there.machine.reachable = True
    await there.runtime.release(there.key)
    assert there.lives(grandchild)
    assert there.runtime.has_living(there.key)
    (there.directory.path / "removed").touch()
    report = await there.runtime.stop(there.key, QUICK, "cancelled")
    assert (report.outcome, report.how) == ("stopped", "killed")
    assert not there.lives(grandchild)


async def test_a_stop_does_not_vouch_for_what_vanished_there_before_its_end_was_seen(there: Place) -> None:
    channel = await there.open(there.launch(DEAF))
    await line(channel, b"ready")
    await there.kill_shim()
    shutil.rmtree((await there.shim_directory()).parent)
    (there.directory.path / "removed").touch()
    assert (await there.runtime.stop(there.key, QUICK, "cancelled")).outcome == "unverified"


async def test_nothing_starts_here_for_a_run_elsewhere_whose_place_was_removed(there: Place) -> None:
    channel = await there.open(there.launch("print('x')"))
    await records(channel)
    await channel.close()
    await there.runtime.release(there.key)
    with pytest.raises(AlreadyStopped, match="was removed"):
        await there.open(there.launch("open('here', 'w')"), attempt=2, epoch=2)
    assert not (there.work / "here").exists()


@pytest.mark.parametrize("error", ["os_error", "stopped", "gone", "corrupt", "what"])
async def test_a_machine_that_answers_with_errors_is_one_that_cannot_be_asked(
    tmp_path: Path, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk has failed, or it says what no shim's program says there."""
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 0.2)
    refusal = json.dumps({"ok": False, "error": error, "message": "no way"})
    program = f"case $* in *' home') exec {sys.executable} \"$@\";; esac\necho '{refusal}'\n"
    (tmp_path / "python").write_text(f"#!/bin/sh\n{program}")
    (tmp_path / "python").chmod(0o700)
    place = Place(tmp_path, "elsewhere")
    there = RemoteMachine("there", ExecAccess(place.machine, str(tmp_path / "python")), str(tmp_path / "kept"))
    worker = ShimRuntime(place.store, "host", {"elsewhere": lambda run: MachinePlace(run, there)})
    with pytest.raises((AgentFailed, Unreachable), match="no way"):
        await worker.info(place.key, [])
    assert (await worker.stop(place.key, QUICK, "cancelled")).outcome == "unverified"
    await worker.release(place.key)
    assert worker.has_living(place.key)
    await place.aclose()
