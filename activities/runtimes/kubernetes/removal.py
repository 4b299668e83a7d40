"""The end of a pod: its Job is deleted, and the cluster asked until nothing is left. When that is to be must not live
here.
"""

import asyncio
import time
from typing import Any, Final

from activities.runtimes.kubernetes.objects import CopyObjects
from activities.runtimes.kubernetes.pod_record import PodRecord
from activities.runtimes.kubernetes.pod_state import has_ended

_PAUSE_S: Final = 0.2
_MARGIN_S: Final = 3.0
"""Seconds beyond its grace after which a pod is told to end at once."""
_KILL_S: Final = 15.0
"""Seconds beyond its grace after which a pod that is still there is left to the next try."""


class PodRemoval:
    """`run` it."""

    def __init__(self, objects: CopyObjects) -> None:
        self._objects = objects

    async def run(self, record: PodRecord) -> bool:
        """True once the cluster says twice that nothing is left; False where that takes too long. Raises ApiRefused,
        MachineUnreachable.
        """
        await self._objects.api.connect()
        began, gone = time.monotonic(), 0
        asked: set[str] = set()
        while gone < 2:
            job, pods = await self._objects.job(record.job_uid), await self._objects.pods()
            gone = 0 if job or pods else gone + 1
            if job and job["metadata"]["uid"] not in asked:  # another may be made by who has not heard of this yet
                asked.add(job["metadata"]["uid"])
                await self._objects.delete(self._objects.path, job["metadata"]["uid"], propagationPolicy="Foreground")
            waited_s = time.monotonic() - began
            for pod in pods:
                if (grace_s := self._grace_of(pod, record, waited_s)) is not None:
                    await self._objects.delete(
                        self._objects.pod_path(pod), pod["metadata"]["uid"], gracePeriodSeconds=grace_s
                    )
            if waited_s > self._objects.runtime.grace_s + _KILL_S:
                return False
            await asyncio.sleep(_PAUSE_S)
        return True

    def _grace_of(self, pod: dict[str, Any], record: PodRecord, waited_s: float) -> int | None:
        """With which grace the pod itself is to be deleted now; None where its Job's deletion sees to it.

        Without any it is taken out of the cluster's books at once, whatever still is: only where its node says that all
        in it has ended (a kubelet takes ten seconds more to tidy up), or where nothing of a run has ever been in it.
        """
        is_deleted = pod["metadata"].get("deletionTimestamp") is not None
        is_used = pod["metadata"]["uid"] in record.used
        if has_ended(pod) or not is_used:
            return 0
        if not is_deleted:  # its Job is gone, or has not told it yet
            return self._objects.runtime.grace_s
        return 1 if waited_s > self._objects.runtime.grace_s + _MARGIN_S else None
