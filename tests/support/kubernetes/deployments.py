"""Deployments and their ReplicaSets: so many pods of a template, as warm pools are kept.

How a pod is run must not live here.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Sequence

from tests.support.kubernetes.deletion import DeleteOptions, Deletion
from tests.support.kubernetes.job_status import active, condition_is
from tests.support.kubernetes.kinds import DEPLOYMENTS, PODS, REPLICA_SETS
from tests.support.kubernetes.registry import Registry
from tests.support.kubernetes.selectors import matches_labels
from tests.support.kubernetes.statuses import ApiError
from tests.support.kubernetes.store import Change, Object, controller_of, owner_reference
from tests.support.kubernetes.work_queue import WorkQueue

HASH = "pod-template-hash"
AGAIN_S = 0.2


class DeploymentController:
    """Both controllers in one; a template that changes gets a ReplicaSet of its own at once, without a rollout."""

    def __init__(self, registry: Registry, deletion: Deletion) -> None:
        self._registry, self._store, self._deletion = registry, registry.store, deletion
        self.queue: WorkQueue[str] = WorkQueue(self._reconcile)
        self._store.listeners.append(self._notice)

    def _notice(self, change: Change) -> None:
        if change.kind in {DEPLOYMENTS, REPLICA_SETS}:
            self.queue.add(change.after["metadata"]["uid"])
        if change.kind in {PODS, REPLICA_SETS}:
            for each in (change.before, change.after):
                owner = controller_of(each) if each else None
                if owner and owner["kind"] in {DEPLOYMENTS.name, REPLICA_SETS.name}:
                    self.queue.add(owner["uid"])

    def _reconcile(self, uid: str) -> float | None:
        deployment = self._store.by_uid(DEPLOYMENTS, uid)
        if deployment and not deployment["metadata"].get("deletionTimestamp"):
            self._deploy(deployment)
        replica_set = self._store.by_uid(REPLICA_SETS, uid)
        if replica_set and not replica_set["metadata"].get("deletionTimestamp"):
            return self._replicate(replica_set)
        return None

    def _deploy(self, deployment: Object) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        number = _hash(spec["template"])
        name = f"{metadata['name']}-{number}"
        owned = [
            each
            for each in self._store.list(REPLICA_SETS, metadata["namespace"])
            if (controller_of(each) or {}).get("uid") == metadata["uid"]
        ]
        current = next((each for each in owned if each["metadata"]["name"] == name), None)
        if current is None:
            current = self._registry.create(REPLICA_SETS, metadata["namespace"], _replica_set(deployment, name, number))
        for each in owned:
            self._store.update(REPLICA_SETS, each, _scaled(spec["replicas"] if each is current else 0))
        counts = current.get("status") or {}
        status = {name: counts[name] for name in ("replicas", "readyReplicas", "availableReplicas") if name in counts}
        self._store.update(DEPLOYMENTS, deployment, lambda after: after.update(status=status))

    def _replicate(self, replica_set: Object) -> float | None:
        uid, spec = replica_set["metadata"]["uid"], replica_set["spec"]
        pods = [each for each in self._store.list(PODS) if (controller_of(each) or {}).get("uid") == uid]
        for each in pods:
            if not matches_labels(spec["selector"], each["metadata"].get("labels") or {}):
                self._store.update(PODS, each, _release)
                pods = [other for other in pods if other is not each]
        again = self._fill(replica_set, [each for each in pods if active(each)])
        pods = [each for each in self._store.list(PODS) if (controller_of(each) or {}).get("uid") == uid]
        ready = sum(condition_is(each, "Ready") for each in pods)
        status = {"replicas": sum(active(each) for each in pods), "readyReplicas": ready, "availableReplicas": ready}
        self._store.update(REPLICA_SETS, replica_set, lambda after: after.update(status=status))
        return again

    def _fill(self, replica_set: Object, pods: Sequence[Object]) -> float | None:
        namespace, wanted = replica_set["metadata"]["namespace"], replica_set["spec"]["replicas"]
        for each in pods[wanted:]:
            self._deletion.delete(PODS, namespace, each["metadata"]["name"], DeleteOptions())
        for _ in range(wanted - len(pods)):
            try:
                self._registry.create(PODS, namespace, _pod(replica_set))
            except ApiError:
                return AGAIN_S
        return None


def _scaled(replicas: int) -> Callable[[Object], None]:
    return lambda after: after["spec"].update(replicas=replicas)


def _hash(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _replica_set(deployment: Object, name: str, number: str) -> Object:
    spec = copy.deepcopy(deployment["spec"])
    template = spec["template"]
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels[HASH] = number
    selector = spec["selector"]
    selector.setdefault("matchLabels", {})[HASH] = number
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
        },
        "spec": {"replicas": spec["replicas"], "selector": selector, "template": template},
        "status": {},
    }


def _pod(replica_set: Object) -> Object:
    template = copy.deepcopy(replica_set["spec"]["template"])
    metadata = template["metadata"]
    metadata["generateName"] = f"{replica_set['metadata']['name']}-"
    metadata["ownerReferences"] = [owner_reference(REPLICA_SETS, replica_set)]
    return {"metadata": metadata, "spec": template["spec"]}


def _release(after: Object) -> None:
    """A pod that has left the selector is nobody's."""
    left = [each for each in after["metadata"]["ownerReferences"] if not each.get("controller")]
    after["metadata"]["ownerReferences"] = left
    if not left:
        del after["metadata"]["ownerReferences"]
