"""The pods that one worker process reaches: one for each copy of a workspace.

Each is made once here: the secret of its access owns the epochs of what this worker leads there. A pod that was made
when the operator allowed it is reached also when that is allowed no more: what is there is stopped and carried back.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.kubernetes.api import ApiRefused, KubernetesApi
from activities.runtimes.kubernetes.manifest import COPY, HOME, OWNER, TAKEN_FROM
from activities.runtimes.kubernetes.place import PodPlace, pod_of
from activities.runtimes.kubernetes.pod import CopyPod
from activities.runtimes.kubernetes.pod_record import PodRecords
from activities.runtimes.kubernetes.start import Tell
from activities.runtimes.remote_machine import DIRECTORY, RemoteMachine
from activities.shim.client import MachineUnreachable, MachineUnusable
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.kubernetes import KubernetesRuntime
from steersman.contracts.model import JsonObject
from steersman.contracts.request import parse_object

log = logging.getLogger("steersman.kubernetes")

Check = Callable[[KubernetesRuntime], object]
"""Raises InvalidRequest where requests may not have their agents there."""
Reach = Callable[[str | None, Mapping[str, str]], KubernetesApi]
"""The API of a context, by these variables."""


@dataclass(frozen=True)
class PodMachine:
    """One pod: its shims and directories, and a second connection for what is large."""

    pod: CopyPod
    bulk: CopyPod
    machine: RemoteMachine

    @property
    def directory(self) -> PurePath:
        """Where everything of ours is kept there."""
        return self.machine.known_directory

    async def prepare(self, run: str, tell: Tell = lambda _: None) -> None:
        """See CopyPod.prepare."""
        await self.pod.prepare(run, tell)

    async def aclose(self) -> None:
        await asyncio.gather(self.pod.aclose(), self.bulk.aclose())


class KubernetesPods:
    """`state`: the state directory; `owner`, `store`: whose pods these are."""

    def __init__(
        self,
        check: Check,
        environ: Mapping[str, str],
        state: Path,
        owner: Ownership,
        store: str,
        reach: Reach = KubernetesApi,
    ) -> None:
        self._check, self._environ, self._reach = check, environ, reach
        self.records = PodRecords(state)
        said = f"{owner.cluster}\0{owner.namespace}\0{store}"
        self._owner = hashlib.sha256(said.encode()).hexdigest()[:32]
        self._apis: dict[str | None, KubernetesApi] = {}
        self._pods: dict[tuple[str, str], PodMachine] = {}

    def of(self, placement: JsonObject, copy: str) -> PodMachine:
        """The pod of the copy with this id. `placement`: the run's, which may be forged. Raises MachineUnusable."""
        try:
            runtime = parse_object(KubernetesRuntime, placement)
            if self.records.read(copy) is None:
                self._check(runtime)
        except InvalidRequest as error:
            raise MachineUnusable(f"the run's pod: {error.message}") from error
        key = (runtime.model_dump_json(), copy)
        if key not in self._pods:
            api = self.api(runtime.context)
            pod, bulk = (CopyPod(api, runtime, copy, self._owner, self.records) for _ in range(2))
            machine = RemoteMachine(
                runtime.name, ExecAccess(pod, runtime.python, pod.name), str(PurePath(HOME, DIRECTORY))
            )
            self._pods[key] = PodMachine(pod, bulk, machine)
        return self._pods[key]

    def place(self, run: RunDirectory, copy: str) -> PodPlace:
        """The place of a run in the pod of its copy, or of the one that it had, as a loop's copy leaves the run before
        its journals do. Raises MachineUnusable.
        """
        found = self.of(run.placement, pod_of(run) or copy)
        return PodPlace(run, found.machine, found.pod)

    def api(self, context: str | None) -> KubernetesApi:
        if context not in self._apis:
            self._apis[context] = self._reach(context, self._environ)
        return self._apis[context]

    async def forget(self, copy: str) -> None:
        """Let go of a pod that was removed."""
        for key in [key for key in self._pods if key[1] == copy]:
            await self._pods.pop(key).aclose()

    async def prune(self, before: float) -> None:
        """Forget what is written down of pods that were removed before that Unix time. Raises OSError."""
        for copy in await self.records.prune(before):
            await self.forget(copy)

    async def sweep(self) -> int:
        """Delete Jobs of this state directory, and pods that it took from pools, of which nothing is written down, or
        only that they were removed: how many there were. One that cannot be deleted now is another time.
        """
        found, seen = 0, set()
        for copy, record in await asyncio.to_thread(lambda: list(self.records.all())):
            if record.removed:
                await self.forget(copy)
            with suppress(InvalidRequest):
                runtime = parse_object(KubernetesRuntime, record.runtime)
                seen.add((runtime.context, runtime.namespace))
        for context, namespace in seen:
            try:
                found += await self._sweep(context, namespace)
            except (ApiRefused, MachineUnreachable) as error:
                facts = {"cluster": context, "namespace": namespace, "error": str(error)}
                log.warning("a namespace cannot be swept", extra={"action": "sweep_failed", "facts": facts})
        return found

    async def _sweep(self, context: str | None, namespace: str | None) -> int:
        api, found = self.api(context), 0
        await api.connect()
        where, ours = namespace or api.namespace, f"{OWNER}={self._owner}"
        jobs, pods = f"/apis/batch/v1/namespaces/{where}/jobs", f"/api/v1/namespaces/{where}/pods"
        listed = [(jobs, each) for each in (await api.get(jobs, labelSelector=ours)).get("items") or []]
        taken = (await api.get(pods, labelSelector=f"{ours},{TAKEN_FROM}")).get("items") or []
        for path, each in (*listed, *((pods, pod) for pod in taken)):
            metadata = each["metadata"]
            record = await asyncio.to_thread(self.records.read, str(metadata["labels"].get(COPY)))
            if (record is not None and not record.removed) or metadata.get("deletionTimestamp"):
                continue
            with suppress(ApiRefused):
                await api.delete(f"{path}/{metadata['name']}", metadata["uid"], propagationPolicy="Foreground")
                found += 1
        return found

    async def aclose(self) -> None:
        """Let go of all; what was started there works on."""
        await asyncio.gather(*(each.aclose() for each in self._pods.values()), return_exceptions=True)
        await asyncio.gather(*(each.aclose() for each in self._apis.values()), return_exceptions=True)
