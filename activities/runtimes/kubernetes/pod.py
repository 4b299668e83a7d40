"""The pod of one copy of a workspace, as a machine: its Job is made or adopted, its programs run by exec, and all of it
is deleted in the end.

What is in the pod, and when it is wanted no more, must not live here.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from activities.ports.machine import Stream
from activities.runtimes.exec_connection import BOOT, ExecConnection
from activities.runtimes.kubernetes.api import ApiRefused, KubernetesApi
from activities.runtimes.kubernetes.objects import CopyObjects
from activities.runtimes.kubernetes.pod_errors import PodGone, PodMissing
from activities.runtimes.kubernetes.pod_record import PodRecord, PodRecords
from activities.runtimes.kubernetes.pod_state import Stage, gone_since_s, restart_of, restarts_of, state_of_pod
from activities.runtimes.kubernetes.removal import PodRemoval
from activities.runtimes.kubernetes.start import PodStart, Tell
from activities.shim.client import MachineUnreachable, MachineUnusable, Tombstoned
from steersman.contracts.kubernetes import AGENT_CONTAINER, MAX_LEASE_S, KubernetesRuntime

log = logging.getLogger("steersman.kubernetes")

BEGIN_S: Final = 20.0
_PAUSE_S: Final = 0.2
_LOST_AFTER_S: Final = MAX_LEASE_S + 60.0
"""Seconds from the end of a deleted pod's grace, on a node that does not answer, to when its shims have ended their
agents by themselves, as their lease has run out.
"""


class CopyPod:
    """A Machine. `copy`: the copy's id, `owner`: whose it is (see manifest.OWNER), `records`: what is known of it."""

    def __init__(
        self,
        api: KubernetesApi,
        runtime: KubernetesRuntime,
        copy: str,
        owner: str,
        records: PodRecords,
    ) -> None:
        self._api, self._runtime, self.copy, self._records = api, runtime, copy, records
        self._objects = CopyObjects(api, runtime, copy, owner)
        self._start = PodStart(self._objects, records)
        self._connection: ExecConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """The pod, as people know it."""
        return self._objects.name

    @property
    def python(self) -> str:
        """The interpreter there."""
        return self._runtime.python

    @property
    def has_claim(self) -> bool:
        """What is in it outlives it."""
        return self._runtime.has_claim

    @property
    def pool(self) -> str | None:
        """From which it may be taken."""
        return self._runtime.pool

    # Made.

    async def prepare(self, run: str, tell: Tell = lambda _: None) -> None:
        """Have a pod that runs: the one that is there, or a new one. Twice is once.

        Raises PlaceError with the cluster's own words where it does not come to run, MachineUnreachable.
        """
        runtime = self._runtime.model_dump(mode="json")

        is_first = False

        def begun(record: PodRecord | None) -> PodRecord:
            nonlocal is_first
            if is_first := record is None:
                return PodRecord(runtime=runtime, run=run)
            if record.removed or record.lost:
                used = () if record.removed else record.used
                return PodRecord(runtime=runtime, run=run, old_job=record.job_uid, barred=record.barred, used=used)
            return record.model_copy(update={"has_copy": True})

        stage = await self._stage(await self._records.change(self.copy, begun))
        while stage in ("ending", "ended"):  # with all in it; what comes then is another one
            await asyncio.sleep(_PAUSE_S)
            stage = await self._stage(await self._records.change(self.copy, begun))
        try:
            if stage != "running":
                await self._start.run(run, tell)
            await self._connected()
        except MachineUnusable as error:
            if is_first:  # of nobody else's asking either: without a Job or a pod nobody has to be asked to remove it
                await self._records.update(self.copy, refused=True)
            raise self._start.failed("Unusable", str(error)) from error

    async def _stage(self, record: PodRecord) -> Stage | None:
        """Of the pod that is written down; None where none is. One that has gone is written down so."""
        if not record.pod_uid:
            return None
        pod = await self._pod(record)
        return state_of_pod(pod).stage if pod else "ended"

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
                socket = await self._api.exec(self._objects.namespace, record.pod, AGENT_CONTAINER, command)
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
        record = await self.known()
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
        await self._records.update(self.copy, seen=record, restarts=restarts_of(pod))
        return f"its container ended: {restart_of(pod)}"

    async def _pod(self, record: PodRecord) -> dict[str, Any] | None:
        """The very pod, as the cluster has it; None where that has gone, which is written down. Raises
        MachineUnreachable.
        """
        try:
            found = await self._api.get(f"{self._objects.pods_path}/{quote(record.pod or '')}")
        except ApiRefused as error:
            if error.status != 404:
                raise MachineUnreachable(f"{self.name}: {error}") from error
            found = None
        if found is None or found["metadata"]["uid"] != record.pod_uid:
            await self._lose(record, "it was deleted, and not by Steersman", proven=record.deleting)
            return None
        state = state_of_pod(found)
        if state.stage == "ended":
            await self._lose(record, state.sentence, proven=not state.is_lost_node)
            return None
        if state.stage == "ending":
            await self._records.update(self.copy, seen=record, deleting=not state.is_lost_node)
            if gone_since_s(found, datetime.now(UTC)) > _LOST_AFTER_S:
                why = f"its node does not answer, and it is to go: {state.sentence}"
                await self._lose(record, why, proven=False)
                return None
        return found

    async def _note_end(self, record: PodRecord) -> None:
        """It does not answer: has it ended? Raises PodGone then, MachineUnreachable where nobody can tell."""
        if record.pod_uid:
            await self._pod(record)
            await self.look()

    async def _lose(self, record: PodRecord, why: str, *, proven: bool) -> None:
        if await self._records.update(self.copy, seen=record, lost=why, proven=proven):
            facts = {"copy": self.copy, "why": why}
            log.warning("a pod is gone", extra={"action": "pod_gone", "facts": facts})

    # Its books, and its end.

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
        record = await self.known()
        if record is None or record.removed:
            return True
        if self._connection:
            await self._connection.aclose()
        if record.refused and record.job_uid is None and record.pod is None:
            return await self._records.update(self.copy, seen=record, removed=True) is not None
        try:
            is_gone = await PodRemoval(self._objects).run(record)
        except ApiRefused as error:
            raise MachineUnreachable(f"{self.name}: {error}") from error
        return is_gone and await self._records.update(self.copy, seen=record, removed=True) is not None
