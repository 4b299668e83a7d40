"""The objects of a copy in its cluster: one Job, and its pods. What is done about them must not live here."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from activities.runtimes.kubernetes import manifest
from activities.runtimes.kubernetes.api import ApiRefused, KubernetesApi
from steersman.contracts.kubernetes import KubernetesRuntime


@dataclass(frozen=True)
class CopyObjects:
    """`copy`: the copy's id, `owner`: whose it is (see manifest.OWNER)."""

    api: KubernetesApi
    runtime: KubernetesRuntime
    copy: str
    owner: str

    @property
    def name(self) -> str:
        """As people know it."""
        return f"{self.runtime.name}: Job {manifest.job_name(self.copy)}"

    @property
    def namespace(self) -> str:
        """Known once something was asked."""
        return self.runtime.namespace or self.api.namespace

    @property
    def jobs_path(self) -> str:
        """Where Jobs are made."""
        return f"/apis/batch/v1/namespaces/{quote(self.namespace)}/jobs"

    @property
    def path(self) -> str:
        """Of the Job."""
        return f"{self.jobs_path}/{manifest.job_name(self.copy)}"

    @property
    def pods_path(self) -> str:
        """Where pods are."""
        return f"/api/v1/namespaces/{quote(self.namespace)}/pods"

    def pod_path(self, pod: dict[str, Any]) -> str:
        """Of a pod that was found."""
        return f"{self.pods_path}/{quote(pod['metadata']['name'])}"

    async def pods(self) -> list[dict[str, Any]]:
        """Newest first. Raises ApiRefused, MachineUnreachable."""
        selector = f"{manifest.COPY}={self.copy},{manifest.OWNER}={self.owner}"
        answer = await self.api.get(self.pods_path, labelSelector=selector)
        found: list[dict[str, Any]] = answer.get("items") or []
        return sorted(found, key=lambda each: str(each["metadata"].get("creationTimestamp")), reverse=True)

    async def job(self, known: str | None) -> dict[str, Any] | None:
        """The Job, if it is this one's: `known`, its uid. Raises ApiRefused, MachineUnreachable."""
        try:
            job = await self.api.get(self.path)
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise
        labels = job["metadata"].get("labels") or {}
        is_ours = job["metadata"]["uid"] == known or labels.get(manifest.OWNER) == self.owner
        return job if is_ours else None

    async def events(self, about: dict[str, Any]) -> list[dict[str, Any]]:
        """Of the Job or pod, newest first; none where nobody may see them."""
        selector = f"involvedObject.uid={about['metadata']['uid']}"
        try:
            answer = await self.api.get(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=selector)
        except ApiRefused:
            return []
        found: list[dict[str, Any]] = answer.get("items") or []
        return sorted(found, key=_time, reverse=True)

    async def delete(self, path: str, uid: str, **options: Any) -> None:
        """Delete this very object, if it is there. Raises ApiRefused, MachineUnreachable."""
        try:
            await self.api.delete(path, uid, **options)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise


def _time(event: dict[str, Any]) -> str:
    """When it was told last; some have no `lastTimestamp`."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def is_of_job(pod: dict[str, Any]) -> bool:
    """Whether a Job has made it; a pool's has been made by something else, which lets it go a moment after."""
    return any(owner.get("kind") == "Job" for owner in pod["metadata"].get("ownerReferences") or [])
