"""`runtime` of a RunRequest whose agent lives in a pod: what a client may say of it.

What is not here nobody can ask for. A pod is hardened (see activities/runtimes/kubernetes/manifest.py), and a
`pod_template` may only set what leaves it so: each field of it that may be set stands in `_TEMPLATE`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from steersman.contracts.model import JsonObject, StrictModel, Text

AGENT_CONTAINER = "agent"
"""The name of the container in which the agent lives."""
MAX_LEASE_S = 900
"""By then a shim that no leader reaches has ended its agent: so a pod on a lost node may be replaced."""
MOUNTS = ("/home/agent", "/tmp")  # noqa: S108 - in the pod
"""What of a pod's file system may be written; the first one is the home, and has the copy of the workspace."""
PREFIX = "steersman.dev/"
"""Labels and annotations that begin so are ours."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_CONTEXT = re.compile(r"[A-Za-z0-9_@:/.+-]{1,250}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,500}")
_PROGRAM = re.compile(r"[A-Za-z0-9_/~.+-]{1,1000}")
_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?")


def _matching(form: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not form.fullmatch(text) or text.startswith("-"):
            raise ValueError(f"must be {what}")
        return text

    return AfterValidator(check)


ObjectName = Annotated[str, _matching(_NAME, "the name of a Kubernetes object")]
Quantity = Annotated[str, _matching(_QUANTITY, "a quantity, as 500m, 2 or 4Gi")]
PoolName = Annotated[str, Field(max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
Key = Annotated[str, Field(max_length=316, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")]


class Resources(StrictModel):
    """As in a container's `resources`: cpu, memory, ephemeral-storage, and what a cluster offers beside them."""

    requests: dict[Key, Quantity] = Field(default_factory=dict, max_length=20)
    limits: dict[Key, Quantity] = Field(default_factory=dict, max_length=20)


class Toleration(StrictModel):
    """As in a pod's `tolerations`."""

    key: Key | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesRuntime(StrictModel):
    """In a pod of a Job, in a copy of the workspace. The operator allows cluster, namespace, image and all that is
    named (--allow-kubernetes, --allow-pod).
    """

    kind: Literal["kubernetes"]
    image: Annotated[str, _matching(_IMAGE, "an image")]
    """It has Python 3.9 or newer, git, and the agent's program."""
    namespace: ObjectName | None = None
    """null: the context's."""
    context: Annotated[str, _matching(_CONTEXT, "a context of the worker's kubeconfig")] | None = None
    """null: the worker's own: the current one of its kubeconfig, or the cluster in which it is a pod itself."""
    service_account: ObjectName | None = None
    resources: Resources = Resources()
    node_selector: dict[Key, LabelValue] = Field(default_factory=dict, max_length=20)
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=20)
    runtime_class: ObjectName | None = None
    env_from_secrets: tuple[ObjectName, ...] = Field(default=(), max_length=20)
    """Secrets of the namespace: what is in them is in the environment of every process of the pod."""
    workspace_volume: ObjectName | Literal["emptyDir"] = "emptyDir"
    """emptyDir: lives as long as the pod. Else the name of a claim: what is in it outlives the pod."""
    image_pull_secrets: tuple[ObjectName, ...] = Field(default=(), max_length=20)
    queue: LabelValue | None = None
    """A queue of Kueue, which decides when the Job may begin."""
    priority_class: ObjectName | None = None
    pool: PoolName | None = None
    """A warm pool: a pod that waits there, and is as this request would have it made, is taken where there is one."""
    pod_template: JsonObject = Field(default_factory=dict)
    """Further fields of the pod, as in a Job's `template`: those of `_TEMPLATE`; what would soften it is refused."""
    grace_s: Annotated[int, Field(ge=5, le=3600)] = 30
    """Seconds from SIGTERM to SIGKILL where the pod is deleted."""
    start_s: Annotated[int, Field(ge=5, le=86400)] = 900
    """Seconds that the cluster has to start the pod, once the queue has let it begin."""
    backup_s: Annotated[int, Field(ge=0, le=86400)] = 60
    """Seconds between backups of the copy and the agent's session, which are kept by the worker while the agent works;
    0: none. A claim needs none.
    """
    python: Annotated[Text, _matching(_PROGRAM, "the name or the path of a Python there")] = "python3"

    @model_validator(mode="after")
    def _hardened(self) -> "KubernetesRuntime":
        check_template(self.pod_template)
        if self.pool and self.has_claim:
            raise ValueError("pool: pods of a pool have no claim: workspace_volume must be emptyDir")
        if self.pool and self.queue:
            raise ValueError("pool: its pods wait for no queue: leave out one of both")
        return self

    @property
    def has_claim(self) -> bool:
        """What is in the workspace's volume outlives the pod."""
        return self.workspace_volume != "emptyDir"

    @property
    def name(self) -> str:
        """CONTEXT/NAMESPACE, as far as they are given."""
        return "/".join(filter(None, (self.context, self.namespace))) or "kubernetes"


