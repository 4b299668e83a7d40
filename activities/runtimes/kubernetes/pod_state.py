"""What a pod's object, its Job's and their events say: where it is on its way, and why it is not further. Pure.

What is done about it must not live here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from steersman.contracts.kubernetes import AGENT_CONTAINER
from steersman.contracts.text import flat

Stage = Literal["suspended", "creating", "scheduling", "starting", "running", "ending", "ended"]
"""suspended: a queue holds the Job. creating: it has no pod yet. ending: somebody deletes the pod. ended: it will never
run again.
"""
_LONGEST = 1000
_MENDED_BY_HAND = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "ImageInspectError",
        "RegistryUnavailable",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
        "StartError",
        "FailedCreate",
    }
)
"""Why a pod does not come to run, by the cluster's word, where waiting seldom helps."""
_LOST_NODE = frozenset({"NodeLost", "NodeStatusUnknown", "DeletionByTaintManager", "DeletionByPodGC"})


@dataclass(frozen=True)
class PodState:
    """`reason` and `message` are the cluster's own; empty where it says none."""

    stage: Stage
    reason: str = ""
    message: str = ""
    is_lost_node: bool = False

    @property
    def needs_a_person(self) -> bool:
        """Whether it will hardly run before somebody has mended what the reason names."""
        return self.reason in _MENDED_BY_HAND

    @property
    def sentence(self) -> str:
        """Reason and message, as far as there are any."""
        return ": ".join(filter(None, (self.reason, self.message))) or self.stage


def state_of_job(job: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> PodState:
    """Of a Job without a pod."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return _state("ended", condition)
    for event in events:
        if event.get("reason") == "FailedCreate":
            return _state("creating", event)
    return PodState("suspended" if spec.get("suspend") else "creating")


def state_of_pod(pod: Mapping[str, Any]) -> PodState:
    """Of a pod."""
    status, metadata = pod.get("status") or {}, pod.get("metadata") or {}
    lost = _is_on_lost_node(status)
    if status.get("phase") in ("Failed", "Succeeded"):
        reason, message = _reason_of_end(status)
        return PodState("ended", reason, message, is_lost_node=_is_unseen(status, lost=lost))
    if metadata.get("deletionTimestamp"):
        disruption = _condition(status, "DisruptionTarget")
        return PodState("ending", *_words(disruption or status), is_lost_node=lost)
    container = _container(status)
    state = container.get("state") or {}
    if "running" in state:
        return PodState("running", is_lost_node=lost)
    if "waiting" in state and (why := state["waiting"].get("reason")) not in (None, "ContainerCreating"):
        last = (container.get("lastState") or {}).get("terminated") or {}
        reason, message = _words(state["waiting"])
        if why == "CrashLoopBackOff" and last:
            message = f"the container ended: {_of_terminated(last)}"
        return PodState("starting", reason, message)
    scheduled = _condition(status, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        return _state("scheduling", scheduled)
    return PodState("starting" if scheduled else "scheduling")


def warned_of(state: PodState, events: Sequence[Mapping[str, Any]]) -> PodState:
    """The state of a pod that says itself nothing of why it is no further, by its events, the newest first: what the
    last one warns of may be what it waits for.
    """
    newest = next(iter(events), {})
    return _state(state.stage, newest) if newest.get("type") == "Warning" else state


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether its node has told that every container of it has ended, and none is started again."""
    found = (pod.get("status") or {}).get("containerStatuses") or []
    is_final = (pod.get("metadata") or {}).get("deletionTimestamp") or (pod.get("status") or {}).get(
        "phase"
    ) == "Failed"
    return bool(is_final and _have_ended(found))


def restart_of(pod: Mapping[str, Any]) -> str:
    """How the container ended before it was started again in this pod, in words; empty where it never has."""
    last = (_container(pod.get("status") or {}).get("lastState") or {}).get("terminated")
    return _of_terminated(last) if last else ""


def restarts_of(pod: Mapping[str, Any]) -> int:
    """How often the container has been started again in this pod."""
    found = _container(pod.get("status") or {}).get("restartCount")
    return found if isinstance(found, int) else 0


def gone_since_s(pod: Mapping[str, Any], now: datetime) -> float:
    """Seconds since the grace of a deleted pod has run out; negative before, and where nobody has deleted it."""
    metadata = pod.get("metadata") or {}
    try:
        # The server writes down when the grace will have run out.
        return (now - datetime.fromisoformat(metadata["deletionTimestamp"]).astimezone(UTC)).total_seconds()
    except (KeyError, TypeError, ValueError):
        return -1.0


def _reason_of_end(status: Mapping[str, Any]) -> tuple[str, str]:
    reason, message = _words(status)
    terminated = (_container(status).get("state") or {}).get("terminated")
    disruption = _condition(status, "DisruptionTarget")
    if not reason and disruption:
        return _words(disruption)
    if not reason and terminated:
        return _text(terminated.get("reason")), _of_terminated(terminated)
    return reason, message


def _of_terminated(terminated: Mapping[str, Any]) -> str:
    code, reason = terminated.get("exitCode"), _text(terminated.get("reason"))
    message = _text(terminated.get("message"))
    return f"{reason or 'it ended'} (exit code {code})" + (f": {message}" if message else "")


def _is_on_lost_node(status: Mapping[str, Any]) -> bool:
    ready, disruption = _condition(status, "Ready") or {}, _condition(status, "DisruptionTarget") or {}
    return bool({_text(said.get("reason")) for said in (status, ready, disruption)} & _LOST_NODE)


def _is_unseen(status: Mapping[str, Any], *, lost: bool) -> bool:
    """Whether the cluster says of a pod that it has ended, and its node has not: what was in it may be at work."""
    found = status.get("containerStatuses") or []
    return any("running" in (each.get("state") or {}) for each in found) or (lost and not _have_ended(found))


def _have_ended(containers: Sequence[Mapping[str, Any]]) -> bool:
    return bool(containers) and all("terminated" in (each.get("state") or {}) for each in containers)


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for each in status.get("containerStatuses") or []:
        if each.get("name") == AGENT_CONTAINER:
            return dict(each)
    return {}


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((each for each in status.get("conditions") or [] if each.get("type") == kind), None)


def _state(stage: Stage, said: Mapping[str, Any]) -> PodState:
    return PodState(stage, *_words(said))


def _words(said: Mapping[str, Any]) -> tuple[str, str]:
    return _text(said.get("reason")), _text(said.get("message"))


def _text(value: object) -> str:
    return flat(value.strip())[:_LONGEST] if isinstance(value, str) else ""
