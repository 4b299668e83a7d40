"""The shim of one attempt, wherever it is. What is done about it must not live here."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from activities.shim import client as shim
from activities.shim.client.access import ShimAccess
from activities.shim.client.dialing import DIAL_TIMEOUT

_TRIES = 5
_PAUSE_S = 0.05
_MAX_PIDS = 100


@dataclass(frozen=True)
class ShimState:
    """What a directory tells of its shim. `used`: one began its work there. `ended`: it saw its agent's end."""

    alive: bool
    used: bool
    ended: bool
    stopped: bool
    """A tombstone is there: none will start."""
    stray: bool
    """A shim works for this directory though nothing in it says so."""

    @property
    def lost(self) -> bool:
        """The shim did not live to see its agent's end."""
        return self.used and not self.alive and not self.ended


@dataclass(frozen=True)
class ShimHandle:
    """Where a shim is, and how it is reached. Every method raises MachineUnreachable."""

    access: ShimAccess
    directory: PurePath

    async def start(self, spec: shim.Spec) -> None:
        """Raises StartRefused."""
        await self.access.start(self.directory, spec)

    async def connect(self, epoch: int | None, timeout: timedelta = DIAL_TIMEOUT) -> shim.Connection:
        """See `shim.connect`."""
        return await shim.connect(self.directory, epoch=epoch, timeout=timeout, access=self.access)

    def records(self, after: int, offset: int, epoch: int | None) -> shim.RecordStream:
        """See `shim.records`."""
        return shim.records(self.directory, after=after, offset=offset, epoch=epoch, access=self.access)

    async def state(self) -> ShimState:
        answer = await self.access.ask("alive", self.directory)
        fields = ("alive", "used", "ended", "stopped", "stray")
        return ShimState(**{name: bool(answer.get(name)) for name in fields})

    async def is_alive(self) -> bool:
        return (await self.state()).alive

    async def entomb(self) -> bool:
        """Whether no shim can start there from now on; False where one lives, or where that cannot be had."""
        return (await self._entombed()).get("entombed") is True

    async def seal(self) -> bool:
        """The same, and none has begun its work there."""
        answer = await self._entombed()
        return answer.get("entombed") is True and answer.get("used") is False

    async def _entombed(self) -> dict[str, Any]:
        try:
            return await self.access.ask("entomb", self.directory)
        except shim.StartFailed:
            return {}

    async def thaw(self) -> bool:
        """Wake the shim: its agent may have frozen it. Whether it waits for its disk."""
        return (await self.access.ask("thaw", self.directory)).get("waits_for_disk") is True

    async def clear(self) -> shim.Clearance:
        """Kill what the lost shim left. Not proven where another process holds its lock."""
        for _ in range(_TRIES):
            try:
                return _clearance(await self.access.ask("clear", self.directory))
            except shim.AlreadyRunning:
                await asyncio.sleep(_PAUSE_S)  # another stop is at it
        return shim.Clearance(0)

    async def kill(self) -> shim.Clearance:
        """Kill the agent of a shim that lives and does not answer, and the shim."""
        return _clearance(await self.access.ask("kill", self.directory))


def _clearance(answer: dict[str, Any]) -> shim.Clearance:
    """What a machine says that it has killed. An agent there may have forged it: it is held to its shape."""
    processes = answer.get("processes")
    if not isinstance(processes, int):
        raise _malformed()
    left, suspects = _pids(answer.get("left")), _pids(answer.get("suspects"))
    return shim.Clearance(processes, left, suspects, proven=answer.get("proven") is True)


def _pids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise _malformed()
    return tuple(value[:_MAX_PIDS])


def _malformed() -> shim.MachineUnreachable:
    return shim.MachineUnreachable("no answer that the shim's program gives")
