"""A Job's status, reckoned from its pods. Nothing here touches the store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.support.kubernetes.pod_status import condition, with_condition
from tests.support.kubernetes.store import Object, now, read_stamp

FINISHED = ("Complete", "Failed")


@dataclass(frozen=True)
class End:
    """What a Job comes to: Complete or Failed, and why."""

    type: str
    reason: str
    message: str


@dataclass
class Tally:
    """How many pods of a Job have succeeded and failed; one that is gone was counted before."""

    _succeeded: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    _gone: list[Object] = field(default_factory=list)

    @property
    def succeeded(self) -> int:
        return len(self._succeeded)

    @property
    def failed(self) -> int:
        return len(self._failed)

    def gone(self, pod: Object) -> None:
        """A pod was removed, maybe before anybody has looked at how it ended."""
        self._gone.append(pod)

    def count(self, pods: Sequence[Object], *, replaces_deleted: bool) -> bool:
        """Whether there are new failures. `replaces_deleted`: what somebody has deleted is no failure."""
        before = len(self._failed)
        gone = {each["metadata"]["uid"] for each in self._gone}
        for pod in (*pods, *self._gone):
            uid, phase = pod["metadata"]["uid"], pod["status"].get("phase")
            deleted = uid in gone or bool(pod["metadata"].get("deletionTimestamp"))
            if phase == "Succeeded":
                self._succeeded.add(uid)
            elif (deleted and not replaces_deleted) or (phase == "Failed" and not (deleted and replaces_deleted)):
                self._failed.add(uid)
        self._gone.clear()
        self._failed -= self._succeeded
        return len(self._failed) > before

    def write(self, status: Object, pods: Sequence[Object], *, old: bool) -> None:
        running = [each for each in pods if active(each)]
        ready = sum(_is_ready(each) for each in running)
        terminating = sum(bool(each["metadata"].get("deletionTimestamp")) and not ended(each) for each in pods)
        for name, number in (
            ("active", len(running)),
            ("succeeded", self.succeeded),
            ("failed", self.failed),
        ):
            status.pop(name, None)
            if number:
                status[name] = number
        if not old:
            status |= {"ready": ready, "terminating": terminating, "uncountedTerminatedPods": {}}


def active(pod: Object) -> bool:
    return not ended(pod) and not pod["metadata"].get("deletionTimestamp")


def ended(pod: Object) -> bool:
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


def condition_is(found: Object, name: str) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or []
    return any(each["type"] == name and each["status"] == "True" for each in conditions)


def end(job: Object, status: Object, pods: Sequence[Object], tally: Tally) -> End | None:
    """What the Job comes to, once that is clear."""
    spec = job["spec"]
    if condition_is(job, "FailureTarget"):
        before = next(each for each in job["status"]["conditions"] if each["type"] == "FailureTarget")
        return End("Failed", before["reason"], before["message"])
    if tally.succeeded >= spec["completions"]:
        return End("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
    if tally.failed > spec["backoffLimit"] or _restarted_too_often(spec, pods):
        return End("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and (datetime.now(UTC) - read_stamp(status["startTime"])).total_seconds() >= seconds:
        return End("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    return None


def conclude(status: Object, end: End, *, waits: bool, old: bool) -> None:
    """Say it; while pods have to end first, what it will be."""
    conditions = status.get("conditions") or []
    reason, message = ("", "") if old and end.type == "Complete" else (end.reason, end.message)
    if not old:
        first = "SuccessCriteriaMet" if end.type == "Complete" else "FailureTarget"
        conditions = with_condition(conditions, condition(first, "True", reason, message))
    if not waits:
        conditions = with_condition(conditions, condition(end.type, "True", reason, message))
        if end.type == "Complete":
            status["completionTime"] = now()
    status["conditions"] = conditions


def suspend(status: Object, pods: Sequence[Object]) -> None:
    suspended = condition("Suspended", "True", "JobSuspended", "Job suspended")
    status["conditions"] = with_condition(status.get("conditions") or [], suspended)
    for name in ("startTime", "active"):
        status.pop(name, None)
    status |= {"ready": 0, "terminating": len(pods)}


def resume(status: Object) -> None:
    if condition_is({"status": status}, "Suspended"):
        resumed = condition("Suspended", "False", "JobResumed", "Job resumed")
        status["conditions"] = with_condition(status["conditions"], resumed)


def _restarted_too_often(spec: Object, pods: Sequence[Object]) -> bool:
    if spec["template"]["spec"]["restartPolicy"] != "OnFailure":
        return False
    restarts = sum(
        each["restartCount"]
        for pod in pods
        if not ended(pod)
        for each in (*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", []))
    )
    return bool(restarts >= max(int(spec["backoffLimit"]), 1))


def _is_ready(pod: Object) -> bool:
    return condition_is(pod, "Ready")
