"""The scheduler: which node a pod goes to, and why it goes to none.

What a node does with it must not live here.
"""

from tests.support.kubernetes import pod_status
from tests.support.kubernetes.events import Events
from tests.support.kubernetes.kinds import NODES, PODS
from tests.support.kubernetes.nodes import Nodes
from tests.support.kubernetes.registry import Registry
from tests.support.kubernetes.settings import OLD
from tests.support.kubernetes.store import Change, Object
from tests.support.kubernetes.work_queue import WorkQueue

AGAIN_S = 0.1
COMPONENT = "default-scheduler"


class Scheduler:
    """Looks at each pod without a node until it has one."""

    def __init__(self, registry: Registry, nodes: Nodes, events: Events) -> None:
        self._store, self._settings, self._nodes, self._events = registry.store, registry.settings, nodes, events
        self.queue: WorkQueue[str] = WorkQueue(self._schedule)
        self._store.listeners.append(self._notice)

    def _notice(self, change: Change) -> None:
        if change.kind is PODS and change.type == "ADDED" and not change.after["spec"].get("nodeName"):
            self.queue.add(change.after["metadata"]["uid"])

    def _schedule(self, uid: str) -> float | None:
        pod = self._store.by_uid(PODS, uid)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return None
        if not self._settings.schedules_pods:
            return AGAIN_S
        node, why = self._node(pod)
        if node is None:
            self._refuse(pod, why)
            return AGAIN_S
        self._store.update(PODS, pod, lambda after: _bind(after, node))
        metadata = pod["metadata"]
        message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self._events.normal(PODS, pod, "Scheduled", message, COMPONENT)
        return None

    def _node(self, pod: Object) -> tuple[str | None, str]:
        if self._settings.unschedulable:
            return None, self._settings.unschedulable
        wanted = (pod["spec"].get("nodeSelector") or {}).items()
        nodes = self._store.list(NODES)
        there = [each for each in nodes if each["metadata"]["name"] not in self._nodes.lost]
        for each in there:
            if wanted <= each["metadata"]["labels"].items():
                return str(each["metadata"]["name"]), ""
        reasons = []
        if lost := len(nodes) - len(there):
            reasons.append(f"{lost} node(s) had untolerated taint {{node.kubernetes.io/unreachable: }}")
        old = self._settings.release is OLD
        if there:
            what = "didn't match node selector" if old else "didn't match Pod's node affinity/selector"
            reasons.append(f"{len(there)} node(s) {what}")
        why = f"0/{len(nodes)} nodes are available: {', '.join(reasons)}."
        if not old:
            none = f"0/{len(nodes)} nodes are available"
            why += f" preemption: {none}: {len(nodes)} Preemption is not helpful for scheduling."
        return None, why

    def _refuse(self, pod: Object, why: str) -> None:
        conditions = pod["status"].get("conditions") or []
        before: Object = next((each for each in conditions if each["type"] == "PodScheduled"), {})
        if before.get("message") == why:
            return
        refused = pod_status.condition("PodScheduled", "False", "Unschedulable", why)
        self._store.update(
            PODS,
            pod,
            lambda after: after["status"].update(conditions=pod_status.with_condition(conditions, refused)),
        )
        self._events.warn(PODS, pod, "FailedScheduling", why, COMPONENT)


def _bind(after: Object, node: str) -> None:
    after["spec"]["nodeName"] = node
    scheduled = pod_status.condition("PodScheduled", "True")
    after["status"]["conditions"] = pod_status.with_condition(after["status"].get("conditions") or [], scheduled)
