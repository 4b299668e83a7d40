"""Where the processes of one run live: on this machine, or on one that runs programs for us.

A place is made before a process starts, cleared where its shim was lost, and removed after the run. What is started
there, and when, must not live here.
"""

from pathlib import PurePath
from typing import Protocol

from activities.runtimes.shim_handle import ShimHandle
from activities.shim.client import Clearance, MachineUnreachable
from activities.shim.client.access import ShimAccess
from activities.store.run_directory import RunDirectory

_PLACES = PurePath(".local", "state", "steersman", "places")
"""In the home of the user there: one directory a run, named by the run's tag."""


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


class MachinePlace:
    """A machine that runs programs, with a directory for the run in its user's home."""

    mirrored = True

    def __init__(self, directory: RunDirectory, access: ShimAccess) -> None:
        self._name, self._access = directory.tag, access
        self._root: PurePath | None = None

    async def ensure(self, attempt: int) -> None:
        """Its directory is the shim's to make."""

    async def handle(self, attempt: int) -> ShimHandle:
        return ShimHandle(self._access, await self._directory() / str(attempt))

    async def clear(self, attempt: int) -> Clearance:
        return await (await self.handle(attempt)).clear()

    async def remove(self) -> None:
        await self._access.ask("remove", await self._directory())

    async def _directory(self) -> PurePath:
        if self._root is None:
            home = (await self._access.ask("home")).get("home")
            if not isinstance(home, str) or not home.startswith("/") or "\0" in home:
                raise MachineUnreachable(f"the user's home there is no directory: {home!r:.100}")
            self._root = PurePath(home, _PLACES, self._name)
        return self._root
