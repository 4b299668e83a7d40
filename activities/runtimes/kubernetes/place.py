"""Where the processes of one run live in a pod. The pod is the copy's: it outlives the run where the copy does.

What is started there, and when, must not live here.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from activities.ports.place import PlaceInfo
from activities.runtimes.kubernetes.pod import CopyPod, PodGone, PodMissing
from activities.runtimes.kubernetes.pod_access import PodAccess
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.shim_handle import ShimHandle
from activities.shim.client import Clearance, MachineUnreachable
from activities.store.run_directory import RunDirectory

_EMPTY: Final = "import os,sys;sys.exit(any(os.path.isdir(p) and os.listdir(p) for p in sys.argv[1:]))"
_ANSWER_S: Final = 15.0


class PodPlace:
    """See runtimes.place.Place. `machine`: the pod, as this worker knows it."""

    mirrored = True

    def __init__(self, directory: RunDirectory, machine: RemoteMachine, pod: CopyPod) -> None:
        self._directory, self._machine, self._pod = directory, machine, pod
        self._access = PodAccess(machine.access, pod, directory)

    async def ensure(self, attempt: int) -> None:
        """Raises PodGone, and PodMissing, where it has to be made anew first."""
        record = await self._pod.look()
        if record.pod is None:
            raise PodMissing(f"{self._pod.name}: there is no pod yet")

    async def handle(self, attempt: int) -> ShimHandle:
        return ShimHandle(self._access, await self._place() / str(attempt))

    async def clear(self, attempt: int) -> Clearance:
        return await (await self.handle(attempt)).clear()

    async def remove(self) -> None:
        """Of the pod, too, where nothing else is in it."""
        await self._access.ask("remove", await self._place())
        await release_pod(self._pod, self._machine)

    async def clock_ms(self) -> int:
        with contextlib.suppress(PodGone, PodMissing):
            return await self._machine.clock_ms()
        return 0

    async def info(self, programs: Sequence[str]) -> PlaceInfo | None:
        return await self._machine.info(programs)

    async def loss(self) -> str | None:
        record = await self._pod.known()
        if record is None or record.removed:
            return ""
        return record.lost if record.lost or record.pod else ""

    async def cause(self) -> str:
        return await self._pod.cause()

    async def _place(self) -> PurePath:
        try:
            directory = await self._machine.directory()
        except (PodGone, PodMissing):
            directory = self._machine.known_directory
        return directory / "places" / self._directory.tag


async def release_pod(pod: CopyPod, machine: RemoteMachine) -> None:
    """Delete the pod, unless a run or a copy is in it. Raises MachineUnreachable where that is not done."""
    try:
        directory = await machine.directory()
        used = (str(directory / name) for name in ("places", "copies"))
        stream = await pod.exec(pod.python, "-I", "-S", "-c", _EMPTY, *used, stdin=b"")
        async with asyncio.timeout(_ANSWER_S):
            if await stream.wait() != 0:
                return
    except (PodGone, PodMissing):
        pass  # and nothing is in it
    except TimeoutError:
        raise MachineUnreachable(f"{pod.name}: it does not say what is in it") from None
    if not await pod.remove():
        raise MachineUnreachable(f"{pod.name}: it was told to go, and is not gone yet")
