"""Where the processes of one run live in a pod. The pod is the copy's: it outlives the run where the copy does.

What is started there, and when, must not live here.
"""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from pathlib import PurePath

from activities.ports.place import PlaceInfo
from activities.runtimes.kubernetes.pod import CopyPod
from activities.runtimes.kubernetes.pod_access import PodAccess
from activities.runtimes.kubernetes.pod_errors import PodGone, PodMissing
from activities.runtimes.place import PLACES
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.remote_program.pod_init import ENDING
from activities.runtimes.shim_handle import ShimHandle
from activities.shim.client import Clearance, MachineUnreachable
from activities.store import disk
from activities.store.run_directory import RunDirectory


class PodPlace:
    """See runtimes.place.Place. `machine`: the pod, as this worker knows it."""

    mirrored = True

    def __init__(self, directory: RunDirectory, machine: RemoteMachine, pod: CopyPod) -> None:
        self._directory, self._machine, self._pod = directory, machine, pod
        self._access = PodAccess(machine.access, pod, directory)

    async def ensure(self, attempt: int) -> None:
        """Raises PodGone, and PodMissing, where it has to be made anew first; MachineUnreachable while it is ending."""
        record = await self._pod.look()
        if record.pod is None:
            raise PodMissing(f"{self._pod.name}: there is no pod yet")
        if attempt > 1 and (record.deleting or await self._is_ending()):
            raise MachineUnreachable(f"{self._pod.name}: it is about to end, and not because of Steersman")
        await asyncio.to_thread(note_pod, self._directory, self._pod.copy)

    async def _is_ending(self) -> bool:
        """Whether the cluster has told the container to end: the API may not say so yet."""
        stream = await self._pod.exec("/bin/sh", "-c", "read name < /proc/1/comm && echo $name")
        try:
            return (await stream.stdout.readline()).strip() == ENDING.encode()
        finally:
            stream.kill()

    async def handle(self, attempt: int) -> ShimHandle:
        return ShimHandle(self._access, self._place / str(attempt))

    async def clear(self, attempt: int) -> Clearance:
        return await (await self.handle(attempt)).clear()

    async def remove(self) -> None:
        """Of the pod, too, where nothing else is in it. The run is in it until its shims are known to have gone."""
        await self._access.ask("remove", self._place)
        await self._pod.leave(run=self._directory.id)

    async def clock_ms(self) -> int:
        with contextlib.suppress(PodGone, PodMissing):
            return await self._machine.clock_ms()
        return 0

    async def info(self, programs: Sequence[str]) -> PlaceInfo | None:
        return await self._machine.info(programs)

    async def name(self) -> str | None:
        record = await self._pod.known()
        if record is None or record.pod is None:
            return self._pod.name
        if record.pooled:
            return f"{self._machine.name}: pod {record.pod} of pool {self._pod.pool}"
        return f"{self._pod.name}, pod {record.pod}"

    async def loss(self) -> str | None:
        record = await self._pod.known()
        if record is None or record.removed:
            return ""
        if record.lost is None:
            return None if record.pod else ""
        return f"the run's pod is gone ({record.lost})"

    async def cause(self) -> str:
        return await self._pod.cause()

    @property
    def _place(self) -> PurePath:
        return self._machine.known_directory / PLACES / self._directory.tag


def note_pod(run: RunDirectory, copy: str) -> None:
    """Record that the run's processes live in the pod of this copy. Raises OSError."""
    if pod_of(run) != copy:
        disk.write_new(run.path / "pod", f"{copy}\n")


def pod_of(run: RunDirectory) -> str | None:
    """What is recorded, which an agent of this machine can have written."""
    try:
        said = disk.read_text(run.path / "pod").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return said if re.fullmatch(r"[0-9a-f]{32}", said) else None
