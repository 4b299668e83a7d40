"""Which clusters and namespaces an operator lets requests name, and what of a pod: patterns, `*` for any characters.

[CONTEXT/]NAMESPACE          --allow-kubernetes; a part that it does not name may not be named by a request
FIELD=PATTERN                --allow-pod; FIELD is one of FIELDS, a field that no pattern names may not be set
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from activities.admission.wildcards import fits
from steersman.contracts.kubernetes import KubernetesRuntime, template_fields

FIELDS = (
    *("image", "service_account", "secret", "claim", "queue", "pool"),
    *("priority_class", "runtime_class", "node_selector", "toleration", "template"),
)
"""What of a pod an operator has to allow: `secret` is of env_from_secrets and image_pull_secrets, `claim` of
workspace_volume, `node_selector` is KEY=VALUE, `toleration` its key, `template` a field of pod_template (spec.affinity,
metadata.labels.KEY).
"""


@dataclass(frozen=True)
class ClusterPattern:
    """A cluster, by its context in the worker's kubeconfig, and a namespace in it."""

    context: str | None
    namespace: str

    @classmethod
    def of(cls, text: str) -> "ClusterPattern":
        """Of an operator's `[CONTEXT/]NAMESPACE`. Raises ValueError."""
        context, slash, namespace = text.rpartition("/")
        if not namespace or (slash and not context):
            raise ValueError(f"{text!r} is not [CONTEXT/]NAMESPACE, where * stands for any characters")
        return cls(context if slash else None, namespace)

    def fits(self, runtime: KubernetesRuntime) -> bool:
        """Whether it allows what a request names."""
        if runtime.context is None:
            in_context = self.context in (None, "*")
        else:
            in_context = self.context is not None and fits(self.context, runtime.context)
        return in_context and (
            self.namespace == "*" if runtime.namespace is None else fits(self.namespace, runtime.namespace)
        )


@dataclass(frozen=True)
class PodPattern:
    """A value that a field of a pod may have."""

    field: str
    value: str

    @classmethod
    def of(cls, text: str) -> "PodPattern":
        """Of an operator's `FIELD=PATTERN`. Raises ValueError."""
        field, equals, value = text.partition("=")
        if not equals or not value or field not in FIELDS:
            raise ValueError(f"{text!r} is not FIELD=PATTERN, where FIELD is one of {', '.join(FIELDS)}")
        return cls(field, value)

    def fits(self, field: str, value: str) -> bool:
        """Whether it allows this value of that field."""
        return field == self.field and (_image_fits if field == "image" else fits)(self.value, value)


def _image_fits(pattern: str, image: str) -> bool:
    """A tag has no slash: `agent:*` is no image of the registry at port 5000 of a machine "agent"."""
    name, colon, tag = pattern.rpartition(":")
    if not colon or "/" in tag:
        return fits(pattern, image)
    found, _, its = (image if "@" in pattern else image.partition("@")[0]).rpartition(":")
    return "/" not in its and fits(name, found) and fits(tag, its)


def refused(patterns: Iterable[PodPattern], runtime: KubernetesRuntime) -> tuple[str, str] | None:
    """The first field of the request that no pattern allows, and its value; None where all are allowed."""
    return next(((field, value) for field, _, value in _refused(tuple(patterns), runtime)), None)


def lacking(patterns: Iterable[PodPattern], runtime: KubernetesRuntime) -> list[PodPattern]:
    """What an operator would have to allow beside these."""
    return [PodPattern(name, value) for _, name, value in _refused(tuple(patterns), runtime)]


def _refused(patterns: tuple[PodPattern, ...], runtime: KubernetesRuntime) -> Iterator[tuple[str, str, str]]:
    for field, name, value in _asked(runtime):
        if not any(each.fits(name, value) for each in patterns):
            yield field, name, value


def _asked(runtime: KubernetesRuntime) -> Iterator[tuple[str, str, str]]:
    """Field of the request, the operator's name for it, and the value."""
    yield "image", "image", runtime.image
    for name in ("service_account", "queue", "pool", "priority_class", "runtime_class"):
        if value := getattr(runtime, name):
            yield name, name, value
    for field in ("env_from_secrets", "image_pull_secrets"):
        for value in getattr(runtime, field):
            yield field, "secret", value
    if runtime.workspace_volume != "emptyDir":
        yield "workspace_volume", "claim", runtime.workspace_volume
    for key, value in runtime.node_selector.items():
        yield "node_selector", "node_selector", f"{key}={value}"
    for toleration in runtime.tolerations:
        yield "tolerations", "toleration", toleration.key or "*"
    for field in template_fields(runtime.pod_template):
        yield "pod_template", "template", field
