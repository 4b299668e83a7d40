"""A cluster of a test's own, and the pod of one copy of a workspace there, as the workers of one host have it.

What becomes of the pod must not live here.
"""

import uuid
from pathlib import Path
from typing import Any

from activities.ports.machine import Stream
from activities.ports.runtime import Channel, Launch
from activities.runtimes.kubernetes.manifest import HOME, job_name
from activities.runtimes.kubernetes.pod import CopyPod
from activities.runtimes.kubernetes.pod_record import PodRecord
from activities.runtimes.kubernetes.pods import KubernetesPods
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from steersman.contracts.kubernetes import AGENT_CONTAINER
from tests.runtimes.stage import QUICK, THEIR_PYTHON
from tests.support.kubernetes import BackgroundServer, Rule
from tests.support.kubernetes.kinds import JOBS, PODS, Kind
from tests.support.kubernetes.worker_role import worker_role

IMAGE = "local/agent:1"
OWNER = Ownership("cluster", "default")


class PodSite:
    """`cluster`: where it is; `directory`: what this host writes down. Workers may do what `deploy/kubernetes/` allows,
    and nothing else.
    """

    def __init__(self, cluster: BackgroundServer, directory: Path) -> None:
        self.cluster, self.server = cluster, cluster.server
        self.state = directory / "state"
        self.copy = uuid.uuid4().hex
        self.mark = uuid.uuid4().hex
        self.rights = worker_role("default")
        self._token = self.server.access.grant("worker", *self.rights)
        self.config = self.server.kubeconfig(directory / "config", self._token)
        self.placement: dict[str, Any] = {"kind": "kubernetes", "image": IMAGE, "python": THEIR_PYTHON, "grace_s": 5}
        self._workers: list[KubernetesPods] = []

    def withdraw(self, right: Rule) -> None:
        """The workers' account may do all of its role but this from now on."""
        self.server.access.change(self._token, *(each for each in self.rights if each != right))

    def worker(self, state: Path | None = None, store: str = "store") -> KubernetesPods:
        """One of the host's; with another state directory and store: of another."""
        made = KubernetesPods(lambda _: None, {"KUBECONFIG": str(self.config)}, state or self.state, OWNER, store)
        self._workers.append(made)
        return made

    def pod(self, worker: KubernetesPods | None = None, **fields: Any) -> CopyPod:
        """As this worker knows it, or a new one."""
        return (worker or self.worker()).of({**self.placement, **fields}, self.copy).pod

    async def made(self, **fields: Any) -> CopyPod:
        """It runs."""
        pod = self.pod(**fields)
        await pod.prepare("run")
        return pod

    def run(self, worker: KubernetesPods | None = None) -> "PodRun":
        """The run in it, led by this worker, or a new one."""
        return PodRun(self, worker or self.worker())

    @property
    def record(self) -> PodRecord:
        found = self._workers[0].records.read(self.copy)
        assert found
        return found

    @property
    def job(self) -> str:
        return job_name(self.copy)

    @property
    def name(self) -> str:
        """Of the pod."""
        assert self.record.pod
        return self.record.pod

    def objects(self, kind: Kind) -> list[dict[str, Any]]:
        return self.cluster.call(lambda: self.server.store.list(kind))

    @property
    def left(self) -> list[str]:
        """Jobs and pods that are there."""
        return [each["metadata"]["name"] for kind in (JOBS, PODS) for each in self.objects(kind)]

    def ever(self, kind: Kind) -> set[str]:
        """The uids of all objects of this kind that there ever were."""
        changes = self.cluster.call(lambda: list(self.server.store.changes))
        return {each.after["metadata"]["uid"] for each in changes if each.kind is kind}

    def requests(self, verb: str, resource: str) -> list[Any]:
        return [each for each in self.server.requests if (each.verb, each.resource) == (verb, resource)]

    @property
    def init(self) -> int:
        """Process 1 of its container, as this computer numbers it."""
        return self.cluster.call(lambda: self.server.nodes.container("default", self.name, AGENT_CONTAINER).pid)

    async def aclose(self) -> None:
        for each in self._workers:
            await each.aclose()


class PodRun:
    """One run, whose agent is in the pod."""

    def __init__(self, site: PodSite, worker: KubernetesPods) -> None:
        self._site = site
        self.key = RunKey(run="run", execution="e")
        self.store = RunStore(site.state, OWNER)
        self.directory = self.store.create(self.key, site.placement)
        self.runtime = ShimRuntime(self.store, "host", {"kubernetes": lambda run: worker.place(run, site.copy)})

    async def open(self, code: str | None, *, attempt: int = 1, epoch: int = 1) -> Channel:
        """Start a program in Python, or adopt what is at work."""
        env = {"PATH": "/usr/bin:/bin", "PLACE_MARK": self._site.mark}
        argv = (THEIR_PYTHON, "-u", "-c", code or "")
        launch = Launch(argv=argv, cwd=HOME, env=env, stop_times=QUICK)
        return await self.runtime.open(self.key, attempt, epoch, launch if code else None)


async def said(stream: Stream) -> bytes:
    """What a program says until it ends well."""
    found = await stream.stdout.read()
    assert await stream.wait() == 0, stream.said()
    return found
