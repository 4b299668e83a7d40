"""A shim that its agent killed, froze or hid, and a run's directory full of garbage: no stop hangs, and none lies."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.ports.runtime import Channel
from activities.shim import client as shim
from steersman.contracts.run import StopReport
from tests.runtimes.stage import DEAF, QUICK, Place, line, place, records
from tests.support.processes import lives, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]
__all__ = ["place"]

LEAVES_A_CHILD = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["/usr/bin/env", "-i", "sleep", "600"], start_new_session=True)
while b"sleep" not in open(f"/proc/{child.pid}/cmdline", "rb").read(): time.sleep(0.01)
with open("child.new", "w") as file: file.write(str(child.pid))
os.rename("child.new", "child")
print("ready", flush=True)
sys.stdin.readline()
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""
"""On a word it kills its shim, and leaves a child that no mark tells."""


@pytest.fixture
async def killer(place: Place) -> Channel:
    """A run whose agent has killed its shim; its child lives."""
    channel = await place.open(place.launch(LEAVES_A_CHILD))
    await line(channel, b"ready")
    await channel.write("now", "now\n")
    await until(lambda: not shim.is_alive(place.directory.attempt(1)))
    assert lives(child_of(place))
    return channel


def child_of(place: Place) -> int:
    return int((place.work / "child").read_text())


async def stop(place: Place) -> StopReport:
    """It neither hangs nor holds up the event loop for long."""
    longest, last, running = 0.0, time.monotonic(), True

    async def watch() -> None:
        nonlocal longest, last
        while running:
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    watching = asyncio.create_task(watch())
    report = await asyncio.wait_for(place.runtime.stop(place.key, QUICK, "cancelled"), 30)
    running = False
    await watching
    assert longest < 3.0  # this process may not get a CPU for that long, as in test_stalls
    return report


@pytest.mark.usefixtures("killer")
class TestLeftChild:
    async def test_a_stop_never_says_that_all_is_stopped(self, place: Place) -> None:
        report = await stop(place)
        child = child_of(place)
        assert report.outcome == "unverified"
        assert child in report.left
        assert lives(child), "it may be anybody's: it is named, not killed"
        os.kill(child, signal.SIGKILL)
        await until(lambda: not lives(child))
        assert child not in (await stop(place)).left

    async def test_nor_does_one_of_a_later_attempt(self, place: Place) -> None:
        second = await place.open(place.launch(DEAF), attempt=2)
        await line(second, b"ready")
        report = await stop(place)
        assert (report.outcome, report.how) == ("unverified", "killed")
        assert child_of(place) in report.left
        assert second.handle is not None
        assert not lives(second.handle.pid)
        os.kill(child_of(place), signal.SIGKILL)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def _says(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


STATES: dict[str, Callable[[Path], None]] = {
    "not JSON": _says("{"),
    "a list": _says("[]"),
    "no mark": _says("{}"),
    "a mark of anybody": _says('{"mark": ""}'),
    "a mark that is no string": _says('{"mark": ["a"]}'),
    "deep": _says("[" * 60_000),
    "nonsense of the right shape": _says(
        json.dumps({"mark": "0" * 32, "start_time": True, "reapers": [{}], "exit": 7, "boot_id": []})
    ),
    "huge": _huge,
    "FIFO": _fifo,
    "symlink": _symlink,
    "directory": _directory,
    "gone": Path.unlink,
}


class TestGarbage:
    @pytest.mark.parametrize("spoil", STATES.values(), ids=STATES)
    async def test_an_unreadable_state_is_unverified_at_once(self, place: Place, spoil: Callable[[Path], None]) -> None:
        channel = await place.open(place.launch("import time; time.sleep(600)"))
        agent = channel.handle
        await place.kill_shim()
        await channel.close()
        await until(lambda: not (agent and lives(agent.pid)))  # the kernel's doing, a moment later
        spoil(place.directory.attempt(1) / "state.json")
        assert (await stop(place)).outcome == "unverified"

    @pytest.mark.parametrize(("name", "spoil"), [("lock", _fifo), ("lock", _directory), ("shim.sock", _directory)])
    async def test_a_stop_reaches_a_shim_whose_files_were_replaced(
        self, place: Place, name: str, spoil: Callable[[Path], None]
    ) -> None:
        channel = await place.open(place.launch(DEAF))
        await line(channel, b"ready")
        await channel.close()
        path = place.directory.attempt(1) / name
        spoil(path)
        report = await stop(place)
        assert (report.outcome, report.how) == ("stopped", "killed")
        assert channel.handle is not None
        assert not lives(channel.handle.pid)
        assert not lives(int((place.work / "grandchild").read_text()))
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)

    @pytest.mark.parametrize("spoil", [_fifo, _directory], ids=["FIFO", "directory"])
    @pytest.mark.parametrize("name", ["lock", "journal", "stopped"])
    async def test_nothing_in_the_place_of_a_dead_shims_file_hangs_a_stop(
        self, place: Place, name: str, spoil: Callable[[Path], None]
    ) -> None:
        channel = await place.open(place.launch("import time; time.sleep(600)"))
        agent = channel.handle
        await place.kill_shim()
        await channel.close()
        await until(lambda: not (agent and lives(agent.pid)))  # the kernel's doing, a moment later
        path = place.directory.attempt(1) / name
        path.touch()
        spoil(path)
        assert (await stop(place)).outcome in {"already_finished", "unverified"}
        path.rmdir() if path.is_dir() else path.unlink()

    async def test_a_pipe_for_a_journal_is_an_error_to_its_reader(self, place: Place) -> None:
        channel = await place.open(place.launch("import time; time.sleep(600)"))
        await place.kill_shim()
        _fifo(place.directory.attempt(1) / "journal")
        again = await place.open(None, epoch=2)
        with pytest.raises(shim.JournalCorrupt):
            await asyncio.wait_for(records(again), 10)
        await channel.close()

    @pytest.mark.parametrize(
        "said",
        [b"", b"nonsense\n", b"[" * 60_000 + b"\n", b'{"ok": true}\n', b"x" * 3_000_000],
        ids=["nothing", "nonsense", "depth", "no status", "no end"],
    )
    async def test_whoever_listens_in_a_shims_place_holds_nothing_up(
        self, place: Place, said: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        channel = await place.open(place.launch(DEAF))
        await line(channel, b"ready")
        assert channel.handle is not None
        await channel.close()
        attempt = place.directory.attempt(1)
        (attempt / "shim.sock").unlink()
        monkeypatch.chdir(attempt)  # the path is too long for an address

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            with contextlib.suppress(OSError):
                while await reader.read(65536):
                    pass
            writer.transport.abort()

        async with await asyncio.start_unix_server(answer, "shim.sock"):
            report = await stop(place)
        assert report.outcome == "stopped"
        assert not lives(channel.handle.pid)
        assert not lives(int((place.work / "grandchild").read_text()))

    async def test_an_agent_cannot_answer_in_its_shims_place(self, place: Place) -> None:
        code = """
