"""A pod on its way: its Job is made or adopted, and the pod waited for until it runs, or hardly ever will.

What is done with one that runs must not live here.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from activities.runtimes.kubernetes import manifest
from activities.runtimes.kubernetes.api import ApiRefused
from activities.runtimes.kubernetes.objects import CopyObjects
from activities.runtimes.kubernetes.pod_errors import PodGone
from activities.runtimes.kubernetes.pod_record import PodRecords
from activities.runtimes.kubernetes.pod_state import PodState, restarts_of, state_of_job, state_of_pod
from steersman.contracts.errors import PlaceError

HOPELESS_S: Final = 8.0
"""So long a reason that a person has to mend may stand before the pod counts as failed: some pass by themselves."""
CREATED_S: Final = 60.0
"""The cluster has this long to make a pod for a Job that nobody holds."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0
_RETRY_S: Final = 30.0
"""So long the API server may answer that it cannot do it now."""

Tell = Callable[[str], None]
"""Hears, for people, what the pod waits for."""
_SILENT_S: Final = 3.0
"""What lasts no longer is not told."""


class PodStart:
    """`run` it. `records`: where what is known of the pod is written down."""

    def __init__(self, objects: CopyObjects, records: PodRecords) -> None:
        self._objects, self._records = objects, records

    async def run(self, run: str, tell: Tell) -> None:
        """Until the pod runs, which is written down then. Raises PlaceError, MachineUnreachable."""
        wanted = manifest.job(self._objects.runtime, self._objects.copy, self._objects.owner, run)
        began, pause = time.monotonic(), _FIRST_PAUSE_S
        told, since = PodState("creating"), began
        silent = True
        hopeless: float | None = None
        while True:
            try:
                pod, state, patience_s = await self._on_its_way(wanted)
            except ApiRefused as error:
                if not error.is_transient or time.monotonic() - began > _RETRY_S:
                    raise self.failed(error.reason or f"HTTP {error.status}", str(error)) from error
                await asyncio.sleep(_LAST_PAUSE_S)
                continue
            now = time.monotonic()
            if (state.stage, state.reason) != (told.stage, told.reason):
                told, since, silent = state, now, True
            if silent and now - since > _SILENT_S:
                silent = False
                tell(f"waiting for a pod: {state.sentence}")
            hopeless = (hopeless or now) if state.needs_a_person else None
            if pod and state.stage == "running":
                metadata = pod["metadata"]
                fields = {"pod": metadata["name"], "pod_uid": metadata["uid"], "restarts": restarts_of(pod)}
                await self._records.update(self._objects.copy, **fields)
                return
            if state.stage == "suspended":
                began = now  # a queue may hold it as long as it likes
            elif state.stage == "ended" or (hopeless and now - hopeless > HOPELESS_S):
                raise self.failed(state.reason, state.message)
            elif now - began > patience_s:
                why = state.message if state.reason else f"it has not come further than {state.stage}"
                raise self.failed(state.reason or "Timeout", f"{why} (for {now - began:.0f} s)")
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, _LAST_PAUSE_S)

    async def _on_its_way(self, wanted: dict[str, Any]) -> tuple[dict[str, Any] | None, PodState, float]:
        """The pod, once it is there, its state, and for how long it may have come no further."""
        job = await self._job(wanted)
        if job is None:
            state = PodState("creating", "Terminating", "the Job of before is not gone yet")
            return None, state, self._objects.runtime.start_s
        pod = await self._pod_of(job)
        if pod:
            return pod, state_of_pod(pod), self._objects.runtime.start_s
        return None, state_of_job(job, await self._objects.events(job)), CREATED_S

    async def _job(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """The Job, created where there is none; None while one of before is there.

        Raises ApiRefused, MachineUnreachable, PlaceError, and PodGone where it was removed meanwhile.
        """
        await self._objects.api.connect()
        record = await asyncio.to_thread(self._records.read, self._objects.copy)
        if record and (record.removed or not (record.has_copy or record.runs)):
            raise PodGone(f"{self._objects.name}: it was removed", record)
        job = await self._got_or_created(wanted)
        metadata = job["metadata"]
        if metadata.get("deletionTimestamp"):
            return None  # of a beginning before this one
        if record and metadata["uid"] == record.old_job:
            # Its pods go with it, as soon as they can: one on a lost node must not keep the run from going on.
            await self._objects.delete(self._objects.path, metadata["uid"], propagationPolicy="Background")
            return None
        known = record.job_uid if record else None
        theirs, ours = metadata.get("annotations") or {}, wanted["metadata"]["annotations"]
        labels = metadata.get("labels") or {}
        is_same = known == metadata["uid"] or theirs.get(manifest.SPEC) == ours[manifest.SPEC]
        if labels.get(manifest.OWNER) != self._objects.owner or not is_same:
            raise self.failed("AlreadyExists", "a Job of this name is there, and it is not this run's")
        if known != metadata["uid"]:
            await self._records.update(self._objects.copy, job_uid=metadata["uid"])
        return job

    async def _got_or_created(self, wanted: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                return await self._objects.api.get(self._objects.path)
            except ApiRefused as error:
                if error.status != 404:
                    raise
            try:
                return await self._objects.api.create(self._objects.jobs_path, wanted)
            except ApiRefused as refused:
                if refused.status == 409:
                    continue  # another worker of this host was quicker
                if not refused.is_transient:
                    await self._records.update(self._objects.copy, refused=True)
                raise

    async def _pod_of(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The newest pod of the Job that somebody may use."""
        found = await self._objects.pods()
        uid = job["metadata"]["uid"]
        own = [each for each in found if uid in [owner["uid"] for owner in each["metadata"].get("ownerReferences", [])]]
        usable = [each for each in own if state_of_pod(each).stage not in ("ending", "ended")]
        return next(iter(usable or own), None)

    def failed(self, reason: str, message: str) -> PlaceError:
        """The error, in the cluster's words."""
        job = manifest.job_name(self._objects.copy)
        text = ": ".join(filter(None, (reason, message)))
        facts = {"reason": reason, "detail": message, "job": job, "namespace": self._objects.namespace}
        return PlaceError(f"runtime: the pod does not come to run: {text}", **facts)
