"""What Kubernetes refuses of an object that is created: names, labels, sizes, and what matters of pods and Jobs.

Far from all of it: what a runtime's objects could be wrong in. What is filled in must not live here.
"""

import re
from collections.abc import Iterator
from typing import Any

from tests.support.kubernetes import statuses
from tests.support.kubernetes.kinds import EVENTS, JOBS, NAMESPACES, PODS, SECRETS, Kind
from tests.support.kubernetes.statuses import Cause

LABEL = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
ANNOTATIONS_MAX = 256 << 10
SECRET_MAX = 1 << 20
CHANGEABLE_POD_FIELDS = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName")


def validate(kind: Kind, made: dict[str, Any]) -> None:
    """Raises ApiError."""
    causes = [*_metadata(kind, made["metadata"])]
    if kind is PODS:
        causes += _pod_spec(made.get("spec") or {}, "spec")
    elif kind is JOBS:
        causes += _job(made)
    elif kind is SECRETS:
        causes += _secret(made)
    if causes:
        raise statuses.invalid(kind, made["metadata"].get("name", ""), causes)


def validate_change(kind: Kind, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raises ApiError where what must stay was changed."""
    causes = [*_metadata(kind, after["metadata"])]
    if kind is PODS and _fixed_pod_spec(before) != _fixed_pod_spec(after):
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing"
            " tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        )
        causes.append(Cause("spec", why, "FieldValueForbidden"))
    if kind is JOBS:
        causes += [
            Cause(f"spec.{name}", "Invalid value: field is immutable")
            for name in ("selector", "template", "completions")
            if before["spec"].get(name) != after["spec"].get(name)
        ]
    if causes:
        raise statuses.invalid(kind, after["metadata"]["name"], causes)


def _metadata(kind: Kind, metadata: dict[str, Any]) -> Iterator[Cause]:
    name = metadata.get("name", "")
    if not name:
        why = "Required value: name or generateName is required"
        yield Cause("metadata.name", why, "FieldValueRequired")
    elif not re.fullmatch(DNS_LABEL if kind is NAMESPACES else DNS_SUBDOMAIN, name) and kind is not EVENTS:
        why = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
            r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        )
        yield Cause("metadata.name", f'Invalid value: "{name}": {why}')
    elif len(name) > 253:
        yield Cause("metadata.name", f'Invalid value: "{name}": must be no more than 253 characters')
    yield from _labels(metadata.get("labels") or {}, "metadata.labels")
    annotations = metadata.get("annotations") or {}
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATIONS_MAX:
        why = f"Too long: must have at most {ANNOTATIONS_MAX} bytes"
        yield Cause("metadata.annotations", why, "FieldValueTooLong")


def _labels(labels: dict[str, Any], field: str) -> Iterator[Cause]:
    for value in labels.values():
        if len(value) > 63:
            yield Cause(field, f'Invalid value: "{value}": must be no more than 63 characters')
        if not re.fullmatch(LABEL, value):
            why = (
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and "
                "must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', "
                f"regex used for validation is '{LABEL}')"
            )
            yield Cause(field, f'Invalid value: "{value}": {why}')


def _job(made: dict[str, Any]) -> Iterator[Cause]:
    template = (made.get("spec") or {}).get("template") or {}
    spec = template.get("spec") or {}
    yield from _labels((template.get("metadata") or {}).get("labels") or {}, "spec.template.labels")
    yield from _pod_spec(spec, "spec.template.spec")
    policy = spec.get("restartPolicy")
    if policy not in {"OnFailure", "Never"}:
        why = f'Unsupported value: "{policy}": supported values: "OnFailure", "Never"'
        yield Cause("spec.template.spec.restartPolicy", why, "FieldValueNotSupported")
    for name in ("backoffLimit", "parallelism", "completions", "ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        value = made["spec"].get(name)
        if value is not None and value < 0:
            yield Cause(f"spec.{name}", f"Invalid value: {value}: must be greater than or equal to 0")


def _pod_spec(spec: dict[str, Any], field: str) -> Iterator[Cause]:
    containers = spec.get("containers") or []
    if not containers:
        yield Cause(f"{field}.containers", "Required value", "FieldValueRequired")
    volumes = {each["name"] for each in spec.get("volumes") or []}
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for number, each in enumerate(spec.get(group) or []):
            yield from _container(each, f"{field}.{group}[{number}]", volumes, names)


def _container(container: dict[str, Any], field: str, volumes: set[str], names: set[str]) -> Iterator[Cause]:
    name = container.get("name", "")
    if not re.fullmatch(DNS_LABEL, name):
        yield Cause(f"{field}.name", "Required value" if not name else f'Invalid value: "{name}"', "FieldValueRequired")
    if name in names:
        yield Cause(f"{field}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
    names.add(name)
    if not container.get("image"):
        yield Cause(f"{field}.image", "Required value", "FieldValueRequired")
    for number, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            why = f'Not found: "{mount.get("name")}"'
            yield Cause(f"{field}.volumeMounts[{number}].name", why, "FieldValueNotFound")
        if not mount.get("mountPath"):
            yield Cause(f"{field}.volumeMounts[{number}].mountPath", "Required value", "FieldValueRequired")


def _secret(made: dict[str, Any]) -> Iterator[Cause]:
    if sum(len(each) for each in (made.get("data") or {}).values()) * 3 // 4 > SECRET_MAX:
        yield Cause("data", f"Too long: must have at most {SECRET_MAX} bytes", "FieldValueTooLong")


def _fixed_pod_spec(pod: dict[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in pod["spec"].items() if key not in CHANGEABLE_POD_FIELDS}
    for group in ("initContainers", "containers"):
        spec[group] = [{**each, "image": ""} for each in spec.get(group) or []]
    return spec
