"""One container: a process tree in namespaces of its own, and further commands that enter them.

When a container is started or restarted, and what a pod's status says of it, must not live here.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.kubernetes.logs import ContainerLog

PROGRAM = Path(__file__).with_name("container_program.py")
NAMESPACES = ("--pid", "--mount", "--uts", "--ipc")
TOOLS = ("unshare", "nsenter", "setpriv", "mount")


_started: "weakref.WeakSet[asyncio.subprocess.Process]" = weakref.WeakSet()


class StartError(Exception):
    """A container's command could not be run; the message is the runtime's."""


@dataclass(frozen=True)
class Mount:
    """A directory or file of the machine at a path of the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerSpec:
    """All that a container's process is made of; `hidden`: paths of the machine that it finds empty."""

    argv: Sequence[str]
    environment: dict[str, str]
    directory: str = "/"
    uid: int = 0
    gid: int = 0
    groups: Sequence[int] = ()
    mounts: Sequence[Mount] = ()
    hidden: Sequence[str] = ()
    hostname: str = "pod"
    read_only_root: bool = False
    drop_capabilities: bool = False
    no_new_privileges: bool = False


def missing() -> str | None:
    """Why no pods can be run here."""
    if sys.platform != "linux":
        return "pods are run in namespaces of Linux"
    if os.getuid() != 0:
        return "pods are run in namespaces of their own, which takes root"
    for name in TOOLS:
        if shutil.which(name) is None:
            return f"no {name} on this machine: on Debian, apt-get install util-linux mount"
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, check=False
    )
    if tried.returncode:
        return f"no namespaces to run pods in: {tried.stderr.decode(errors='replace').strip()}"
    return None


class Container:
    """`start`, then `wait`. `pid` is its first process, as the machine numbers it."""

    def __init__(self, spec: ContainerSpec, scratch: Path, log: ContainerLog) -> None:
        self.spec, self.log = spec, log
        self.pid = 0
        self._scratch = scratch
        self._ended: asyncio.Task[int] | None = None

    @property
    def runs(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def start(self) -> None:
        """Return when the command runs. Raises StartError."""
        self._scratch.mkdir(parents=True)
        status = self._scratch.with_suffix(".status")
        os.mkfifo(status)
        told = os.open(status, os.O_RDONLY | os.O_NONBLOCK)
        given = _memory_file({**asdict(self.spec), "root": str(self._scratch)})
        try:
            self._process = await asyncio.create_subprocess_exec(
                *_with_parent(sys.executable, "-I", "-S", str(PROGRAM), str(given), str(status)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(given,),
            )
        finally:
            os.close(given)
        _started.add(self._process)
        assert self._process.stdout
        assert self._process.stderr
        copies = [
            asyncio.create_task(self.log.copy(stream, name))
            for stream, name in ((self._process.stdout, "stdout"), (self._process.stderr, "stderr"))
        ]
        pid, refused = await self._word(told)
        status.unlink()
        if refused:
            await asyncio.gather(self._process.wait(), *copies)
            raise StartError(refused)
        self.pid = pid
        self._ended = asyncio.create_task(self._wait(copies))

    async def wait(self) -> int:
        """How the first process ended, as a shell counts it: 128 and the signal. Its log is complete then."""
        assert self._ended
        return await asyncio.shield(self._ended)

    def signal(self, number: signal.Signals) -> None:
        """Send the first process a signal."""
        if self.runs and self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """End the first process, and with it all others of the container."""
        self.signal(signal.SIGKILL)

    async def enter(self, argv: Sequence[str], *, stdin: int, stdout: int, stderr: int) -> asyncio.subprocess.Process:
        """Run a further command in the container. Raises StartError."""
        self._look_up(argv[0])
        spec = self.spec
        groups = ("--groups", ",".join(map(str, spec.groups))) if spec.groups else ("--clear-groups",)
        privileges = (*(("--no-new-privs",) if spec.no_new_privileges else ()),)
        if spec.drop_capabilities:
            privileges += ("--bounding-set=-all,+setuid,+setgid",)
        process = await asyncio.create_subprocess_exec(
            *_with_parent("nsenter", "--target", str(self.pid), *NAMESPACES, f"--wdns={spec.directory}"),
            *(_tool("setpriv"), "--reuid", str(spec.uid), "--regid", str(spec.gid), *groups, *privileges, "--"),
            *argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=spec.environment,
            start_new_session=True,
        )
        _started.add(process)
        return process

    async def _word(self, told: int) -> tuple[int, str]:
        """The number of the first process, and why the command does not run, once both are known."""
        reading = asyncio.create_task(_read_to_end(told))
        ending = asyncio.create_task(self._process.wait())
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            await asyncio.wait({reading}, timeout=1)  # nothing is said by a program that has not come to it
        for each in (reading, ending):
            each.cancel()
        said = (await asyncio.gather(reading, ending, return_exceptions=True))[0]
        if not isinstance(said, bytes) or b"\n" not in said:
            return 0, "no namespaces to run in"
        pid, _, refused = said.partition(b"\n")
        return int(pid), refused.decode(errors="replace")

    def _look_up(self, name: str) -> None:
        root = f"/proc/{self.pid}/root"
        if "/" in name:
            if not Path(f"{root}/{self.spec.directory}", name).exists() and not Path(f"{root}{name}").exists():
                raise StartError(f'exec: "{name}": stat {name}: no such file or directory')
            return
        places = self.spec.environment.get("PATH", "").split(":")
        if not any(os.access(f"{root}{place}/{name}", os.X_OK) for place in places):
            raise StartError(f'exec: "{name}": executable file not found in $PATH')

    async def _wait(self, copies: Sequence[asyncio.Task[None]]) -> int:
        code = await self._process.wait()
        await asyncio.gather(*copies)
        self.log.end()
        shutil.rmtree(self._scratch, ignore_errors=True)
        return exit_code(code)


async def let_go() -> None:
    """Wait until asyncio has let go of what this loop has started and has ended: that is after the end of its pipes. A
    loop that is closed before warns of it at any time after, in the midst of whatever test.
    """
    loop = asyncio.get_running_loop()
    for process in list(_started):
        transport = process._transport  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else tells
        if process._loop is loop:  # type: ignore[attr-defined]  # noqa: SLF001 - the same
            if process.returncode is None:
                process.kill()
            for _ in range(200):
                if transport.is_closing():
                    break
                await asyncio.sleep(0.01)
            transport.close()


def exit_code(returncode: int) -> int:
    """As a shell counts it."""
    return returncode if returncode >= 0 else 128 - returncode


def _with_parent(name: str, *arguments: str) -> tuple[str, ...]:
    """A command that ends with the thread that has started it, however that ends."""
    return (_tool("setpriv"), "--pdeathsig", "KILL", "--", _tool(name), *arguments)


def _tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"no {name}"
    return found


def _memory_file(content: object) -> int:
    """A descriptor to read JSON from that is nowhere on disk."""
    descriptor = os.memfd_create("container", 0)
    os.write(descriptor, json.dumps(content).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _read_to_end(descriptor: int) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()
