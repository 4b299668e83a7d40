"""A connection that the programs of one machine share: a control master of OpenSSH's client.

It runs `cat` there: its first word says that others can come, and the end of its stdin, as when this process is killed,
ends it. Whether the network carries is the client's to say (ServerAliveInterval): it tells a slow one from a dead one.
Whether the master itself lives is asked here, of its socket: no client that waits for a frozen one ever ends. When a
connection is made, and which one a program takes, must not live here.
"""

import asyncio
import contextlib
import time
from pathlib import Path

from activities.runtimes.ssh_stream import SshStream
from steersman import timeouts

PROGRAM = ("cat",)
SESSIONS = 9
"""Programs on a connection beside `cat`: sshd's MaxSessions is 10. Where that is less, clients connect on their own."""
IDLE_S = 60.0
"""So long a connection that nobody uses is kept."""
_CHECK_S = 5.0
"""Seconds between two looks whether the master lives, and what its answer may take."""
_ECHO_S = 60.0
"""What `cat` may take for an answer: a master that is the user's need not ask by itself whether the network carries."""
_HELLO = b"\0\0\0\1"
"""MUX_MSG_HELLO, which a master sends first (OpenSSH's PROTOCOL.mux), behind the length of four bytes."""


class SharedConnection:
    """`stream`: of `cat`, through the master at `path`. `owned`: the master is that process, else it is the user's."""

    def __init__(self, stream: SshStream, path: Path, *, owned: bool) -> None:
        self._stream, self._path, self._owned = stream, path, owned
        self._users, self._used = 0, time.monotonic()
        self._watch = asyncio.create_task(self._check())

    @property
    def flags(self) -> tuple[str, ...]:
        """With these the client takes this connection, or one of its own where it cannot."""
        return through(self._path)

    @property
    def has_room(self) -> bool:
        return self._users < SESSIONS and not self._watch.done()

    @property
    def is_used(self) -> bool:
        return self._users > 0

    @property
    def is_lost(self) -> bool:
        return self._watch.done()

    def enter(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users, self._used = self._users - 1, time.monotonic()

    async def aclose(self) -> None:
        """End it, and every program's connection with it."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await asyncio.wait({self._stream.watched}, timeout=1)

    async def _check(self) -> None:
        """Until it is lost or idle for long; it is ended then."""
        echo: asyncio.Task[bytes] | None = None
        asked = time.monotonic()
        try:
            while self._users or time.monotonic() - self._used < IDLE_S:
                if echo is None or (echo.done() and echo.result()):
                    self._stream.stdin.write(b"\n")
                    echo, asked = asyncio.create_task(self._stream.stdout.readline()), time.monotonic()
                elif echo.done() or time.monotonic() - asked > _ECHO_S:
                    return
                if not await is_master(self._path):
                    return
                await asyncio.wait({self._stream.watched}, timeout=_CHECK_S)
        except (OSError, ValueError):
            pass  # it is lost: who uses it sees that, as it is ended
        finally:
            self._stream.kill()
            if echo:
                echo.cancel()
            if self._owned:
                with contextlib.suppress(OSError):  # else the next client would say that it is refused there
                    self._path.unlink()


def through(path: Path) -> tuple[str, ...]:
    """The client's flags that take the connection of a master, and never make one."""
    return ("-o", "ControlMaster=no", "-S", str(path).replace("%", "%%"))


async def is_master(path: Path) -> bool:
    """Whether a control master answers there."""
    try:
        async with timeouts.timeout(_CHECK_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return (await reader.readexactly(8))[4:] == _HELLO
            finally:
                writer.close()
    except (OSError, TimeoutError, EOFError):
        return False
