"""A machine that is reached by OpenSSH's client.

The client is run as it is, since it alone holds to everything that a user has set up: the ssh config with its aliases
and ProxyJump, agents, certificates, hardware keys, known_hosts. Nothing can be asked of a person: there is no terminal,
no SSH_ASKPASS, and BatchMode; a host key that is not known is refused. Programs share connections (ControlMaster), so
that each costs one round trip and no handshake. A machine with KillUserProcesses in logind.conf ends shims when the
last connection ends, unless its user lingers (loginctl enable-linger).

What must not live here: which programs are run, and what follows from what they say.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path

from activities.ports.machine import Stream
from activities.runtimes.machine import LIMIT
from activities.runtimes.ssh_address import SshAddress
from activities.runtimes.ssh_connection import PROGRAM, SharedConnection, is_master, through
from activities.runtimes.ssh_failure import last_words
from activities.runtimes.ssh_stream import SHELL, Program, SshStream
from activities.shim.client import MachineUnreachable, MachineUnusable
from activities.store.scratch import Scratch, remove_left
from steersman import timeouts

BEGIN_S = 20.0
"""Seconds within which a program must have begun there: ConnectTimeout ends before them what does not answer at all."""
_CONFIG_S = 10.0
_PAUSE_S, _LAST_PAUSE_S = 0.25, 5.0
"""Seconds from a connection that could not be made to the next try, whoever asks: a host may punish more."""
SOCKETS = "steersman-ssh-"
"""How directories begin in which a worker's connections have their sockets."""
_LONGEST = 56
"""Characters of where they are: OpenSSH adds 18 to the name of a socket, and an address has room for 104 to 108."""
_SHORT = "/tmp"  # noqa: S108 - the directory is made ours alone


