"""The machine that the faults strike: a Temporal server, two workers of one host, a disk that can be filled, a clock
that can be stepped. Who strikes when must not live here.
"""

import asyncio
import contextlib
import mmap
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.site import Site
from tests.support.processes import lives
from tests.support.workers import WorkerProcess

DISK_BYTES = 128 << 20
WORKERS = 2
STRIKES = 10
"""A worker that ends by itself so often is not started again."""


@dataclass
class Place:
    """Where one of the two workers belongs. `struck`: somebody deals with it now, and brings it back."""

    worker: WorkerProcess
    struck: bool = False


@dataclass
class Machine:
    """See the module. `ends` are ends of workers that nobody had asked for."""

    site: Site
    places: list[Place] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    frozen: set[str] = field(default_factory=set)
    """The logs of workers that were frozen."""
    server_struck: bool = False
    disk_full: bool = False
    _own_disk: bool = False
    _clock: mmap.mmap | None = None
    _clock_env: dict[str, str] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        """Both workers, polling; the state directory on a small disk of its own, where this user may mount one."""
        self.site.state.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "chaos", str(self.site.state)]
        self._own_disk = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self._make_clock()
        self.places = [Place(self._worker()) for _ in range(WORKERS)]
        for place in self.places:
            await place.worker.ready()

    @property
    def can_fill(self) -> bool:
        return self._own_disk

    @property
    def can_step(self) -> bool:
        return self._clock is not None

    def end(self) -> None:
        """Nothing of it is left running; what it wrote stays."""
        for task in self._tasks:
            task.cancel()
        self.site.server.thaw()
        for place in self.places:
            with contextlib.suppress(ProcessLookupError):
                place.worker.thaw()
        self.site.end()
        if self._own_disk:
            kept = self.site.root / "state-kept"
            shutil.copytree(self.site.state, kept, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
            subprocess.run(["umount", "-l", str(self.site.state)], check=False)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside everything else; `mend` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def mend(self) -> None:
        """Everything is whole again: server there, both workers polling, room on the disk, clock right."""
        while self._tasks:
            await asyncio.gather(*self._tasks)
        self.look_after()
        for place in self.places:
            await place.worker.ready()

    def look_after(self) -> None:
        """Notice a worker that ended by itself, and put another into its place."""
        for number, place in enumerate(self.places):
            if not place.struck and place.worker.exit_code is not None and len(self.ends) < STRIKES:
                self.ends.append(f"worker {number} ({place.worker.log.name}) ended with {place.worker.exit_code}")
                place.worker = self._worker()

    def workers(self) -> list[int]:
        """Indices of the workers that are there and whom nobody has struck."""
        return [number for number, place in enumerate(self.places) if not place.struck]

    # Faults. Each mends itself after a while.

    def kill_worker(self, number: int, down_s: float) -> None:
        place = self.places[number]
        place.struck = True
        place.worker.kill()
        self.later(self._replace(place, down_s))

    def end_worker(self, number: int, down_s: float) -> None:
        place = self.places[number]
        place.struck = True
        self.later(self._end_worker(place, down_s))

    async def _end_worker(self, place: Place, down_s: float) -> None:
        try:
            code = await place.worker.terminate()
        except AssertionError:
            self.ends.append(f"{place.worker.log.name} had not ended 30 s after SIGTERM")
            place.worker.kill()
        else:
            ready = place.worker.said("worker_ready")
            if code and (ready or code != -signal.SIGTERM):  # it ends as any program does while it starts
                self.ends.append(f"{place.worker.log.name} answered SIGTERM with exit code {code}")
        await self._replace(place, down_s)

    async def _replace(self, place: Place, down_s: float) -> None:
        await asyncio.sleep(down_s)
        place.worker = self._worker()
        place.struck = False

    def freeze_worker(self, number: int, frozen_s: float) -> None:
        place = self.places[number]
        place.struck = True
        self.frozen.add(place.worker.log.name)
        place.worker.freeze()

        async def thaw() -> None:
            await asyncio.sleep(frozen_s)
            place.worker.thaw()
            place.struck = False

        self.later(thaw())

    def strike_server(self, how: str, down_s: float) -> None:
        """`how`: killed, ended or frozen."""
        self.server_struck = True
        self.later(self._strike_server(how, down_s))

    async def _strike_server(self, how: str, down_s: float) -> None:
        server = self.site.server
        if how == "frozen":
            server.freeze()
            await asyncio.sleep(down_s)
            server.thaw()
        else:
            await asyncio.to_thread(server.kill if how == "killed" else server.stop)
            await asyncio.sleep(down_s)
            await asyncio.to_thread(server.start)
        self.server_struck = False

    def fill_disk(self, full_s: float) -> None:
        """Until not one byte more goes onto the disk that holds the state."""
        self.disk_full = True
        filler = self.site.state / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)

        async def clear() -> None:
            await asyncio.sleep(full_s)
            filler.unlink()
            self.disk_full = False

        self.later(clear())

    def step_clock(self, step_s: int, for_s: float) -> None:
        """The workers' wall clock; shims, agents and the server keep theirs."""
        assert self._clock is not None
        clock = self._clock
        clock[:8] = struct.pack("l", step_s)

        async def back() -> None:
            await asyncio.sleep(for_s)
            clock[:8] = struct.pack("l", 0)

        self.later(back())

    def freeze(self, pid: int, frozen_s: float) -> None:
        """Any process, for a while."""
        os.kill(pid, signal.SIGSTOP)

        async def thaw() -> None:
            await asyncio.sleep(frozen_s)
            if lives(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        self.later(thaw())

    def _worker(self) -> WorkerProcess:
        return self.site.worker(**self._clock_env)

    def _make_clock(self) -> None:
        self._clock_env = build_clock(self.site.root)
        if self._clock_env:
            with Path(self._clock_env["CHAOS_CLOCK"]).open("r+b") as file:
                self._clock = mmap.mmap(file.fileno(), 8)


def build_clock(directory: Path) -> dict[str, str]:
    """Variables that give a process a wall clock which a file of 8 bytes steps; none where there is no C compiler."""
    library, step, compiler = directory / "clock.so", directory / "clock", shutil.which("cc")
    if compiler is None:
        return {}
    source = str(Path(__file__).with_name("clock.c"))
    build = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), source]
    if subprocess.run(build, capture_output=True, check=False).returncode:
        return {}
    step.write_bytes(struct.pack("l", 0))
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(step)}