import json, os, socket, sys, threading
attempt = sys.stdin.readline().strip()
os.chdir(attempt)
os.unlink("shim.sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind("shim.sock")
listener.listen()
open("up", "w").close()
stop = {"ok": True, "outcome": "stopped", "how": "exited", "processes": 1, "took_ms": 1, "left": []}
with open("state.json") as file: state = json.load(file)
hello = {"ok": True, "status": {**state, "seq": 1, "lease_left_s": 60, "stdin_open": True}}
while True:
    peer = listener.accept()[0]
    try:
        for reply in (hello, stop):
            asked = json.loads(peer.recv(65536) or b"{}")
            peer.sendall(json.dumps({**reply, "id": asked.get("id")}).encode() + b"\\n")
    except OSError:
        pass
"""
        channel = await place.open(place.launch(code))
        attempt = place.directory.attempt(1)
        await channel.write("where", f"{attempt}\n")
        await until((attempt / "up").exists)
        assert channel.handle is not None
        await channel.close()
        report = await stop(place)
        assert (report.outcome, report.how) == ("stopped", "killed")
        assert not lives(channel.handle.pid)


FREEZER = """
import os, signal, subprocess, sys, time
shim = os.getppid()
child = subprocess.Popen(["/usr/bin/env", "-i", "sleep", "600"], start_new_session=True)
with open("child", "w") as file: file.write(str(child.pid))
print("ready", flush=True)
sys.stdin.readline()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    os.kill(shim, signal.SIGSTOP)
    time.sleep({pause})
"""


class TestFrozenShim:
    @pytest.mark.parametrize("pause", [600, 0.001], ids=["once", "again and again"])
    async def test_a_stop_gets_through(self, place: Place, pause: float) -> None:
        channel = await place.open(place.launch(FREEZER.replace("{pause}", str(pause))))
        await line(channel, b"ready")
        await channel.write("now", "now\n")
        assert channel.handle is not None
        parent = parent_of(channel.handle.pid)
        await until(lambda: state_of(parent) == "T")
        report = await stop(place)
        assert (report.outcome, report.how, report.left) == ("stopped", "killed", ())
        assert not lives(channel.handle.pid)
        assert not lives(int((place.work / "child").read_text()))

    async def test_a_worker_wakes_the_shim_that_it_needs(self, place: Place) -> None:
        channel = await place.open(place.launch(FREEZER.replace("{pause}", "600")))
        await line(channel, b"ready")
        await channel.write("now", "now\n")
        assert channel.handle is not None
        parent = parent_of(channel.handle.pid)
        await until(lambda: state_of(parent) == "T")
        again = await asyncio.wait_for(place.open(None, epoch=2), 30)
        assert again.handle == channel.handle


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