def check_template(template: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the field, where a template sets what it may not."""
    _check(template, _TEMPLATE, "pod_template")
    for container in template.get("spec", {}).get("containers", []):
        if container.get("name") != AGENT_CONTAINER:
            raise ValueError(f"pod_template.spec.containers: only {AGENT_CONTAINER} may be changed, by its name")


def template_fields(template: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that a template sets, as an operator names them: spec.affinity, metadata.labels.KEY."""
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    named = [f"metadata.{field}.{key}" for field in metadata for key in metadata[field]]
    return (*named, *(f"spec.{field}" for field in spec))


_ANY = object()


def _texts(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be an object")  # noqa: TRY004 - pydantic's validators raise ValueError
    for key, text in value.items():
        if not isinstance(text, str):
            raise ValueError(f"{where}.{key}: must be a string")  # noqa: TRY004 - the same
        if key.startswith(PREFIX) or key.partition("/")[0].endswith("kubernetes.io"):
            raise ValueError(f"{where}: {key} is not a request's to set")


def _not_root(value: Any, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{where}: must not be root")


def _true(value: Any, where: str) -> None:
    if value is not True:
        raise ValueError(f"{where}: must stay true")


def _false(value: Any, where: str) -> None:
    if value is not False:
        raise ValueError(f"{where}: must stay false")


_SECURITY: dict[str, Any] = {"runAsUser": _not_root, "runAsGroup": _not_root, "runAsNonRoot": _true}
_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": _texts, "annotations": _texts},
    "spec": {
        "affinity": _ANY,
        "topologySpreadConstraints": _ANY,
        "schedulerName": _ANY,
        "dnsPolicy": _ANY,
        "dnsConfig": _ANY,
        "hostAliases": _ANY,
        "enableServiceLinks": _false,
        "automountServiceAccountToken": _false,
        "securityContext": {**_SECURITY, "fsGroup": _not_root, "fsGroupChangePolicy": _ANY},
        "containers": [
            {
                "name": _ANY,
                "securityContext": {
                    **_SECURITY,
                    "allowPrivilegeEscalation": _false,
                    "readOnlyRootFilesystem": _true,
                },
            }
        ],
    },
}
"""What a template may set: `_ANY` as it is, a function as it judges."""


def _check(value: Any, form: Any, where: str) -> None:
    if form is _ANY:
        return
    if callable(form):
        form(value, where)
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise ValueError(f"{where}: must be a list")  # noqa: TRY004 - the same
        for each in value:
            _check(each, form[0], where)
    elif not isinstance(value, dict):
        raise ValueError(f"{where}: must be an object")  # noqa: TRY004
    else:
        for key, each in value.items():
            if key not in form:
                raise ValueError(f"{where}.{key}: is not a request's to set")
            _check(each, form[key], f"{where}.{key}")
