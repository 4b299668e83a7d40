"""Where the processes of one run live: on this machine, or on one that runs programs for us.

A place is made before a process starts, cleared where its shim was lost, and removed after the run. What is started
there, and when, must not live here.
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Protocol

from activities.ports.place import PlaceInfo
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.shim_handle import ShimHandle
from activities.shim.client import Clearance
from activities.shim.client.access import ShimAccess
from activities.store.run_directory import RunDirectory

PLACES = "places"
"""In the machine's directory: one directory a run, named by the run's tag."""


class Place(Protocol):
    """Where the processes of one run live. Every method raises MachineUnreachable."""

    @property
    def mirrored(self) -> bool:
        """Its journals are copied into the run's directory; else that is where they are."""
        ...

    async def ensure(self, attempt: int) -> None:
        """Make room for the process of this attempt."""
        ...

    async def handle(self, attempt: int) -> ShimHandle:
        """The shim of this attempt, whether or not one has been there."""
        ...

    async def clear(self, attempt: int) -> Clearance:
        """The shim of this attempt is lost: kill what it left."""
        ...

    async def remove(self) -> None:
        """The run is over: nothing of it is left there afterwards. Raises AlreadyRunning where a shim still lives."""
        ...

    async def clock_ms(self) -> int:
        """What has to be added to times there to have them by this machine's clock."""
        ...

    async def info(self, programs: Sequence[str]) -> PlaceInfo | None:
        """What the machine has, and which of these programs; None for this one."""
        ...

    async def name(self) -> str | None:
        """What people know it by; None for this machine. Raises nothing."""
        ...

    async def loss(self) -> str | None:
        """What a person is told of a place that is gone, empty where it never was; None where it is there, as far as
        anybody knows.
        """
        ...

    async def cause(self) -> str:
        """What is known here of why a process ended that no shim saw end; empty for nothing. Raises nothing."""
        ...


class LocalPlace:
    """This machine, in the run's own directory."""

    mirrored = False

    def __init__(self, directory: RunDirectory, access: ShimAccess) -> None:
        self._directory, self._access = directory, access

    async def ensure(self, attempt: int) -> None:
        self._directory.attempt(attempt).parent.mkdir(mode=0o700, exist_ok=True)

    async def handle(self, attempt: int) -> ShimHandle:
        return ShimHandle(self._access, self._directory.attempt(attempt))

    async def clear(self, attempt: int) -> Clearance:
        return await (await self.handle(attempt)).clear()

    async def remove(self) -> None:
        """The directory stays until it is pruned."""

    async def clock_ms(self) -> int:
        return 0

    async def info(self, programs: Sequence[str]) -> PlaceInfo | None:
        return None

    async def name(self) -> str | None:
        return None

    async def loss(self) -> str | None:
        return None

    async def cause(self) -> str:
        return ""


class MachinePlace:
    """A machine that runs programs, with a directory for the run."""

    mirrored = True

    def __init__(self, directory: RunDirectory, machine: RemoteMachine) -> None:
        self._name, self._machine, self._access = directory.tag, machine, machine.access

    async def ensure(self, attempt: int) -> None:
        """Its directory is the shim's to make."""

    async def handle(self, attempt: int) -> ShimHandle:
        return ShimHandle(self._access, await self._directory() / str(attempt))

    async def clear(self, attempt: int) -> Clearance:
        return await (await self.handle(attempt)).clear()

    async def remove(self) -> None:
        await self._access.ask("remove", await self._directory())

    async def clock_ms(self) -> int:
        return await self._machine.clock_ms()

    async def info(self, programs: Sequence[str]) -> PlaceInfo | None:
        return await self._machine.info(programs)

    async def name(self) -> str | None:
        return self._machine.name

    async def loss(self) -> str | None:
        return None

    async def cause(self) -> str:
        return ""

    async def _directory(self) -> PurePath:
        return await self._machine.directory() / PLACES / self._name
