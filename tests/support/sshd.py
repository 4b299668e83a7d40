"""OpenSSH's server on loopback, with keys and a client's config of its own: nobody's ~/.ssh is read.

Its sessions have the home that they are given. What a program makes of a server that is frozen or gone must not live
here.
"""

import asyncio
import atexit
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.processes import parent

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_FIRST_WORD_S = 10.0


def missing() -> str | None:
    """Why there can be no such server here."""
    for program in ("ssh", "sshd", "ssh-keygen"):
        if shutil.which(program, path=_PATH) is None:
            return f"no {program} on this machine: on Debian, apt-get install openssh-server openssh-client"
    return None


class Sshd:
    """A server. `login_shell`: what stands in for the one in the password file, as a command line.

    `namespace`: of the network, in which it listens on `address`.
    """

    def __init__(
        self,
        directory: Path,
        home: Path,
        *,
        login_shell: str | None = None,
        settings: tuple[str, ...] = (),
        address: str = "127.0.0.1",
        namespace: str | None = None,
    ) -> None:
        self.directory, self.home, self.address = directory, home, address
        directory.mkdir(mode=0o700)
        for name in ("host_key", "user_key"):
            make_key(directory / name)
        self.allow(directory / "user_key.pub")
        self.port = free_port()
        self.config = directory / "ssh_config"
        self.known_hosts = directory / "known_hosts"
        self.trust(directory / "host_key.pub")
        self._prefix = ("ip", "netns", "exec", namespace) if namespace else ()
        self.within: tuple[str, ...] = ()
        """A command that becomes the one behind it: what it sets up counts for the server and its sessions."""
        forced = (f'ForceCommand exec {login_shell} -c "$SSH_ORIGINAL_COMMAND"',) if login_shell else ()
        (directory / "sshd_config").write_text("\n".join((*self._settings(), *forced, *settings, "")))
        self.config.write_text("\n".join((*self._client_settings(), "")))
        self.pid = 0
        self.start()
        atexit.register(self.close)  # a test that fails may not come to it

    def allow(self, public_key: Path) -> None:
        """Let this key in, and no other."""
        shutil.copy(public_key, self.directory / "authorized_keys")

    def trust(self, public_key: Path) -> None:
        """What the client takes for the server's key."""
        self.known_hosts.write_text(f"place {' '.join(public_key.read_text().split()[:2])}\n")

    def start(self) -> None:
        """Listen, on the same port each time."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        program = shutil.which("sshd", path=_PATH) or "sshd"
        with (self.directory / "log").open("ab") as log:
            command = [*self._prefix, *self.within, program, "-D", "-e", "-f", str(self.directory / "sshd_config")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self._process.pid  # `ip netns exec` becomes the program that it runs
        deadline = time.monotonic() + _FIRST_WORD_S
        while not self._answers():
            said = (self.directory / "log").read_text(errors="replace")
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.01)

    def stop(self) -> None:
        """Nobody listens, and every session is cut. What runs in them is told nothing."""
        for pid in (self.pid, *self.sessions()):
            _send(pid, signal.SIGKILL)
        self._process.wait()

    def cut(self) -> None:
        """Every session, and no more."""
        for pid in self.sessions():
            _send(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Nothing answers, and nothing is closed."""
        for pid in (self.pid, *self.sessions()):
            _send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in (self.pid, *self.sessions()):
            _send(pid, signal.SIGCONT)

    def sessions(self) -> list[int]:
        """The server's processes for connections."""
        found, new = [], [self.pid]
        servers = [int(each.parent.name) for each in Path("/proc").glob("[0-9]*/comm") if _read(each) == "sshd"]
        while new:
            new = [pid for pid in servers if pid not in found and parent(pid) in new]
            found += new
        return found

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._process.returncode is None:
            self.stop()

    def _answers(self) -> bool:
        if self._prefix:
            found = subprocess.run([*self._prefix, "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
            return f":{self.port} " in found
        try:
            socket.create_connection((self.address, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _settings(self) -> tuple[str, ...]:
        """The server's. HOME is the sessions', whatever the password file says."""
        place = self.directory
        return (
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {place}/host_key",
            f"PidFile {place}/pid",
            f"AuthorizedKeysFile {place}/authorized_keys",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PrintMotd no",
            "KexAlgorithms curve25519-sha256",  # the default takes two thirds of a connection's processor time
            f"SetEnv HOME={self.home}",
        )

    def _client_settings(self) -> tuple[str, ...]:
        return (
            "Host place",
            f"  HostName {self.address}",
            "  HostKeyAlias place",
            f"  Port {self.port}",
            f"  IdentityFile {self.directory}/user_key",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self.known_hosts}",
            "  GlobalKnownHostsFile /dev/null",
        )


def make_key(path: Path) -> Path:
    """A key pair; the path of the public one."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub")


class Proxy:
    """A way to a server that can be cut at any byte, and can stand still while nothing is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self.port = free_port()
        self.upward = 0.0
        """Bytes a second towards the server; 0: as many as come."""
        self.cuts: list[int] = []
        """After how many bytes from the server the connections that are made next are cut."""
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def stand_still(self) -> None:
        """Not a byte passes; what comes is kept back."""
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def cut_all(self) -> None:
        """Every connection that there is."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def aclose(self) -> None:
        self._server.close()
        self.cut_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cuts.pop(0) if self.cuts else 1 << 60
        try:
            await self._goes_on.wait()
            up_reader, up_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(up_writer)
        try:
            async with asyncio.TaskGroup() as copies:
                copies.create_task(self._copy(reader, up_writer, 1 << 60, self.upward))
                copies.create_task(self._copy(up_reader, writer, left))
        except* (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()
            up_writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int, rate: float = 0
    ) -> None:
        """Raises EOFError at the end, so that the other direction ends too."""
        while left > 0 and (data := await reader.read(min(left, 8192 if rate else 65536))):
            await asyncio.sleep(len(data) / rate if rate else 0)
            await self._goes_on.wait()
            writer.write(data)
            await writer.drain()
            left -= len(data)
        raise EOFError


def forced(program: str) -> str:
    """A login shell that runs this program of a POSIX shell, whatever it is told; `"$2"` is what it was told."""
    return f"/bin/sh -c {shlex.quote(program)} shell"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
