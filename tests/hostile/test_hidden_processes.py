"""Processes that hide from a stop: disguised as a shim, in a directory that was moved, or behind one that is none."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from activities.shim import client as shim
from activities.shim.client import launching
from tests.hostile.test_lost_shim import stop
from tests.hostile.test_shim import nobodys
from tests.runtimes.stage import DEAF, Place, line, place
from tests.support.processes import lives, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]
__all__ = ["nobodys", "place"]

KILLER = """
import os, signal, subprocess, sys, time
env = [] if sys.argv[2] == "mark" else ["/usr/bin/env", "-i"]
child = subprocess.Popen([*env, sys.executable, "-c", sys.argv[1]], start_new_session=True)
while not (os.path.exists("disguised") and os.path.exists("opened")): time.sleep(0.01)
with open("agent", "w") as file: file.write(str(os.getpid()))
with open("child.new", "w") as file: file.write(str(child.pid))
os.rename("child.new", "child")
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""
NAMED = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'steersman-shim', 0, 0, 0)\n"
OLDER = "import time\n'import shim; sys.exit(shim.main'\n"
TITLED = """import os, sys, time
if sys.argv[0] == '-c' and 'again' not in os.environ:
    text = "import ctypes,time;ctypes.CDLL(None).prctl(15,b'steersman-shim',0,0,0);time.sleep(600)"
    with open('c', 'w') as file: file.write(text)
    open('disguised', 'w').close()
    os.execve(sys.executable, ['steersman-shim', 'c'], {'again': '1'})
"""
LEADERLESS = """import ctypes, threading, time
threading.Thread(target=lambda: time.sleep(600)).start()
open('disguised', 'w').close()
ctypes.CDLL(None).syscall(60, 0)
"""
STAYS = "open('disguised', 'w').close()\ntime.sleep(600)\n"
DISGUISES = {
    "name": NAMED + STAYS,
    "older command line": OLDER + STAYS,
    "name and command line": TITLED,
    "ended leader": LEADERLESS,
}


async def lost(place: Place, code: str, keeps: str = "nothing") -> int:
    """A run whose agent killed its shim, and its child."""
    channel = await place.open(place.launch("", argv=(sys.executable, "-c", KILLER, code, keeps)))
    (place.work / "opened").touch()  # opening one whose shim is gone clears it
    await until(lambda: not shim.is_alive(place.directory.attempt(1)))
    await channel.close()
    agent = int((place.work / "agent").read_text())
    await until(lambda: not lives(agent))  # it dies with its shim, a moment later
    return int((place.work / "child").read_text())


def is_there(pid: int) -> bool:
    """Also where its first thread has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" or int(fields[17]) > 1


class TestDisguises:
    @pytest.mark.parametrize("code", DISGUISES.values(), ids=DISGUISES)
    async def test_whoever_looks_like_a_shim_is_named_all_the_same(self, place: Place, code: str) -> None:
        child = await lost(place, code)
        await until(lambda: is_there(child))
        try:
            report = await stop(place)
            assert (report.outcome, child in report.left) == ("unverified", True), report
        finally:
            os.kill(child, signal.SIGKILL)

    async def test_a_mark_is_found_though_the_leader_has_ended(self, place: Place) -> None:
        child = await lost(place, LEADERLESS, "mark")
        await until(lambda: not lives(child))
        assert is_there(child)
        report = await stop(place)
        assert (report.how, report.processes) == ("killed", 1)
        assert not is_there(child)

    async def test_whoever_takes_a_lost_shims_lock_does_not_answer_for_it(self, place: Place) -> None:
        code = f"""import fcntl, json, os, socket, time