class SshMachine:
    """See machine.Machine. `env`: the client's environment, by default this process's."""

    def __init__(self, address: SshAddress, env: Mapping[str, str] | None = None) -> None:
        self._address = address
        hidden = ("SSH_ASKPASS", "DISPLAY", "WAYLAND_DISPLAY")
        given = os.environ if env is None else env
        self._env = {name: value for name, value in given.items() if name not in hidden}
        self._env["SSH_ASKPASS_REQUIRE"] = "never"
        self._connections: list[SharedConnection] = []
        self._opening: asyncio.Task[None] | None = None
        self._sockets: Scratch | None = None
        self._made = 0
        self._failed: MachineUnreachable | None = None
        self._pause, self._not_before = _PAUSE_S, 0.0
        self._unanswered: set[Path] = set()
        self._streams: set[SshStream] = set()
        self._closed = False

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        """See Machine. Raises MachineUnusable where a person has to mend a key, a name, or the login shell there.

        What was on its way when a connection was lost is not run again: it may have begun.
        """
        connection = await self._connection()
        try:
            stream = await self._begun(connection.flags, argv, stdin, shared=True)
        except BaseException as error:
            connection.leave()
            if connection.is_lost and type(error) is MachineUnreachable:
                raise MachineUnreachable(f"{self._address}: the connection that programs share was lost") from error
            raise
        stream.watched.add_done_callback(lambda _: connection.leave())
        return stream

    async def aclose(self) -> None:
        self._closed = True
        if self._opening:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for stream in self._streams:
            stream.kill()
        await asyncio.gather(*(connection.aclose() for connection in self._connections))
        if self._streams:
            await asyncio.wait({stream.watched for stream in self._streams}, timeout=1)
        if self._sockets is not None:
            self._sockets.remove()
            self._sockets = None

    async def _connection(self) -> SharedConnection:
        """One with room, entered. However many ask for one at once, one is made at a time."""
        while True:
            if self._closed:
                raise MachineUnreachable(f"{self._address}: this worker has let go of the machine")
            for connection in self._connections:
                if connection.has_room:
                    connection.enter()
                    return connection
            if self._opening is None or self._opening.done():
                if self._failed and time.monotonic() < self._not_before:
                    raise type(self._failed)(str(self._failed))
                self._opening = asyncio.create_task(self._open())
                self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            opening = self._opening  # everybody's: whoever waits for it cancels nothing, nor is cancelled with it
            await asyncio.wait({opening})
            if not opening.cancelled():
                opening.result()

    async def _open(self) -> None:
        self._connections = [each for each in self._connections if each.has_room or each.is_used]
        try:
            connection = await self._borrowed() or await self._own()
        except MachineUnreachable as error:
            self._failed, self._not_before = error, time.monotonic() + self._pause
            self._pause = min(self._pause * 2, _LAST_PAUSE_S)
            raise
        self._failed, self._pause = None, _PAUSE_S
        self._connections.append(connection)

    async def _own(self) -> SharedConnection:
        if self._sockets is None:
            base = tempfile.gettempdir()
            base = base if len(base) <= _LONGEST else _SHORT
            await asyncio.to_thread(remove_left, Path(base), SOCKETS)
            self._sockets = Scratch(Path(base), SOCKETS)
        self._made += 1
        path = self._sockets.path / str(self._made)
        flags = ("-o", "ControlMaster=yes", "-S", str(path).replace("%", "%%"))
        return SharedConnection(await self._begun(flags, PROGRAM), path, owned=True)

    async def _borrowed(self) -> SharedConnection | None:
        """The user's own master, if one answers: it may have been let in by what nobody could type here."""
        path = await self._configured()
        if path is None or path in self._unanswered or not await is_master(path):
            return None
        try:
            return SharedConnection(await self._begun(through(path), PROGRAM), path, owned=False)
        except MachineUnreachable:
            self._unanswered.add(path)
            return None

    async def _configured(self) -> Path | None:
        """The ControlPath of the config, for this address. Raises MachineUnusable for a config that is none."""
        client = await self._run("-G", stdin=DEVNULL)
        try:
            async with timeouts.timeout(_CONFIG_S):
                said, errors = await client.communicate()
        except TimeoutError:
            raise MachineUnreachable(f"{self._address}: ssh -G takes longer than {_CONFIG_S:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                client.kill()
        if client.returncode:
            raise MachineUnusable(f"{self._address}: {last_words(errors.decode('utf-8', 'replace'))}")
        settings = (line.partition(" ") for line in os.fsdecode(said).splitlines())
        path = next((value for name, _, value in settings if name == "controlpath"), "none")
        return Path(path) if path != "none" else None

    async def _begun(
        self,
        flags: tuple[str, ...],
        argv: tuple[str, ...],
        stdin: bytes | None = None,
        *,
        shared: bool = False,
    ) -> SshStream:
        """A program that has begun there. Raises MachineUnreachable."""
        log_level = "ERROR" if shared else "INFO"  # why a connection fails is INFO to it, and much else
        program = Program(argv)
        process = await self._run(*flags, log_level=log_level, words=(SHELL,))
        stream = SshStream(process, str(self._address), program)
        self._streams.add(stream)
        stream.watched.add_done_callback(lambda _: self._streams.discard(stream))
        if stdin is not None:
            stream.stdin.write(stdin)
            stream.stdin.close()
        try:
            if self._closed:  # while the client was started
                raise MachineUnreachable(f"{self._address}: this worker has let go of the machine")
            async with timeouts.timeout(BEGIN_S):
                await stream.begun()
        except TimeoutError:
            stream.kill()
            raise MachineUnreachable(f"{self._address}: no program began there within {BEGIN_S:.0f} s") from None
        except BaseException:
            stream.kill()
            raise
        return stream

    async def _run(
        self, *flags: str, stdin: int = PIPE, log_level: str = "ERROR", words: tuple[str, ...] = ()
    ) -> asyncio.subprocess.Process:
        command = self._address.command(*flags, log_level=log_level)
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                *words,
                stdin=stdin,
                stdout=PIPE,
                stderr=PIPE,
                limit=LIMIT,
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            text = f"OpenSSH's client cannot be run here (ssh: {os.strerror(error.errno or 0)})"
            raise MachineUnusable(f"{self._address}: {text}; install openssh-client") from error
