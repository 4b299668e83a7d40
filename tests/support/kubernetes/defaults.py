"""What Kubernetes fills in, or drops, of an object that is created.

What it refuses must not live here.
"""

import base64
from typing import Any

from tests.support.kubernetes.kinds import CLAIMS, DEPLOYMENTS, JOBS, NAMESPACES, PODS, SECRETS, Kind
from tests.support.kubernetes.settings import Settings

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"


def fill_in(kind: Kind, made: dict[str, Any], settings: Settings) -> None:
    """Change an object that has its name and uid into what is kept."""
    if kind is PODS:
        fill_in_pod_spec(made.setdefault("spec", {}))
        made["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    elif kind is JOBS:
        _job(made, settings)
    elif kind is SECRETS:
        made.setdefault("type", "Opaque")
        for key, text in (made.pop("stringData", None) or {}).items():
            made.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
    elif kind is DEPLOYMENTS:
        made["spec"].setdefault("replicas", 1)
        fill_in_pod_spec(made["spec"]["template"].setdefault("spec", {}))
        made["status"] = {}
    elif kind is NAMESPACES:
        made["status"] = {"phase": "Active"}
        made["spec"] = {"finalizers": ["kubernetes"]}
    elif kind is CLAIMS:
        made["status"] = {"phase": "Bound", "accessModes": (made.get("spec") or {}).get("accessModes", [])}


def fill_in_pod_spec(spec: dict[str, Any]) -> None:
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("securityContext", {}),
        ("schedulerName", "default-scheduler"),
    ):
        if spec.get(name) is None:
            spec[name] = value
    for container in (*(spec.get("initContainers") or []), *(spec.get("containers") or [])):
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")
    for volume in spec.get("volumes") or []:
        if "secret" in volume:
            volume["secret"].setdefault("defaultMode", 0o644)


def _job(made: dict[str, Any], settings: Settings) -> None:
    spec = made.setdefault("spec", {})
    for name in settings.release.dropped_job_fields:
        spec.pop(name, None)
    for name, value in (("parallelism", 1), ("completions", 1), ("backoffLimit", 6)):
        if spec.get(name) is None:
            spec[name] = value
    if "suspend" not in settings.release.dropped_job_fields:
        spec.setdefault("suspend", False)
    template = spec.setdefault("template", {})
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    if labels:
        made["metadata"].setdefault("labels", dict(labels))
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    labels |= {"controller-uid": uid, "job-name": name}
    old = bool(settings.release.dropped_job_fields)
    if not old:
        labels |= {CONTROLLER_UID: uid, JOB_NAME: name}
    spec["selector"] = {"matchLabels": {"controller-uid" if old else CONTROLLER_UID: uid}}
    pod = template.setdefault("spec", {})
    fill_in_pod_spec(pod)
    made["status"] = {}
