"""One run at a place, with everything that a test does to it; used by all who test a runtime."""

import asyncio
import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from activities.ports.machine import Machine
from activities.ports.runtime import Channel, Launch, Record, StopTimes
from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.installation import COMMAND, INSTALL, archive
from activities.runtimes.machine import ChildMachine
from activities.runtimes.place import MachinePlace
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.shim_runtime import PlaceOf, ShimRuntime, local_place
from activities.runtimes.ssh import SshMachine
from activities.runtimes.ssh_address import SshAddress
from activities.shim import client as shim
from activities.shim.client.access import LOCAL
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from steersman.contracts.model import JsonObject
from tests.runtimes.machines import Elsewhere
from tests.runtimes.multiplexed import MultiplexedMachine
from tests.runtimes.pods import REAL, RELEASES, give, run_pod
from tests.shim.conftest import oldest_python
from tests.support.processes import kill_marked, lives, until
from tests.support.sshd import Sshd, missing

KINDS = (
    "local",
    pytest.param("elsewhere", marks=pytest.mark.exhaustive),
    pytest.param("multiplexed", marks=pytest.mark.exhaustive),
    "ssh",
    pytest.param("pod", marks=pytest.mark.exhaustive),
)
"""Every place there is; what holds at one holds at all. `multiplexed` is `elsewhere` by one connection, as ssh and pods
have it, too.
"""
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
THEIR_PYTHON = oldest_python() or sys.executable
ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"


class Place:
    """One run, at the place that `kind` says. `fresh`: a machine that has not been used before."""

    def __init__(self, directory: Path, kind: str = "local", *, fresh: bool = False) -> None:
        self.mark, self.kind = uuid.uuid4().hex, kind
        self.key = RunKey(run=f"run-{self.mark[:8]}", execution="e")
        self.store = RunStore(directory / "state", Ownership("cluster", "default"))
        self.pod = run_pod(kind, directory, THEIR_PYTHON) if kind in (*RELEASES, REAL) else None
        self.placement: JsonObject = self.pod.placement if self.pod else {"kind": kind}
        self.python = self.pod.pod.python if self.pod else THEIR_PYTHON
        self.directory = self.store.create(self.key, self.placement)
        self.home = directory / "home"
        self._used_home = None if kind == "local" or fresh else used_home()
        if self._used_home:
            shutil.copytree(self._used_home, self.home)
        else:
            self.home.mkdir()
        self.sshd = self._sshd(directory) if kind == "ssh" else None
        self.machine = Elsewhere(self._machine())
        self.runtime = self.worker()
        self.work = directory / "work"
        self.work.mkdir()
        self.channels: list[Channel] = []

    async def ready(self) -> "Place":
        """Have made what has to be there before a run."""
        if self.pod:
            give(self.work)
            await self.pod.prepare(self._used_home)
            self.home = self.pod.home
        return self

    def worker(self) -> ShimRuntime:
        """The runtime as another worker of the host has it."""
        access = ExecAccess(self.machine, self.python)
        machine = RemoteMachine(self.kind, access)
        places: dict[str, PlaceOf] = {"local": local_place}
        if self.pod:
            places["kubernetes"] = self.pod.place_of(access)
        elif self.kind != "local":
            places[self.kind] = lambda run: MachinePlace(run, machine)
        return ShimRuntime(self.store, "host", places)

    def _machine(self) -> Machine:
        if self.pod:
            return self.pod.pod
        if self.kind == "multiplexed":
            return MultiplexedMachine(self.home, {"PATH": os.environ["PATH"]}, THEIR_PYTHON)
        if self.sshd is None:
            return ChildMachine(self.home, {"PATH": os.environ["PATH"]})
        return SshMachine(self._address(self.sshd))

    def _sshd(self, directory: Path) -> Sshd:
        if reason := missing():
            pytest.skip(reason)
        return Sshd(directory / "sshd", self.home)

    def _address(self, sshd: Sshd) -> SshAddress:
        return SshAddress("place", config=sshd.config)

    async def shim_directory(self, attempt: int = 1) -> Path:
        """The shim's own directory. On this computer, wherever the machine thinks that it is."""
        place = (await self.runtime.files(self.key, attempt)).parent
        return self.pod.seen(place) if self.pod else Path(place)

    def pid(self, number: int) -> int | None:
        """How this computer numbers a process there; None where it is gone."""
        return self.pod.pid(number) if self.pod else number

    def lives(self, number: int) -> bool:
        """Whether a process, by its number there, is there and no zombie."""
        pid = self.pid(number)
        return pid is not None and lives(pid)

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

    async def program(self, *argv: str, stdin: bytes) -> bytes:
        """What a program says that is run there."""
        if not self.pod:
            return subprocess.run(argv, input=stdin, capture_output=True, check=True).stdout
        stream = await self.machine.exec(*argv, stdin=stdin)
        said = await stream.stdout.read()
        assert await stream.wait() == 0, stream.said()
        return said

    async def open(self, launch: Launch | None, *, attempt: int = 1, epoch: int = 1) -> Channel:
        """As a session does."""
        channel = await self.runtime.open(self.key, attempt, epoch, launch)
        self.channels.append(channel)
        return channel

    async def shim_pid(self, attempt: int = 1) -> int:
        """The shim's own process, as this computer numbers it."""
        directory = (await self.runtime.files(self.key, attempt)).parent
        access = ExecAccess(self.machine, self.python) if self.pod else LOCAL
        async with await shim.connect(directory, epoch=None, access=access) as connection:
            pid = self.pid(connection.hello.shim_pid)
        assert pid
        return pid

    async def kill_shim(self) -> None:
        """SIGKILL to the shim, which cannot clear anything away then."""
        pid = await self.shim_pid()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not lives(pid))

    async def aclose(self) -> None:
        """Let go of everything; nothing of the run is at work afterwards."""
        self.machine.reachable, self.machine.cuts = True, []
        for channel in self.channels:
            await channel.close()
        await self.runtime.stop(self.key, QUICK, "the test is over")
        await self.runtime.release(self.key)
        kill_marked(self.mark)
        await self.machine.aclose()
        if self.pod:
            await self.pod.aclose()
        if self.sshd:
            self.sshd.close()


@functools.cache
def used_home() -> Path:
    """A home in which the shim's program has been used before: bringing and compiling it takes longer than a run."""
    home = Path(tempfile.mkdtemp(prefix="steersman-home-"))
    atexit.register(shutil.rmtree, home)
    name, data = archive()
    for command in ((INSTALL, name), (COMMAND, name, "home"), (COMMAND, name, "info", "[]")):
        program = [THEIR_PYTHON, "-I", "-S", "-c", *command]
        subprocess.run(program, input=data, env={**os.environ, "HOME": str(home)}, check=True, capture_output=True)
    return home


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """On this machine."""
    place = Place(tmp_path)
    yield place
    await place.aclose()


async def records(channel: Channel) -> list[Record]:
    """All of them, to the end."""
    async with asyncio.timeout(30):
        return [record async for batch in channel.records() for record in batch]


async def line(channel: Channel, data: bytes) -> None:
    """Read from the start until this line."""
    async with asyncio.timeout(30):
        async with aclosing(channel.records()) as batches:
            async for batch in batches:
                if any(record.data == data for record in batch):
                    return
    raise AssertionError(f"{data!r} never came")
