"""A pod on its way: one of a pool is taken, or its Job is made or adopted and the pod waited for until it runs, or
hardly ever will.

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
from activities.runtimes.kubernetes.pod_record import PodRecord, PodRecords
from activities.runtimes.kubernetes.pod_state import PodState, restarts_of, state_of_job, state_of_pod, warned_of
from activities.runtimes.kubernetes.pool_claim import PoolClaim
from steersman.contracts.errors import PlaceError

HOPELESS_S: Final = 8.0
"""So long a reason that a person has to mend may stand before the pod counts as failed: some pass by themselves."""
CREATED_S: Final = 60.0
"""The cluster has this long to make a pod for a Job that nobody holds."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0
_RETRY_S: Final = 120.0
"""So long, without a break, the API server may answer that it cannot do it now: one that is brought up to date does."""

Tell = Callable[[str], None]
"""Hears, for people, what the pod waits for."""
_EVENTS_S: Final = 2.0
"""The events of a pod that does not say why it is no further are looked at again after so many seconds."""
_SILENT_S: Final = 3.0
"""What lasts no longer is not told."""


class PodStart:
    """`run` it. `records`: where what is known of the pod is written down."""

    def __init__(self, objects: CopyObjects, records: PodRecords) -> None:
        self._objects, self._records = objects, records

    async def run(self, run: str, tell: Tell) -> None:
        """Until the pod runs, which is written down then. Raises PlaceError, PodGone, MachineUnreachable."""
        if self._objects.runtime.pool:
            record = await self._wanted_record()
            if not (record and record.pooled):
                if (why_not := await self._take(run, record)) is None:
                    return
                tell(why_not)
        await self._make(run, tell)

    async def _make(self, run: str, tell: Tell) -> None:
        """By a Job, unless a pod was taken before, whose container begins again."""
        wanted = manifest.job(self._objects.runtime, self._objects.copy, self._objects.owner, run)
        began, pause = time.monotonic(), _FIRST_PAUSE_S
        told, since = PodState("creating"), began
        silent = True
        hopeless: float | None = None
        refused: float | None = None
        warnings = _Warnings(self._objects)
        while True:
            try:
                pod, state, patience_s = await self._on_its_way(wanted)
                state = await warnings.added(state, pod)
            except ApiRefused as error:
                refused = refused or time.monotonic()
                if not error.is_transient or time.monotonic() - refused > _RETRY_S:
                    raise self.failed(error.reason or f"HTTP {error.status}", str(error)) from error
                await asyncio.sleep(_LAST_PAUSE_S)
                continue
            now, refused = time.monotonic(), None
            if (state.stage, state.reason) != (told.stage, told.reason):
                told, since, silent = state, now, True
            if silent and now - since > _SILENT_S:
                silent = False
                tell(f"waiting for a pod: {state.sentence}")
            hopeless = (hopeless or now) if state.needs_a_person else None
            if pod and state.stage == "running":
                await self._note(pod)
                await self._wanted_record()
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

    async def _take(self, run: str, record: PodRecord | None) -> str | None:
        """Take a pod of the pool, which is written down then; else why there is none. Raises PodGone,
        MachineUnreachable.
        """
        pool = self._objects.runtime.pool
        await self._objects.api.connect()
        try:
            if await self._objects.job(record.job_uid if record else None):
                return f"a Job was made before, as no pod of pool {pool} could be had"
            taken, why = await PoolClaim(self._objects).take(run)
        except ApiRefused as error:
            taken, why = None, str(error)
        if taken is None:
            return f"no pod of pool {pool} can be had ({why}): a Job is made"
        if not await self._note(taken, pooled=True):
            # Another worker was quicker, or it is wanted no more. Nothing of a run has ever been in it.
            metadata = taken["metadata"]
            await self._objects.delete(self._objects.pod_path(taken), metadata["uid"], gracePeriodSeconds=0)
            await self._wanted_record()
        return None

    async def _note(self, pod: dict[str, Any], *, pooled: bool = False) -> bool:
        """Write down that this pod is the copy's, unless another one is, or none is wanted; whether it is."""
        metadata: dict[str, str] = pod["metadata"]
        fields = {"pod": metadata["name"], "pod_uid": metadata["uid"], "restarts": restarts_of(pod), "pooled": pooled}

        def noted(record: PodRecord | None) -> PodRecord:
            assert record
            other = record.pod_uid not in (None, metadata["uid"]) and (pooled or record.pooled)
            return record if other or _is_removed(record) else record.model_copy(update=fields)

        after = await self._records.change(self._objects.copy, noted)
        return after.pod_uid == metadata["uid"]

    async def _wanted_record(self) -> PodRecord | None:
        """Raises PodGone where it was removed meanwhile."""
        record = await asyncio.to_thread(self._records.read, self._objects.copy)
        if record and _is_removed(record):
            raise PodGone(f"{self._objects.name}: it was removed", record)
        return record

    async def _on_its_way(self, wanted: dict[str, Any]) -> tuple[dict[str, Any] | None, PodState, float]:
        """The pod, once it is there, its state, and for how long it may have come no further."""
        await self._objects.api.connect()
        record = await self._wanted_record()
        if record and record.pooled:
            taken = await self._taken(record)
            return taken, state_of_pod(taken), self._objects.runtime.start_s
        job = await self._job(wanted, record)
        if job is None:
            state = PodState("creating", "Terminating", "the Job of before is not gone yet")
            return None, state, self._objects.runtime.start_s
        pod = await self._pod_of(job)
        if pod:
            return pod, state_of_pod(pod), self._objects.runtime.start_s
        return None, state_of_job(job, await self._objects.events(job)), CREATED_S

    async def _taken(self, record: PodRecord) -> dict[str, Any]:
        """The pod that was taken from a pool. Raises PodGone, ApiRefused, MachineUnreachable."""
        for pod in await self._objects.pods():
            if pod["metadata"]["uid"] == record.pod_uid:
                return pod
        raise PodGone(f"{self._objects.name}: the pod that was taken for it is gone", record)

    async def _job(self, wanted: dict[str, Any], record: PodRecord | None) -> dict[str, Any] | None:
        """The Job, created where there is none; None while one of before is there.

        Raises ApiRefused, MachineUnreachable, PlaceError.
        """
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


def _is_removed(record: PodRecord) -> bool:
    return record.removed or not (record.has_copy or record.runs)


class _Warnings:
    """What the events of a pod warn of that says itself nothing of why it is no further, looked at now and then."""

    def __init__(self, objects: CopyObjects) -> None:
        self._objects = objects
        self._state = PodState("creating")
        self._looked = 0.0

    async def added(self, state: PodState, pod: dict[str, Any] | None) -> PodState:
        """The state, with them. Raises MachineUnreachable."""
        if pod is None or state.reason or state.stage not in ("scheduling", "starting"):
            return state
        if state.stage != self._state.stage or time.monotonic() - self._looked > _EVENTS_S:
            self._looked = time.monotonic()
            self._state = warned_of(state, await self._objects.events(pod))
        return self._state
