"""The Job of a copy of a workspace: its pod waits, hardened, and nothing of the run is in it but its name. And a warm
pool: a Deployment whose pods are the same but for the names, so that a copy can take one of them.

What the agent is told, secrets among it, comes later, by exec. Who makes Jobs must not live here.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steersman.contracts.kubernetes import AGENT_CONTAINER, MOUNTS, PREFIX, KubernetesRuntime

HOME, TMP = MOUNTS
COPY: Final = f"{PREFIX}copy"
"""The label with the copy's id."""
OWNER: Final = f"{PREFIX}owner"
"""The label of all that belongs to one state directory of one Temporal namespace."""
RUN: Final = f"{PREFIX}run"
"""The annotation with the run or loop, as people know it."""
SPEC: Final = f"{PREFIX}spec"
"""The annotation with a hash of what the Job, or a pool's pod, was made of."""
POOL: Final = f"{PREFIX}pool"
"""The label of a pod that waits in a pool; who takes it takes the label away."""
TAKEN_FROM: Final = f"{PREFIX}taken-from"
"""The label with the pool of a pod that was taken."""
_KEPT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations by which a cluster that makes itself smaller leaves the pod alone."""
USER: Final = 1000
RESTARTS: Final = 20
"""A container that ends is started again in its pod, with all files, until then: see `pod_init`."""
KEEP_S: Final = 7 * 86400
"""Seconds after which a pod ends that nobody has asked for anything: its leader is lost, and so is its sweep."""
_INIT = Path(__file__).parents[1] / "remote_program" / "pod_init.py"


def job_name(copy: str) -> str:
    """One Job for a copy."""
    return f"steersman-{copy}"


def pool(runtime: KubernetesRuntime, replicas: int) -> dict[str, Any]:
    """A Deployment that keeps so many pods waiting in the pool that the runtime names.

    It lets go of a pod that loses the label, and makes another one.
    """
    assert runtime.pool
    labels = {"app.kubernetes.io/name": "steersman-agent", "app.kubernetes.io/managed-by": "steersman"}
    template = _template(runtime, {**labels, POOL: runtime.pool}, {SPEC: pod_digest(runtime)})
    for kept in _KEPT:  # nothing is lost with a pod that waits
        template["metadata"]["annotations"].pop(kept, None)
    template["spec"]["restartPolicy"] = "Always"  # a Deployment has no other
    namespace = {"namespace": runtime.namespace} if runtime.namespace else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"steersman-pool-{runtime.pool}", **namespace, "labels": labels},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {POOL: runtime.pool}}, "template": template},
    }


def taken(found: Mapping[str, Any], runtime: KubernetesRuntime, copy: str, owner: str, run: str) -> dict[str, Any]:
    """The patch by which a pool's pod becomes this copy's; refused where the pod has changed since it was found."""
    labels = {POOL: None, TAKEN_FROM: runtime.pool, COPY: copy, OWNER: owner}
    version = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
    return {"metadata": {**version, "labels": labels, "annotations": {**_KEPT, RUN: run[:1000]}}}


def pod_digest(runtime: KubernetesRuntime) -> str:
    """Of all that a request, and this version of Steersman, say of a pod; none of the names of a copy."""
    return _digest(_template(runtime, {}, {}))


def job(runtime: KubernetesRuntime, copy: str, owner: str, run: str) -> dict[str, Any]:
    """The Job, as it is created. `copy`: the copy's id; `owner`: see OWNER; `run`: see RUN."""
    labels = {
        "app.kubernetes.io/name": "steersman-agent",
        "app.kubernetes.io/managed-by": "steersman",
        COPY: copy,
        OWNER: owner,
    }
    spec: dict[str, Any] = {
        "backoffLimit": RESTARTS,
        "completions": 1,
        "parallelism": 1,
        "ttlSecondsAfterFinished": 3600,
        "template": _template(runtime, labels, {RUN: run[:1000]}),
    }
    queue = {"kueue.x-k8s.io/queue-name": runtime.queue} if runtime.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(copy),
            "labels": {**labels, **queue},
            "annotations": {RUN: run[:1000], SPEC: _digest(spec)},
        },
        # Kueue lets a suspended Job begin; without it, or where a cluster drops the field, the Job begins at once.
        "spec": {**spec, "suspend": True} if runtime.queue else spec,
    }


def _digest(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def _template(runtime: KubernetesRuntime, labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    given: Any = runtime.pod_template
    metadata, further = given.get("metadata") or {}, dict(given.get("spec") or {})
    containers = further.pop("containers", None) or [{}]
    pod_security = further.pop("securityContext", None) or {}
    claim = runtime.workspace_volume
    spec: dict[str, Any] = {
        **further,
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": runtime.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
            **pod_security,
        },
        "containers": [_container(runtime, containers)],
        "volumes": [
            {"name": "home", "emptyDir": {}}
            if claim == "emptyDir"
            else {"name": "home", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    optional = {
        "serviceAccountName": runtime.service_account,
        "nodeSelector": runtime.node_selector,
        "tolerations": [each.model_dump(exclude_none=True, exclude_defaults=True) for each in runtime.tolerations],
        "runtimeClassName": runtime.runtime_class,
        "priorityClassName": runtime.priority_class,
        "imagePullSecrets": [{"name": name} for name in runtime.image_pull_secrets],
    }
    return {
        "metadata": {
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**_KEPT, **(metadata.get("annotations") or {}), **annotations},
        },
        "spec": {**spec, **{name: value for name, value in optional.items() if value}},
    }


def _container(runtime: KubernetesRuntime, given: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for each in given:
        merged.update(each)
    return {
        "name": AGENT_CONTAINER,
        "image": runtime.image,
        "command": [runtime.python, "-I", "-S", "-c", _INIT.read_text(encoding="utf-8")],
        "args": [str(runtime.grace_s), str(KEEP_S)],
        "workingDir": HOME,
        "env": [{"name": "HOME", "value": HOME}, {"name": "TMPDIR", "value": TMP}],
        "envFrom": [{"secretRef": {"name": name}} for name in runtime.env_from_secrets],
        "resources": runtime.resources.model_dump(exclude_defaults=True),
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **(merged.get("securityContext") or {}),
        },
        "volumeMounts": [{"name": "home", "mountPath": HOME}, {"name": "tmp", "mountPath": TMP}],
    }
