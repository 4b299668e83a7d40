"""What a cluster's API says before anything is made in it: whether it answers, what may be done there, what is left.

What runs in the cluster must not live here.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from activities.doctor import Check
from activities.runtimes.kubernetes.api import ApiRefused, KubernetesApi
from steersman.contracts.kubernetes import KubernetesRuntime

ROLE: Final = "deploy/kubernetes/access.yaml has a Role with all that a worker needs (steersman-worker)"


class Right(NamedTuple):
    """A verb of RBAC on a resource; `without`: what does not work where a worker lacks it."""

    verb: str
    group: str
    resource: str
    without: str
    is_needed: bool = True
    """A run fails without it."""

    @property
    def name(self) -> str:
        """As people say it."""
        return f"{self.verb} {self.resource}"


RIGHTS: Final = (
    Right("get", "batch", "jobs", "no run has a pod"),
    Right("create", "batch", "jobs", "no run has a pod"),
    Right("delete", "batch", "jobs", "pods stay when their runs are over"),
    Right("list", "batch", "jobs", "a Job that a lost worker has made stays for 7 days", is_needed=False),
    Right("get", "", "pods", "no run has a pod"),
    Right("list", "", "pods", "no run has a pod"),
    Right("delete", "", "pods", "a pod that outlives its grace stays"),
    Right("patch", "", "pods", "no pod is taken out of a pool: each is made", is_needed=False),
    Right("get", "", "pods/exec", "nothing can be run in a pod"),
    Right("create", "", "pods/exec", "nothing can be run in a pod: servers since 1.35 ask for it"),
    Right("list", "", "events", "nobody is told why a Job has no pod, as over a quota", is_needed=False),
)
"""All that a worker asks of the agents' namespace."""


async def reached(api: KubernetesApi) -> Check:
    """The server's version. Raises ApiRefused, MachineUnreachable."""
    await api.connect()
    begun = time.monotonic()
    version = await api.get("/version")
    took_ms = 1000 * (time.monotonic() - begun)
    return Check(check="cluster", detail=f"{api.name}: Kubernetes {version.get('gitVersion')}, within {took_ms:.0f} ms")


async def access(api: KubernetesApi, namespace: str) -> list[Check]:
    """Whether the worker's account may do what a worker does. Raises ApiRefused, MachineUnreachable."""
    may = await asyncio.gather(*(_may(api, namespace, right) for right in RIGHTS))
    lacking = [right for right, allowed in zip(RIGHTS, may, strict=True) if not allowed]
    if not lacking:
        return [Check(check="access", detail=f"all {len(RIGHTS)} rights that a worker uses in {namespace}")]
    return [_lack(right, namespace) for right in lacking]


def _lack(right: Right, namespace: str) -> Check:
    detail = f"the worker's account may not {right.name} in {namespace}: {right.without}"
    if right.is_needed:
        return Check(check=f"access: {right.name}", ok=False, detail=detail, hint=ROLE)
    return Check(check=f"access: {right.name}", detail=f"{detail}; {ROLE}")


async def _may(api: KubernetesApi, namespace: str, right: Right) -> bool:
    resource, _, part = right.resource.partition("/")
    asked = {"namespace": namespace, "verb": right.verb, "group": right.group, "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, **({"subresource": part} if part else {})}},
    }
    answer = await api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return (answer.get("status") or {}).get("allowed") is True


async def quota(api: KubernetesApi, namespace: str, runtime: KubernetesRuntime) -> Check:
    """What is left of the namespace's quotas. Raises MachineUnreachable."""
    try:
        answer = await api.get(f"/api/v1/namespaces/{quote(namespace)}/resourcequotas")
    except ApiRefused as error:
        return Check(check="quota", detail=f"it may not be read: {error}")
    asked = _asked(runtime)
    told, short = [], []
    for each in answer.get("items") or []:
        for resource, left, hard in _left(each.get("status") or {}):
            told.append(f"{resource} {left:f} of {hard}")
            if not _is_scoped(each) and asked.get(resource, Decimal(0)) > left:
                short.append(f"{each['metadata']['name']}: {resource}")
    if short:
        hint = f"raise it, or wait: a pod needs more than is left of {', '.join(short)}"
        return Check(check="quota", ok=False, detail=f"left: {', '.join(told)}", hint=hint)
    return Check(check="quota", detail=f"left: {', '.join(told)}" if told else f"{namespace} has none")


def _asked(runtime: KubernetesRuntime) -> dict[str, Decimal]:
    """What one pod takes, by a quota's names."""
    found = {"pods": Decimal(1), "count/pods": Decimal(1), "count/jobs.batch": Decimal(1)}
    limits = runtime.resources.limits
    for name, value in {**limits, **runtime.resources.requests}.items():
        found |= {f"requests.{name}": quantity(value), name: quantity(value)}
    return found | {f"limits.{name}": quantity(value) for name, value in limits.items()}


def _left(status: Mapping[str, Any]) -> Iterator[tuple[str, Decimal, str]]:
    used = status.get("used") or {}
    for resource, hard in sorted((status.get("hard") or {}).items()):
        try:
            yield resource, quantity(str(hard)) - quantity(str(used.get(resource, 0))), str(hard)
        except InvalidOperation:
            continue  # in a unit that nobody here knows


def _is_scoped(found: Mapping[str, Any]) -> bool:
    """Whether it counts some pods only."""
    spec = found.get("spec") or {}
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


_UNITS: Final = {
    "m": Decimal("0.001"),
    **{name: Decimal(1000) ** power for power, name in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{name}i": Decimal(1024) ** (power + 1) for power, name in enumerate("KMGTPE")},
}


def quantity(text: str) -> Decimal:
    """As Kubernetes writes amounts: 500m, 2, 4Gi. Raises InvalidOperation."""
    number = text.rstrip("mkKMGTPEi")
    unit = text[len(number) :]
    if unit not in _UNITS:
        raise InvalidOperation(text)
    return Decimal(number) * _UNITS[unit]
