"""The Job controller: pods for Jobs, and what a Job's status says of them.

What a status is reckoned from must not live here.
"""

import copy
from datetime import UTC, datetime

from tests.support.kubernetes import job_status
from tests.support.kubernetes.deletion import DeleteOptions, Deletion
from tests.support.kubernetes.events import Events
from tests.support.kubernetes.job_status import FINISHED, Tally, condition_is
from tests.support.kubernetes.kinds import JOBS, PODS
from tests.support.kubernetes.registry import Registry
from tests.support.kubernetes.statuses import ApiError
from tests.support.kubernetes.store import Change, Object, controller_of, now, owner_reference, read_stamp
from tests.support.kubernetes.work_queue import WorkQueue

COMPONENT = "job-controller"
AGAIN_S = 1.0


class JobController:
    """Looks at a Job when it, or a pod of its, has changed."""

    def __init__(self, registry: Registry, deletion: Deletion, events: Events) -> None:
        self._registry, self._deletion, self._events = registry, deletion, events
        self._store, self._settings = registry.store, registry.settings
        self.queue: WorkQueue[str] = WorkQueue(self._reconcile)
        self._tallies: dict[str, Tally] = {}
        self._failed_at: dict[str, datetime] = {}
        self._store.listeners.append(self._notice)

    def _notice(self, change: Change) -> None:
        if change.kind is JOBS:
            self.queue.add(change.after["metadata"]["uid"])
        elif change.kind is PODS:
            for each in (change.before, change.after):
                owner = controller_of(each) if each else None
                if owner and owner["kind"] == JOBS.name:
                    if change.type == "DELETED":
                        self._tallies.setdefault(owner["uid"], Tally()).gone(change.after)
                    self.queue.add(owner["uid"])

    def _reconcile(self, uid: str) -> float | None:
        job = self._store.by_uid(JOBS, uid)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        if any(condition_is(job, each) for each in FINISHED):
            return self._expire(job)
        status = copy.deepcopy(job["status"])
        pods = self._pods(uid)
        if job["spec"].get("suspend"):
            self._end(pods)
            job_status.suspend(status, self._pods(uid))
            self._put(job, status)
            return None
        job_status.resume(status)
        status.setdefault("startTime", now())
        tally = self._tallies.setdefault(uid, Tally())
        if tally.count(pods, replaces_deleted=self._settings.release.replaces_deleted_pods):
            self._failed_at[uid] = datetime.now(UTC)
        end = job_status.end(job, status, pods, tally)
        again = self._finish(job, status, end) if end else self._create(job, status, tally)
        tally.write(status, self._pods(uid), old=self._settings.release.replaces_deleted_pods)
        self._put(job, status)
        return again

    def _pods(self, uid: str) -> list[Object]:
        return [each for each in self._store.list(PODS) if (controller_of(each) or {}).get("uid") == uid]

    def _put(self, job: Object, status: Object) -> None:
        self._store.update(JOBS, job, lambda after: after.update(status=status))

    def _finish(self, job: Object, status: Object, end: job_status.End) -> float | None:
        """Where something runs still, it is ended first; the last word comes when nothing does."""
        pods = self._pods(job["metadata"]["uid"])
        self._end(pods)
        left = [each for each in self._pods(job["metadata"]["uid"]) if not job_status.ended(each)]
        old = self._settings.release.replaces_deleted_pods
        job_status.conclude(status, end, waits=bool(left) and not old, old=old)
        if not left or old:
            tell = self._events.normal if end.type == "Complete" else self._events.warn
            said = ("Completed", "Job completed") if end.type == "Complete" else (end.reason, end.message)
            tell(JOBS, job, *said, COMPONENT)
        return None

    def _end(self, pods: list[Object]) -> None:
        for each in pods:
            if job_status.active(each):
                metadata = each["metadata"]
                self._deletion.delete(PODS, metadata["namespace"], metadata["name"], DeleteOptions())

    def _create(self, job: Object, status: Object, tally: Tally) -> float | None:
        uid, spec = job["metadata"]["uid"], job["spec"]
        wait = self._settings.job_back_off.total_seconds()
        if uid in self._failed_at:
            left = wait - (datetime.now(UTC) - self._failed_at[uid]).total_seconds()
            if left > 0:
                return left
        running = sum(job_status.active(each) for each in self._pods(uid))
        wanted = min(spec["parallelism"], spec["completions"] - tally.succeeded) - running
        for _ in range(wanted):
            try:
                made = self._registry.create(PODS, job["metadata"]["namespace"], _pod(job))
            except ApiError as error:
                self._events.warn(JOBS, job, "FailedCreate", f"Error creating: {error.message}", COMPONENT)
                return max(wait, 0.05)
            self._events.normal(JOBS, job, "SuccessfulCreate", f"Created pod: {made['metadata']['name']}", COMPONENT)
        return AGAIN_S if spec.get("activeDeadlineSeconds") is not None else None

    def _expire(self, job: Object) -> float | None:
        """Delete a finished Job that has had its time."""
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return None
        ended = next(each for each in job["status"]["conditions"] if each["type"] in FINISHED)
        left = float(seconds) - (datetime.now(UTC) - read_stamp(ended["lastTransitionTime"])).total_seconds()
        if left > 0:
            return left
        metadata = job["metadata"]
        options = DeleteOptions(policy="Foreground", uid=metadata["uid"])
        self._deletion.delete(JOBS, metadata["namespace"], metadata["name"], options)
        return None


def _pod(job: Object) -> Object:
    template = copy.deepcopy(job["spec"]["template"])
    metadata = template.setdefault("metadata", {})
    metadata["generateName"] = f"{job['metadata']['name']}-"
    metadata["ownerReferences"] = [owner_reference(JOBS, job)]
    return {"metadata": metadata, "spec": template["spec"]}