os.chdir({str(place.directory.attempt(1))!r})
with open("state.json") as file: state = json.load(file)
while os.path.exists(f"/proc/{{state['shim_pid']}}/environ") and not os.path.exists("late"):
    open({str(place.work / "disguised")!r}, "w").close()
    try:
        fcntl.flock(os.open("lock", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except OSError:
        time.sleep(0.01)
else:
    fcntl.flock(os.open("lock", os.O_RDWR), fcntl.LOCK_EX)
os.unlink("shim.sock")
listener = socket.socket(socket.AF_UNIX); listener.bind("shim.sock"); listener.listen()
open("up", "w").close()
said = {{"ok": True, "outcome": "stopped", "how": "exited", "processes": 1, "took_ms": 1, "left": []}}
hello = {{"ok": True, "status": {{**state, "seq": 1, "lease_left_s": 60, "stdin_open": True}}}}
while True:
    peer = listener.accept()[0]
    try:
        for reply in (hello, said):
            asked = json.loads(peer.recv(65536) or b"{{}}")
            peer.sendall(json.dumps({{**reply, "id": asked.get("id")}}).encode() + b"\\n")
    except OSError:
        pass
"""
        channel = await place.open(place.launch("", argv=(sys.executable, "-c", KILLER, code, "nothing")))
        (place.work / "opened").touch()
        await channel.close()
        await until((place.directory.attempt(1) / "up").exists)
        child = int((place.work / "child").read_text())
        try:
            report = await stop(place)
            assert (report.outcome, child in report.left) == ("unverified", True), report
        finally:
            os.kill(child, signal.SIGKILL)


class TestSuspects:
    async def test_a_workers_own_orphan_is_none(self, place: Place) -> None:
        """Of our session: an agent's process can be in none that it did not make."""
        child = await lost(place, NAMED + STAYS)
        ours = subprocess.run(["sh", "-c", "sleep 600 >&- 2>&- & echo $!"], capture_output=True, text=True, check=True)
        try:
            report = await stop(place)
            assert child in report.left
            assert int(ours.stdout) not in report.left
        finally:
            os.kill(child, signal.SIGKILL)
            os.kill(int(ours.stdout), signal.SIGKILL)

    async def test_an_older_shims_state_is_enough_to_find_some(self, place: Place) -> None:
        child = await lost(place, NAMED + STAYS)
        path = place.directory.attempt(1) / "state.json"
        state = json.loads(path.read_text())
        del state["reapers"]
        path.write_text(json.dumps(state))
        try:
            assert child in (await stop(place)).left
        finally:
            os.kill(child, signal.SIGKILL)


class TestDirectories:
    @pytest.mark.parametrize(
        ("spoil", "outcome"),
        [(Path.touch, "stopped"), (lambda path: path.symlink_to("/proc"), "unverified")],
        ids=["a file is there", "no file can be made"],
    )
    async def test_a_stop_ends_where_the_next_attempts_directory_cannot_be_made(
        self, place: Place, spoil: Callable[[Path], None], outcome: str
    ) -> None:
        channel = await place.open(place.launch(DEAF))
        await line(channel, b"ready")
        await channel.close()
        spoil(place.directory.attempt(2))
        report = await stop(place)
        assert (report.outcome, report.how, report.left) == (outcome, "killed", ())
        assert report.processes >= 2
        assert channel.handle is not None
        assert not lives(channel.handle.pid)
        place.directory.attempt(2).unlink()

    async def test_nor_where_the_first_one_cannot(self, place: Place) -> None:
        place.directory.attempt(1).parent.mkdir()
        place.directory.attempt(1).symlink_to("/proc")
        assert (await stop(place)).outcome == "unverified"
        place.directory.attempt(1).unlink()

    @pytest.mark.parametrize("instead", [None, Path.touch, Path.mkdir], ids=["nothing", "file", "directory"])
    async def test_an_agent_whose_directory_was_moved_is_stopped(
        self, place: Place, instead: Callable[[Path], None] | None
    ) -> None:
        channel = await place.open(place.launch(DEAF))
        await line(channel, b"ready")
        await channel.close()
        attempt = place.directory.attempt(1)
        shim_pid = await place.shim_pid()
        attempt.rename(place.work / "away")
        if instead:
            instead(attempt)
        report = await stop(place)
        assert report.how == "killed"
        assert report.processes >= 2
        assert channel.handle is not None
        assert not any(map(lives, (channel.handle.pid, shim_pid, int((place.work / "grandchild").read_text()))))
        if attempt.is_file():
            attempt.unlink()


GRACEFUL = """
import signal, sys, time
def end(*_):
    with open("graceful", "w"): sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
BLOCKED = """
    def tick(self) -> None:
        if os.path.exists("block"):
            os.unlink("block")
            import ctypes
            if ctypes.CDLL(None).syscall(56, 0x4000 | 17, 0, 0, 0, 0) == 0:
                time.sleep(6)
                os._exit(0)
        self._tick()

    def _tick(self) -> None:
"""
"""The shim waits as for a disk: in state D, as whoever starts a process by vfork."""


@pytest.mark.exhaustive
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs the number of a system call")
async def test_a_shim_that_waits_for_its_disk_still_stops_its_agent_itself(place: Place) -> None:
    program = (launching.PROGRAM / "shim.py").read_text()
    (place.work / "shim.py").write_text(program.replace("\n    def tick(self) -> None:\n", BLOCKED))
    attempt = place.directory.attempt(1)
    attempt.parent.mkdir()
    argv = [sys.executable, "-c", GRACEFUL]
    spec = {"protocol": 1, "argv": argv, "cwd": str(place.work), "env": {"PLACE_MARK": place.mark}}
    command = [sys.executable, str(place.work / "shim.py"), "run", str(attempt)]
    subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, check=True)
    await until(lambda: b"ready" in (attempt / "journal").read_bytes())
    (attempt / "block").touch()
    with contextlib.suppress(shim.ShimError):
        await shim.connect(attempt, epoch=None, timeout=timedelta(seconds=0.1))  # the loop goes round
    shim_pid = json.loads((attempt / "state.json").read_text())["shim_pid"]
    await until(lambda: Path(f"/proc/{shim_pid}/stat").read_text().rpartition(")")[2].split()[0] == "D")
    report = await stop(place)
    assert (report.outcome, report.how) == ("stopped", "terminated")
    assert (place.work / "graceful").exists()


async def test_a_worker_within_an_agent_takes_no_other_agent_by_force(place: Place) -> None:
    channel = await place.open(place.launch(DEAF))
    await line(channel, b"ready")
    assert channel.handle is not None
    code = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(launching.__file__).parents[3])!r})
from activities.ports.runtime import StopTimes
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
runtime = ShimRuntime(RunStore(Path({str(place.work.parent / "state")!r}), Ownership("cluster", "default")), "host")
report = asyncio.run(runtime.stop(RunKey(run={place.key.run!r}, execution="e"), StopTimes(0.05, 0.3), "cancelled"))
print(report.outcome, flush=True)
"""
    (place.work.parent / "second").mkdir()
    second = Place(place.work.parent / "second")
    inner = await second.open(second.launch(code))
    try:
        await line(inner, b"unverified")
        assert lives(channel.handle.pid)
        assert lives(int((place.work / "grandchild").read_text()))
    finally:
        await inner.close()
        await second.runtime.release(second.key)
    assert (await stop(place)).outcome == "stopped"


HIDDEN = """
import json, os, socket, subprocess, sys, time
directory = sys.argv[1]
code = ("import ctypes, signal, time; signal.signal(15, signal.SIG_IGN); ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
        "open('up', 'w').close(); time.sleep(600)")
child = ["/usr/bin/python3", "-I", "-c", code]
parent = f"import subprocess; subprocess.Popen({child!r}, start_new_session=True).wait()"
spec = dict(protocol=1, argv=["/usr/bin/python3", "-I", "-c", parent], cwd=directory, env={}, lease_s=20)
command = ["/usr/bin/python3", "-I", "-S", directory + "/shim.py", "run", directory + "/run"]
subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, check=True)
os.chdir(directory + "/run")
while not os.path.exists("../up"): time.sleep(0.01)
sock = socket.socket(socket.AF_UNIX); sock.settimeout(20); sock.connect("shim.sock"); file = sock.makefile("rw")
def say(**command):
    file.write(json.dumps(command) + "\\n"); file.flush()
    return json.loads(file.readline())
say(op="hello", protocol=1, epoch=None)
print(json.dumps(say(op="stop", id="1", terminate_after_s=0.05, kill_after_s=0.2)))
say(op="release", id="2")
"""


def test_a_process_that_proc_does_not_show_is_killed(nobodys: Path) -> None:
    """With hidepid a user without privileges does not see its own processes that are not dumpable."""
    if not shutil.which("unshare"):
        pytest.skip("needs a mount namespace of its own")
    (nobodys / "hidden.py").write_text(HIDDEN)
    become = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    script = (
        f"mount -t proc -o hidepid=2 proc /proc || exit 77; {become} /usr/bin/python3 {nobodys}/hidden.py {nobodys}"
    )
    command = ["unshare", "-m", "sh", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode == 77:
        pytest.skip("no /proc can be mounted here")
    report = json.loads(ran.stdout)
    assert (report["outcome"], report["how"], report["left"]) == ("stopped", "killed", [])
