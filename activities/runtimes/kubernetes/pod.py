"""The pod of one copy of a workspace, as a machine: its Job is made or adopted, its programs run by exec, and all of it
is deleted in the end.

What is in the pod, and when it is wanted no more, must not live here.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from activities.ports.machine import Stream
from activities.runtimes.exec_connection import BOOT, ExecConnection
from activities.runtimes.kubernetes import manifest
from activities.runtimes.kubernetes.api import ApiRefused, KubernetesApi
from activities.runtimes.kubernetes.pod_record import PodRecord, PodRecords
from activities.runtimes.kubernetes.pod_state import (
    PodState,
    Stage,
    gone_since_s,
    has_ended,
    restart_of,
    restarts_of,
    state_of_job,
    state_of_pod,
)
from activities.shim.client import MachineGone, MachineUnreachable, MachineUnusable, Tombstoned
from steersman.contracts.errors import PlaceError
from steersman.contracts.kubernetes import AGENT_CONTAINER, MAX_LEASE_S, KubernetesRuntime

log = logging.getLogger("steersman.kubernetes")

BEGIN_S: Final = 20.0
HOPELESS_S: Final = 8.0
"""So long a reason that a person has to mend may stand before the pod counts as failed: some pass by themselves."""
CREATED_S: Final = 60.0
"""The cluster has this long to make a pod for a Job that nobody holds."""
_PAUSE_S, _FIRST_PAUSE_S, _LAST_PAUSE_S = 0.2, 0.05, 1.0
_LOST_AFTER_S: Final = MAX_LEASE_S + 60.0
"""Seconds from the end of a deleted pod's grace, on a node that does not answer, to when its shims have ended their
agents by themselves, as their lease has run out.
"""
_RETRY_S: Final = 30.0
_MARGIN_S: Final = 3.0
"""Seconds beyond its grace after which a pod is told to end at once."""
_KILL_S: Final = 15.0
"""Seconds beyond its grace after which a pod that is still there is left to the next try."""

Tell = Callable[[str], None]
"""Hears, for people, what the pod waits for."""
_SILENT_S: Final = 3.0
"""What lasts no longer is not told."""


class PodMissing(MachineUnreachable):
    """There is no pod yet: nothing can be at work in it."""


class PodGone(MachineGone):
    """The pod is gone, with all that was in it."""

    def __init__(self, message: str, record: PodRecord) -> None:
        super().__init__(message)
        self.record = record


class CopyPod:
    """A Machine. `copy`: the copy's id, `owner`: whose it is (see manifest.OWNER), `run`: for people."""

    def __init__(
        self,
        api: KubernetesApi,
        runtime: KubernetesRuntime,
        copy: str,
        owner: str,
        records: PodRecords,
    ) -> None:
        self._api, self._runtime, self.copy, self._owner, self._records = api, runtime, copy, owner, records
        self._connection: ExecConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """The pod, as people know it."""
        return f"{self._runtime.name}: Job {manifest.job_name(self.copy)}"

    @property
    def python(self) -> str:
        """The interpreter there."""
        return self._runtime.python

    @property
    def has_claim(self) -> bool:
        """What is in it outlives it."""
        return self._runtime.has_claim

    # Made.

    async def prepare(self, run: str, tell: Tell = lambda _: None) -> None:
        """Have a pod that runs: the one that is there, or a new one. Twice is once.

        Raises PlaceError with the cluster's own words where it does not come to run, MachineUnreachable.
        """
        runtime = self._runtime.model_dump(mode="json")

        def begun(record: PodRecord | None) -> PodRecord:
            if record is None:
                return PodRecord(runtime=runtime, run=run)
            if record.removed or record.lost:
                used = () if record.removed else record.used
                return PodRecord(runtime=runtime, run=run, old_job=record.job_uid, barred=record.barred, used=used)
            return record.model_copy(update={"has_copy": True})

        stage = await self._stage(await self._records.change(self.copy, begun))
        while stage in ("ending", "ended"):  # with all in it; what comes then is another one
            await asyncio.sleep(_PAUSE_S)
            stage = await self._stage(await self._records.change(self.copy, begun))
        if stage != "running":
            await self._await_running(run, tell)
        try:
            await self._connected()
        except MachineUnusable as error:
            raise self._failed("Unusable", str(error)) from error

    async def _stage(self, record: PodRecord) -> Stage | None:
        """Of the pod that is written down; None where none is. One that has gone is written down so."""
        if not record.pod_uid:
            return None
        pod = await self._pod(record)
        return state_of_pod(pod).stage if pod else "ended"

    async def _await_running(self, run: str, tell: Tell) -> None:
        began, pause = time.monotonic(), _FIRST_PAUSE_S
        told, since = PodState("creating"), began
        silent = True
        hopeless: float | None = None
        while True:
            try:
                pod, state, patience_s = await self._on_its_way(run)
            except ApiRefused as error:
                if not error.is_transient or time.monotonic() - began > _RETRY_S:
                    raise self._failed(error.reason or f"HTTP {error.status}", str(error)) from error
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
                await self._records.update(self.copy, **fields)
                return
            if state.stage == "suspended":
                began = now  # a queue may hold it as long as it likes
            elif state.stage == "ended" or (hopeless and now - hopeless > HOPELESS_S):
                raise self._failed(state.reason, state.message)
            elif now - began > patience_s:
                why = state.message if state.reason else f"it has not come further than {state.stage}"
                raise self._failed(state.reason or "Timeout", f"{why} (for {now - began:.0f} s)")
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, _LAST_PAUSE_S)

    async def _on_its_way(self, run: str) -> tuple[dict[str, Any] | None, PodState, float]:
        """The pod, once it is there, its state, and for how long it may have come no further."""
        job = await self._job(run)
        if job is None:
            return None, PodState("creating", "Terminating", "the Job of before is not gone yet"), self._runtime.start_s
        pod = await self._pod_of(job)
        if pod:
            return pod, state_of_pod(pod), self._runtime.start_s
        return None, state_of_job(job, await self._events(job)), CREATED_S

    async def _job(self, run: str) -> dict[str, Any] | None:
        """The Job, created where there is none; None while one of before is there.

        Raises ApiRefused, MachineUnreachable, PlaceError, and PodGone where it was removed meanwhile.
        """
        await self._api.connect()
        wanted = manifest.job(self._runtime, self.copy, self._owner, run)
        record = await asyncio.to_thread(self._records.read, self.copy)
        if record and (record.removed or not (record.has_copy or record.runs)):
            raise PodGone(f"{self.name}: it was removed", record)
        job = await self._got_or_created(wanted)
        metadata = job["metadata"]
        if metadata.get("deletionTimestamp"):
            return None  # of a beginning before this one
        if record and metadata["uid"] == record.old_job:
            # Its pods go with it, as soon as they can: one on a lost node must not keep the run from going on.
            await self._ignoring_gone(self._path, metadata["uid"], propagationPolicy="Background")
            return None
        known = record.job_uid if record else None
        theirs, ours = metadata.get("annotations") or {}, wanted["metadata"]["annotations"]
        labels = metadata.get("labels") or {}
        is_same = known == metadata["uid"] or theirs.get(manifest.SPEC) == ours[manifest.SPEC]
        if labels.get(manifest.OWNER) != self._owner or not is_same:
            raise self._failed("AlreadyExists", "a Job of this name is there, and it is not this run's")
        await self._records.update(self.copy, job_uid=metadata["uid"])
        return job

    async def _got_or_created(self, wanted: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                return await self._api.get(self._path)
            except ApiRefused as error:
                if error.status != 404:
                    raise
            try:
                return await self._api.create(self._jobs, wanted)
            except ApiRefused as refused:
                if refused.status == 409:
                    continue  # another worker of this host was quicker
                if not refused.is_transient:
                    await self._records.update(self.copy, refused=True)
                raise

    async def _pod_of(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The newest pod of the Job that somebody may use."""
        found = await self._pods()
        uid = job["metadata"]["uid"]
        own = [each for each in found if uid in [owner["uid"] for owner in each["metadata"].get("ownerReferences", [])]]
        usable = [each for each in own if state_of_pod(each).stage not in ("ending", "ended")]
        return next(iter(usable or own), None)

    async def _pods(self) -> list[dict[str, Any]]:
        selector = f"{manifest.COPY}={self.copy},{manifest.OWNER}={self._owner}"
        answer = await self._api.get(self._api_pods, labelSelector=selector)
        found: list[dict[str, Any]] = answer.get("items") or []
        return sorted(found, key=lambda each: str(each["metadata"].get("creationTimestamp")), reverse=True)

    async def _events(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Of the Job, newest first; none where nobody may see them."""
        selector = f"involvedObject.uid={job['metadata']['uid']}"
        try:
            answer = await self._api.get(f"/api/v1/namespaces/{self._namespace}/events", fieldSelector=selector)
        except ApiRefused:
            return []
        found: list[dict[str, Any]] = answer.get("items") or []
        return sorted(found, key=lambda each: str(each.get("lastTimestamp")), reverse=True)

    def _failed(self, reason: str, message: str) -> PlaceError:
        job = manifest.job_name(self.copy)
        text = ": ".join(filter(None, (reason, message)))
        facts = {"reason": reason, "detail": message, "job": job, "namespace": self._namespace}
        return PlaceError(f"runtime: the pod does not come to run: {text}", **facts)

    # Used.

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        """See Machine. Raises PodMissing, PodGone."""
        return (await self._connected()).run(argv, stdin)

    async def aclose(self) -> None:
        """Let go: what was started there works on."""
        self._closed = True
        if self._connection:
            await self._connection.aclose()

    async def _connected(self) -> ExecConnection:
        async with self._connecting:
            self._check_open()
            if self._connection and self._connection.lost is None:
                return self._connection
            record = await self.look()
            if record.pod is None:
                raise PodMissing(f"{self.name}: there is no pod yet")
            before, self._connection = self._connection, None
            if before:
                await before.aclose()
            try:
                command = (self._runtime.python, "-I", "-S", "-c", BOOT)
                socket = await self._api.exec(self._namespace, record.pod, AGENT_CONTAINER, command)
                connection = ExecConnection(socket, self.name)
                await connection.open(BEGIN_S)
            except ApiRefused as error:
                await self._note_end(record)
                raise MachineUnreachable(f"{self.name}: {error}") from error
            except MachineUnusable:
                raise
            except MachineUnreachable:
                await self._note_end(record)
                raise
            try:
                self._check_open()
            except MachineUnreachable:
                await connection.aclose()
                raise
            self._connection = connection
            return connection

    def _check_open(self) -> None:
        if self._closed:
            raise MachineUnreachable(f"{self.name}: this worker has let go of it")

    async def look(self) -> PodRecord:
        """What is known of it. Raises PodMissing where it was never made, PodGone."""
        record = await asyncio.to_thread(self._records.read, self.copy)
        if record is None:
            raise PodMissing(f"{self.name}: it was never made")
        if record.removed or record.lost:
            raise PodGone(f"{self.name}: {record.lost or 'it was removed'}", record)
        return record

    async def known(self) -> PodRecord | None:
        """What is written down of it."""
        return await asyncio.to_thread(self._records.read, self.copy)

    async def cause(self) -> str:
        """Why what lived in it ended, in the cluster's words; empty where it has none, or nobody can tell now."""
        try:
            pod = await self._pod(await self.look())
        except PodGone as gone:
            return f"its pod is gone: {gone.record.lost or 'it was removed'}"
        except (MachineUnreachable, OSError):
            return ""
        if pod is None:
            return await self.cause()
        state = state_of_pod(pod)
        if state.stage == "ending":
            return (
                f"its pod is deleted: {state.sentence}" if state.reason else "its pod is deleted, and not by Steersman"
            )
        record = await self.known()
        if record is None or restarts_of(pod) <= record.restarts:
            return ""
        await self._records.update(self.copy, restarts=restarts_of(pod))
        return f"its container ended: {restart_of(pod)}"

    async def _pod(self, record: PodRecord) -> dict[str, Any] | None:
        """The very pod, as the cluster has it; None where that has gone, which is written down. Raises
        MachineUnreachable.
        """
        try:
            found = await self._api.get(f"{self._api_pods}/{quote(record.pod or '')}")
        except ApiRefused as error:
            if error.status != 404:
                raise MachineUnreachable(f"{self.name}: {error}") from error
            found = None
        if found is None or found["metadata"]["uid"] != record.pod_uid:
            await self._lose("it was deleted, and not by Steersman", proven=record.deleting)
            return None
        state = state_of_pod(found)
        if state.stage == "ended":
            await self._lose(state.sentence, proven=not state.is_lost_node)
            return None
        if state.stage == "ending":
            await self._records.update(self.copy, deleting=not state.is_lost_node)
            if gone_since_s(found, datetime.now(UTC)) > _LOST_AFTER_S:
                await self._lose(f"its node does not answer, and it is to go: {state.sentence}", proven=False)
                return None
        return found

    async def _note_end(self, record: PodRecord) -> None:
        """It does not answer: has it ended? Raises PodGone then, MachineUnreachable where nobody can tell."""
        if record.pod_uid:
            await self._pod(record)
            await self.look()

    async def _lose(self, why: str, *, proven: bool) -> None:
        facts = {"copy": self.copy, "why": why}
        log.warning("a pod is gone", extra={"action": "pod_gone", "facts": facts})
        await self._records.update(self.copy, lost=why, proven=proven)

    # Removed.

    async def enter(self, run: str, attempt: str | None = None) -> None:
        """Record that this run (RunDirectory.id) has processes in it. Raises Tombstoned where it was barred."""
        begun = f"{run}/{attempt}"

        def entered(record: PodRecord | None) -> PodRecord:
            if record is None or run in record.barred:
                raise Tombstoned("the run was stopped before it had a process in its pod")
            runs = record.runs if run in record.runs else (*record.runs, run)
            is_new = attempt is not None and begun not in record.attempts
            attempts = (*record.attempts, begun) if is_new else record.attempts
            pod = record.pod_uid
            used = record.used if pod is None or pod in record.used else (*record.used, pod)
            return record.model_copy(update={"runs": runs, "attempts": attempts, "used": used})

        await self._records.change(self.copy, entered)

    async def bar(self, run: str) -> bool:
        """Record that this run will have no process in it; False where it has, or had."""

        def barred(record: PodRecord | None) -> PodRecord:
            record = record or PodRecord(runtime=self._runtime.model_dump(mode="json"), run="", has_copy=False)
            is_there = run in record.runs and not (record.lost or record.removed)
            if is_there or run in record.barred:
                return record
            return record.model_copy(update={"barred": (*record.barred, run)})

        return run in (await self._records.change(self.copy, barred)).barred

    async def leave(self, run: str | None = None, *, copy: bool = False) -> bool:
        """Record that the run (RunDirectory.id) is over, or the copy not wanted; remove the pod after the last of them.

        True where it was. Raises MachineUnreachable where the pod is not gone yet.
        """

        def left(record: PodRecord | None) -> PodRecord:
            record = record or PodRecord(runtime=self._runtime.model_dump(mode="json"), run="", removed=True)
            runs = tuple(each for each in record.runs if each != run)
            return record.model_copy(update={"runs": runs, "has_copy": record.has_copy and not copy})

        record = await self._records.change(self.copy, left)
        if record.runs or record.has_copy:
            return False
        if not await self.remove():
            raise MachineUnreachable(f"{self.name}: it was told to go, and is not gone yet")
        return True

    async def remove(self) -> bool:
        """Delete the Job, and see that nothing is left. True where the cluster says so, twice; else it is tried again.

        What is in the pod ends by SIGTERM, and is killed after the pod's grace. Raises MachineUnreachable.
        """
        record = await asyncio.to_thread(self._records.read, self.copy)
        if record is None or record.removed:
            return True
        if self._connection:
            await self._connection.aclose()
        if record.refused and record.job_uid is None:
            await self._records.update(self.copy, removed=True)
            return True
        try:
            return await self._delete(record)
        except ApiRefused as error:
            raise MachineUnreachable(f"{self.name}: {error}") from error

    async def _delete(self, record: PodRecord) -> bool:
        await self._api.connect()
        began, gone = time.monotonic(), 0
        asked: set[str] = set()
        while gone < 2:
            job, pods = await self._found(record), await self._pods()
            gone = 0 if job or pods else gone + 1
            if job and job["metadata"]["uid"] not in asked:  # another may be made by who has not heard of this yet
                asked.add(job["metadata"]["uid"])
                await self._ignoring_gone(self._path, job["metadata"]["uid"], propagationPolicy="Foreground")
            waited_s = time.monotonic() - began
            for pod in pods:
                if (grace_s := self._grace_of(pod, record, waited_s)) is not None:
                    await self._ignoring_gone(self._pod_path(pod), pod["metadata"]["uid"], gracePeriodSeconds=grace_s)
            if waited_s > self._runtime.grace_s + _KILL_S:
                return False
            await asyncio.sleep(_PAUSE_S)
        await self._records.update(self.copy, removed=True)
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
            return self._runtime.grace_s
        return 1 if waited_s > self._runtime.grace_s + _MARGIN_S else None

    async def _found(self, record: PodRecord) -> dict[str, Any] | None:
        """The Job, if it is this one's."""
        try:
            job = await self._api.get(self._path)
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise
        labels = job["metadata"].get("labels") or {}
        is_ours = job["metadata"]["uid"] == record.job_uid or labels.get(manifest.OWNER) == self._owner
        return job if is_ours else None

    async def _ignoring_gone(self, path: str, uid: str, **options: Any) -> None:
        try:
            await self._api.delete(path, uid, **options)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise

    @property
    def _namespace(self) -> str:
        return self._runtime.namespace or self._api.namespace

    @property
    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{quote(self._namespace)}/jobs"

    @property
    def _path(self) -> str:
        return f"{self._jobs}/{manifest.job_name(self.copy)}"

    @property
    def _api_pods(self) -> str:
        return f"/api/v1/namespaces/{quote(self._namespace)}/pods"

    def _pod_path(self, pod: dict[str, Any]) -> str:
        return f"{self._api_pods}/{quote(pod['metadata']['name'])}"
