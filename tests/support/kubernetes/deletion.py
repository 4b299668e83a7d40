"""Deletions: preconditions, grace, finalizers, and what becomes of dependents.

Who ends a pod's processes must not live here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.kubernetes import statuses
from tests.support.kubernetes.kinds import NAMESPACES, PODS, Kind
from tests.support.kubernetes.store import Change, Object, Store, stamp
from tests.support.kubernetes.work_queue import WorkQueue

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True)
class DeleteOptions:
    """As body and query have them."""

    policy: str | None = None
    grace: int | None = None
    uid: str | None = None
    version: str | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> "DeleteOptions":
        """Raises ApiError."""
        policy = given.get("propagationPolicy")
        if policy is None and given.get("orphanDependents") is not None:
            policy = "Orphan" if given["orphanDependents"] in {True, "true"} else "Background"
        if policy not in {None, "Orphan", "Background", "Foreground"}:
            raise statuses.bad_request(f'invalid propagationPolicy "{policy}"')
        grace = given.get("gracePeriodSeconds")
        conditions = given.get("preconditions") or {}
        return cls(
            policy, int(grace) if grace is not None else None, conditions.get("uid"), conditions.get("resourceVersion")
        )


class Deletion:
    """Deletes, and collects what has lost its owner."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue(self._collect)
        store.listeners.append(self._notice)

    def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> Object:
        """What a DELETE is answered with. Raises ApiError."""
        found = self._store.get(kind, namespace, name)
        _check(kind, found, options)
        if kind is PODS:
            return self._delete_pod(found, options)
        finalizers = _finalizers(kind, found, options)
        if ORPHAN in finalizers:
            self._orphan(found)
            finalizers.remove(ORPHAN)
        if finalizers or kind is NAMESPACES:
            left = self._store.update(kind, found, _dying(0, finalizers))
            self.queue.add((kind.plural, left["metadata"]["uid"]))
            return left
        removed = self._store.remove(kind, found)
        return removed if kind.answers_deleted else statuses.success(kind, name, found["metadata"]["uid"])

    def finish(self, kind: Kind, found: Object) -> None:
        """Remove an object that only waited to be let go; one with finalizers waits for those alone from now on."""
        if not found["metadata"].get("finalizers"):
            self._store.remove(kind, found)
        elif found["metadata"].get("deletionGracePeriodSeconds"):
            self._store.update(kind, found, lambda after: after["metadata"].update(deletionGracePeriodSeconds=0))

    def _delete_pod(self, pod: Object, options: DeleteOptions) -> Object:
        grace = options.grace
        if grace is None:
            grace = int(pod["spec"]["terminationGracePeriodSeconds"])
        grace = 1 if grace < 0 else grace
        if not pod["spec"].get("nodeName") or pod["status"].get("phase") in {"Succeeded", "Failed"}:
            grace = 0  # no node has anything to end
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") and grace >= metadata["deletionGracePeriodSeconds"]:
            return pod  # a deletion can only be made shorter
        finalizers = list(metadata.get("finalizers") or [])
        if grace == 0 and not finalizers:
            return self._store.remove(PODS, pod)
        return self._store.update(PODS, pod, _dying(grace, finalizers))

    def _notice(self, change: Change) -> None:
        uid = change.after["metadata"]["uid"]
        if change.type == "DELETED":
            self.queue.add(("", uid))
            for reference in change.after["metadata"].get("ownerReferences") or []:
                self.queue.add(("owner", reference["uid"]))
            if namespace := change.after["metadata"].get("namespace"):
                found = self._store.find(NAMESPACES, "", namespace)
                if found and found["metadata"].get("deletionTimestamp"):
                    self.queue.add((NAMESPACES.plural, found["metadata"]["uid"]))

    def _collect(self, key: tuple[str, str]) -> None:
        """Go on with the deletion of one object, or with what was left by one that is gone."""
        uid = key[1]
        found = next(((kind, each) for kind, each in self._store.everything() if each["metadata"]["uid"] == uid), None)
        if found is None:
            for kind, each in self._dependents(uid):
                self._delete(kind, each, None)
            return
        kind, owner = found
        if not owner["metadata"].get("deletionTimestamp"):
            return
        if kind is NAMESPACES:
            self._empty(owner)
        elif FOREGROUND in (owner["metadata"].get("finalizers") or []):
            self._foreground(kind, owner)

    def _foreground(self, kind: Kind, owner: Object) -> None:
        dependents = self._dependents(owner["metadata"]["uid"])
        for each_kind, each in dependents:
            if not each["metadata"].get("deletionTimestamp"):
                self._delete(each_kind, each, "Foreground" if each_kind is not PODS else None)
        if not self._dependents(owner["metadata"]["uid"]):
            self.finish(kind, self._store.update(kind, owner, _without(FOREGROUND)))

    def _empty(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        inside = [(kind, each) for kind, each in self._store.everything() if each["metadata"].get("namespace") == name]
        for kind, each in inside:
            self._delete(kind, each, "Background")
        if not any(each["metadata"].get("namespace") == name for _, each in self._store.everything()):
            self.finish(NAMESPACES, namespace)

    def _delete(self, kind: Kind, found: Object, policy: str | None) -> None:
        metadata = found["metadata"]
        if self._store.find(kind, metadata.get("namespace", ""), metadata["name"]):
            options = DeleteOptions(policy=policy or "Background")
            self.delete(kind, metadata.get("namespace", ""), metadata["name"], options)

    def _orphan(self, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        for kind, each in self._dependents(uid):
            self._store.update(kind, each, lambda after: _disown(after, uid))

    def _dependents(self, uid: str) -> list[tuple[Kind, Object]]:
        return [
            (kind, each)
            for kind, each in self._store.everything()
            if any(reference["uid"] == uid for reference in each["metadata"].get("ownerReferences") or [])
        ]


def _check(kind: Kind, found: Object, options: DeleteOptions) -> None:
    metadata = found["metadata"]
    for what, asked, is_ in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.version, metadata["resourceVersion"]),
    ):
        if asked is not None and asked != is_:
            why = f"Precondition failed: {what} in precondition: {asked}, {what} in object meta: {is_}"
            raise statuses.conflict(kind, metadata["name"], why)


def _finalizers(kind: Kind, found: Object, options: DeleteOptions) -> list[str]:
    """Those that the object has while it is being deleted."""
    own: list[str] = list(found["metadata"].get("finalizers") or [])
    policy = options.policy
    if policy is None:
        if FOREGROUND in own:
            return own
        policy = kind.default_propagation
    kept = [each for each in own if each not in {FOREGROUND, ORPHAN}]
    return kept + {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]}.get(policy, [])


def _dying(grace: int, finalizers: list[str]) -> Callable[[Object], None]:
    def change(after: Object) -> None:
        metadata = after["metadata"]
        metadata["deletionTimestamp"] = stamp(datetime.now(UTC) + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        if after["kind"] == NAMESPACES.name:
            after["status"] = {"phase": "Terminating"}

    return change


def _without(finalizer: str) -> Callable[[Object], None]:
    def change(after: Object) -> None:
        left = [each for each in after["metadata"].get("finalizers") or [] if each != finalizer]
        after["metadata"]["finalizers"] = left
        if not left:
            del after["metadata"]["finalizers"]

    return change


def _disown(after: Object, uid: str) -> None:
    left = [each for each in after["metadata"]["ownerReferences"] if each["uid"] != uid]
    after["metadata"]["ownerReferences"] = left
    if not left:
        del after["metadata"]["ownerReferences"]
