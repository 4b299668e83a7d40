"""The nodes: they start what is scheduled to them, say what becomes of it, and can be lost.

How one pod lives must not live here.
"""

import asyncio
import shutil
from pathlib import Path

from tests.support.kubernetes import pod_status, statuses
from tests.support.kubernetes.containers import Container
from tests.support.kubernetes.deletion import Deletion
from tests.support.kubernetes.events import Events
from tests.support.kubernetes.faults import unreachable_node
from tests.support.kubernetes.kinds import NODES, PODS
from tests.support.kubernetes.pod_worker import PodWorker, Surroundings, Verdict
from tests.support.kubernetes.registry import Registry
from tests.support.kubernetes.store import Change, Object

FORCED_GRACE_S = 1.0
UNKNOWN = "NodeStatusUnknown"


class Nodes:
    """The kubelets of all nodes, as one."""

    def __init__(self, registry: Registry, deletion: Deletion, events: Events, directory: Path) -> None:
        self._store, self._settings, self._deletion = registry.store, registry.settings, deletion
        self._registry = registry
        self._around = Surroundings(self._store, events, self._settings, directory / "pods", self._publish)
        self.lost: set[str] = set()
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._store.listeners.append(self._notice)

    def start(self) -> None:
        """Be there, with the labels that the settings say."""
        for name, labels in self._settings.nodes.items():
            ready = pod_status.condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
            metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
            self._registry.create(NODES, "", {"metadata": metadata, "spec": {}, "status": {"conditions": [ready]}})

    async def aclose(self) -> None:
        """End every process."""
        for each in self._workers.values():
            each.stop(0)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def failures(self) -> list[BaseException]:
        """What was not foreseen."""
        done = [each for each in self._tasks.values() if each.done() and not each.cancelled()]
        return [error for each in done if (error := each.exception())]

    def worker(self, pod: Object) -> PodWorker:
        """Raises ApiError where its node does not answer, or has not heard of it."""
        node = pod["spec"].get("nodeName")
        if not node:
            raise statuses.bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        found = self._workers.get(pod["metadata"]["uid"])
        if node in self.lost or found is None:
            raise unreachable_node(node)
        return found

    def container(self, namespace: str, pod: str, name: str = "") -> Container:
        """One that runs: its process can be looked at, and struck. Without a name the first."""
        running = self.worker(self._store.get(PODS, namespace, pod)).running
        return running[name] if name else next(iter(running.values()))

    def kill_for_memory(self, namespace: str, pod: str, name: str) -> None:
        """A container has used more memory than it may."""
        self.worker(self._store.get(PODS, namespace, pod)).kill_for_memory(name)

    def evict(self, namespace: str, pod: str, message: str = "The node was low on resource: memory. ") -> None:
        """The node needs room: the pod ends at once, failed."""
        condition = pod_status.condition("DisruptionTarget", "True", "TerminationByKubelet", message)
        worker = self.worker(self._store.get(PODS, namespace, pod))
        worker.stop(FORCED_GRACE_S, Verdict("Evicted", message, condition))

    def lose(self, node: str) -> None:
        """Nothing is heard of a node any more. Its processes go on."""
        self.lost.add(node)
        unknown = pod_status.condition("Ready", "Unknown", UNKNOWN, "Kubelet stopped posting node status.")
        self._store.update(
            NODES, self._store.get(NODES, "", node), lambda after: after["status"].update(conditions=[unknown])
        )
        for pod in self._store.list(PODS):
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                self._store.update(PODS, pod, _lost)

    def recover(self, node: str) -> None:
        """The node is back, and hears what was wanted of its pods."""
        self.lost.discard(node)
        ready = pod_status.condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
        self._store.update(
            NODES, self._store.get(NODES, "", node), lambda after: after["status"].update(conditions=[ready])
        )
        for worker in list(self._workers.values()):
            if worker.pod["spec"]["nodeName"] == node:
                self._hear(worker)

    def _hear(self, worker: PodWorker) -> None:
        pod = self._store.by_uid(PODS, worker.uid)
        if pod is None:
            worker.stop(FORCED_GRACE_S)
        elif pod["metadata"].get("deletionTimestamp"):
            worker.stop(pod["metadata"]["deletionGracePeriodSeconds"])
        self._publish(worker)

    def _notice(self, change: Change) -> None:
        if change.kind is not PODS:
            return
        pod = change.after
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        worker = self._workers.get(uid)
        if not node or node in self.lost:
            return
        if worker is None:
            if change.type != "DELETED" and pod["status"]["phase"] == "Pending":
                self._begin(pod)
        elif change.type == "DELETED":
            self._end(worker)
        elif pod["metadata"].get("deletionTimestamp"):
            worker.stop(pod["metadata"]["deletionGracePeriodSeconds"])
            if worker.ended:
                asyncio.get_running_loop().call_soon(self._publish, worker)

    def _begin(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers[uid] = PodWorker(pod, self._around)
        self._tasks[uid] = asyncio.get_running_loop().create_task(worker.run())

    def _end(self, worker: PodWorker) -> None:
        """A pod that is gone from the API has no processes and no volumes, unless a test wants it otherwise."""
        if not (self._settings.forced_deletion_leaves_processes and not worker.ended):
            worker.stop(FORCED_GRACE_S)
            self._tasks[worker.uid].add_done_callback(lambda _: self._clean(worker))

    def _clean(self, worker: PodWorker) -> None:
        shutil.rmtree(self._around.directory / worker.uid, ignore_errors=True)

    def _publish(self, worker: PodWorker) -> None:
        """Say what has become of a pod; one that was to be deleted is let go when it has ended."""
        pod = self._store.by_uid(PODS, worker.uid)
        if pod is None or pod["spec"]["nodeName"] in self.lost:
            return
        made = pod_status.status(pod, worker.first, worker.main, worker.phase)
        if worker.verdict and worker.ended:
            made |= {"reason": worker.verdict.reason, "message": worker.verdict.message}
            if worker.verdict.condition:
                made["conditions"] = pod_status.with_condition(made["conditions"], worker.verdict.condition)
        after = self._store.update(PODS, pod, lambda after: after.update(status=made))
        if worker.ended and after["metadata"].get("deletionTimestamp"):
            self._deletion.finish(PODS, after)


def _lost(after: Object) -> None:
    status = after["status"]
    conditions = status.get("conditions") or []
    for name in ("Ready", "ContainersReady"):
        conditions = pod_status.with_condition(conditions, pod_status.condition(name, "False", UNKNOWN))
    message = f"Node {after['spec']['nodeName']} which was running pod {after['metadata']['name']} is unresponsive"
    status |= {"conditions": conditions, "reason": "NodeLost", "message": message}
