"""A connection that the programs of one machine share: a control master of OpenSSH's client.

It runs `cat` there, for three things at once: its first word says that others can come, its echo that the connection
lives (OpenSSH notices a frozen master not at all), and the end of its stdin, as when this process is killed, ends it.
When a connection is made, and which one a program takes, must not live here.
"""

import asyncio
import contextlib
import socket
import time
from pathlib import Path

from activities.runtimes.ssh_stream import SshStream

PROGRAM = ("cat",)
SESSIONS = 9
"""Programs on a connection beside `cat`: sshd's MaxSessions is 10. Where that is less, clients connect on their own."""
IDLE_S = 60.0
"""So long a connection that nobody uses is kept."""
_CHECK_S = 5.0
"""Seconds between two looks whether it lives, and what one may take."""


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
        try:
            while self._users or time.monotonic() - self._used < IDLE_S:
                async with asyncio.timeout(_CHECK_S):
                    self._stream.stdin.write(b"\n")
                    if not await self._stream.stdout.readline():
                        return
                await asyncio.wait({self._stream.watched}, timeout=_CHECK_S)
        except (OSError, TimeoutError, ValueError):
            pass  # it is lost: who uses it sees that, as it is ended
        finally:
            self._stream.kill()
            if self._owned:
                with contextlib.suppress(OSError):  # else the next client would say that it is refused there
                    self._path.unlink()


def through(path: Path) -> tuple[str, ...]:
    """The client's flags that take the connection of a master, and never make one."""
    return ("-o", "ControlMaster=no", "-S", str(path).replace("%", "%%"))


def is_master(path: Path) -> bool:
    """Whether a control master listens there."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1)
            sock.connect(str(path))
    except OSError:
        return False
    return True
