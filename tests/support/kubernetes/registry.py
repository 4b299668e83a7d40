"""The verbs on objects: what clients and the cluster's own controllers create and change goes through here.

Deletions have a module of their own. How a request is read must not live here.
"""

import copy
import uuid
from collections.abc import Callable
from typing import Any

from tests.support.kubernetes import statuses
from tests.support.kubernetes.defaults import fill_in
from tests.support.kubernetes.deletion import Deletion
from tests.support.kubernetes.kinds import JOBS, NAMESPACES, PODS, Kind
from tests.support.kubernetes.patches import patched
from tests.support.kubernetes.settings import Settings
from tests.support.kubernetes.statuses import Cause
from tests.support.kubernetes.store import Object, Store, suffix
from tests.support.kubernetes.validation import validate, validate_change

KEPT_METADATA = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
NAME_MAX = 63


class Registry:
    """Creates, replaces and patches, with what Kubernetes fills in and refuses."""

    def __init__(self, store: Store, deletion: Deletion, settings: Settings) -> None:
        self.store, self.deletion, self.settings = store, deletion, settings

    def create(self, kind: Kind, namespace: str, given: Object) -> Object:
        """Raises ApiError."""
        made = copy.deepcopy(given)
        self._identify(kind, namespace, made)
        if kind.namespaced:
            self._check_namespace(kind, namespace, made["metadata"]["name"])
        if self.store.find(kind, namespace, made["metadata"]["name"]):
            raise statuses.already_exists(kind, made["metadata"]["name"])
        if kind is PODS and self.settings.pods_refused:
            raise statuses.forbidden(kind, made["metadata"]["name"], self.settings.pods_refused)
        validate_shape(kind, made)
        fill_in(kind, made, self.settings)
        validate(kind, made)
        return self.store.create(kind, made)

    def replace(self, kind: Kind, namespace: str, name: str, given: Object) -> Object:
        """Raises ApiError."""
        if given.get("metadata", {}).get("name") != name:
            raise statuses.bad_request(
                f"the name of the object ({given.get('metadata', {}).get('name')}) does not match the name on the URL "
                f"({name})"
            )
        return self._change(kind, namespace, name, lambda _: given)

    def patch(self, kind: Kind, namespace: str, name: str, patch: Any, content_type: str) -> Object:
        """Raises ApiError."""
        return self._change(kind, namespace, name, lambda found: patched(found, patch, content_type))

    def _change(self, kind: Kind, namespace: str, name: str, change: Callable[[Object], Object]) -> Object:
        found = self.store.get(kind, namespace, name)
        wanted = copy.deepcopy(change(found))
        asked = wanted.get("metadata", {}).get("resourceVersion")
        if asked not in {None, "", found["metadata"]["resourceVersion"]}:
            raise statuses.conflict(kind, name)
        if wanted["metadata"].get("uid") not in {None, found["metadata"]["uid"]}:
            why = (
                f"Precondition failed: UID in precondition: {wanted['metadata']['uid']}, "
                f"UID in object meta: {found['metadata']['uid']}"
            )
            raise statuses.conflict(kind, name, why)
        _keep(kind, found, wanted)
        if kind is JOBS:
            for field in self.settings.release.dropped_job_fields:
                wanted["spec"].pop(field, None)
        validate_change(kind, found, wanted)

        def put(after: Object) -> None:
            after.clear()
            after.update(wanted)

        changed = self.store.update(kind, found, put)
        metadata = changed["metadata"]
        dying = metadata.get("deletionTimestamp") and found["metadata"].get("finalizers")
        if dying and not (kind is PODS and metadata["deletionGracePeriodSeconds"]):
            self.deletion.finish(kind, changed)
        return changed

    def _identify(self, kind: Kind, namespace: str, made: Object) -> None:
        metadata = made.setdefault("metadata", {})
        if kind.namespaced:
            if metadata.get("namespace") not in {None, "", namespace}:
                raise statuses.bad_request(
                    f"the namespace of the provided object does not match the namespace sent on the request "
                    f"({metadata['namespace']} != {namespace})"
                )
            metadata["namespace"] = namespace
        if metadata.get("resourceVersion"):
            raise statuses.bad_request("resourceVersion should not be set on objects to be created")
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "creationTimestamp"):
            metadata.pop(name, None)
        for name in ("labels", "annotations", "ownerReferences", "finalizers"):
            if metadata.get(name) is None:
                metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                why = Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
                raise statuses.invalid(kind, "", [why])
            metadata["name"] = metadata["generateName"][: NAME_MAX - 5] + suffix()

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        found = self.store.find(NAMESPACES, "", namespace)
        if found is None:
            raise statuses.not_found(NAMESPACES, namespace)
        if found["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise statuses.forbidden(kind, name, why)


def validate_shape(kind: Kind, made: Object) -> None:
    """Raises ApiError where parts are of no use to what fills in the rest."""
    spec = made.get("spec")
    if spec is not None and not isinstance(spec, dict):
        raise statuses.bad_request(
            f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: json: cannot unmarshal '
            f"into Go struct field {kind.name}.spec"
        )
    for name, wanted in (("kind", kind.name), ("apiVersion", kind.api_version)):
        if made.get(name) not in {None, wanted}:
            raise statuses.bad_request(
                f"the object provided is unrecognized (must be of type {kind.name}): {name} {made[name]!r}"
            )


def _keep(kind: Kind, found: Object, wanted: Object) -> None:
    """What no client changes: the status of pods and Jobs has a way of its own."""
    metadata = wanted["metadata"]
    for name in KEPT_METADATA:
        if name in found["metadata"]:
            metadata[name] = found["metadata"][name]
        else:
            metadata.pop(name, None)
    metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
    wanted["kind"], wanted["apiVersion"] = kind.name, kind.api_version
    if "status" in found:
        wanted["status"] = found["status"]
