"""What is read out of pods, Jobs and events, in the shapes in which clusters have them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from activities.runtimes.kubernetes.pod_state import (
    PodState,
    gone_since_s,
    has_ended,
    restart_of,
    restarts_of,
    state_of_job,
    state_of_pod,
)

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
TERMINATED = {"terminated": {"exitCode": 143, "reason": "Error"}}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


def container(state: dict[str, Any], last: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": "agent", "state": state, "lastState": last or {}, **fields}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def pod(*containers: dict[str, Any], deleted: str | None = None, **status: Any) -> dict[str, Any]:
    metadata = {"name": "p", **({"deletionTimestamp": deleted} if deleted else {})}
    return {"metadata": metadata, "status": {"containerStatuses": list(containers), **status}}


def disrupted(reason: str, message: str = "") -> dict[str, Any]:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}
UNKNOWN = {"type": "Ready", "status": "False", "reason": "NodeStatusUnknown"}
DELETED = "2026-01-01T00:00:30Z"
BACK_OFF = waiting("CrashLoopBackOff", "back-off 10s restarting failed container=agent")
NO_PROGRAM = {"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: no python3\n"}}


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ({}, PodState("scheduling")),
        ({"status": {"phase": "Pending"}}, PodState("scheduling")),
        (
            pod(phase="Pending", conditions=[UNSCHEDULABLE]),
            PodState("scheduling", "Unschedulable", UNSCHEDULABLE["message"]),
        ),
        (pod(phase="Pending", conditions=[SCHEDULED]), PodState("starting")),
        (pod(container(waiting("ContainerCreating")), phase="Pending", conditions=[SCHEDULED]), PodState("starting")),
        (
            pod(container(waiting("ErrImagePull", "not found")), phase="Pending", conditions=[SCHEDULED]),
            PodState("starting", "ErrImagePull", "not found"),
        ),
        (
            pod(container(waiting("CreateContainerConfigError", 'secret "s" not found')), phase="Pending"),
            PodState("starting", "CreateContainerConfigError", 'secret "s" not found'),
        ),
        (
            pod(container(BACK_OFF, NO_PROGRAM), phase="Running"),
            PodState(
                "starting",
                "CrashLoopBackOff",
                "the container ended: StartError (exit code 128): exec: no python3",
            ),
        ),
        (pod(container(RUNNING), phase="Running", conditions=[SCHEDULED]), PodState("running")),
        (pod({"name": "proxy", "state": waiting("ErrImagePull")}, container(RUNNING)), PodState("running")),
        (pod({"name": "proxy", "state": RUNNING}, container(waiting("ContainerCreating"))), PodState("scheduling")),
        (
            pod(container(RUNNING), phase="Running", conditions=[UNKNOWN]),
            PodState("running", is_lost_node=True),
        ),
        (
            pod(container(RUNNING), phase="Running", reason="NodeLost", message="Node n is unresponsive"),
            PodState("running", is_lost_node=True),
        ),
        (pod(container(RUNNING), deleted=DELETED, phase="Running"), PodState("ending")),
        (
            pod(
                container(RUNNING),
                deleted=DELETED,
                phase="Running",
                conditions=[disrupted("EvictionByEvictionAPI", "Eviction API: evicting")],
            ),
            PodState("ending", "EvictionByEvictionAPI", "Eviction API: evicting"),
        ),
        (
            pod(container(RUNNING), deleted=DELETED, conditions=[disrupted("DeletionByTaintManager", "taint")]),
            PodState("ending", "DeletionByTaintManager", "taint", is_lost_node=True),
        ),
        (
            pod(container(KILLED), phase="Failed"),
            PodState("ended", "OOMKilled", "OOMKilled (exit code 137)"),
        ),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory. "),
            PodState("ended", "Evicted", "The node was low on resource: memory."),
        ),
        (
            pod(container(TERMINATED), phase="Failed", conditions=[disrupted("TerminationByKubelet", "memory")]),
            PodState("ended", "TerminationByKubelet", "memory"),
        ),
        (
            # Its node is gone, and what the control plane writes down in its place nobody has seen.
            pod(container(RUNNING), phase="Failed", conditions=[disrupted("DeletionByPodGC", "node no longer exists")]),
            PodState("ended", "DeletionByPodGC", "node no longer exists", is_lost_node=True),
        ),
        (
            pod(phase="Failed", conditions=[disrupted("DeletionByPodGC", "node no longer exists")]),
            PodState("ended", "DeletionByPodGC", "node no longer exists", is_lost_node=True),
        ),
        (
            pod(container(TERMINATED), phase="Failed", conditions=[disrupted("DeletionByTaintManager", "taint")]),
            PodState("ended", "DeletionByTaintManager", "taint"),
        ),
        (pod(container({"terminated": {"exitCode": 0, "reason": "Completed"}}), phase="Succeeded"), "ended"),
        ({"status": {"phase": "Failed", "reason": ["no", "word"], "containerStatuses": None}}, PodState("ended")),
    ],
)
def test_where_a_pod_is_on_its_way_and_why_it_is_not_further(found: dict[str, Any], state: PodState | str) -> None:
    said = state_of_pod(found)
    assert (said.stage if isinstance(state, str) else said) == state


@pytest.mark.parametrize(
    ("job", "events", "state"),
    [
        ({}, [], PodState("creating")),
        ({"spec": {"suspend": True}}, [], PodState("suspended")),
        ({"spec": {"suspend": False}}, [{"reason": "SuccessfulCreate", "message": "x"}], PodState("creating")),
        (
            {"spec": {}},
            [{"reason": "FailedCreate", "message": "exceeded quota: none"}],
            PodState("creating", "FailedCreate", "exceeded quota: none"),
        ),
        (
            {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}},
            [{"reason": "FailedCreate"}],
            PodState("ended", "BackoffLimitExceeded"),
        ),
        ({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}, [], PodState("creating")),
    ],
)
def test_where_a_job_without_a_pod_is(job: dict[str, Any], events: list[dict[str, Any]], state: PodState) -> None:
    assert state_of_job(job, events) == state


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "FailedCreate"])
def test_what_only_a_person_mends(reason: str) -> None:
    assert PodState("starting", reason).needs_a_person
    assert not PodState("scheduling", "Unschedulable").needs_a_person


@pytest.mark.parametrize(
    ("found", "ended"),
    [
        (pod(container(TERMINATED), deleted=DELETED, phase="Running"), True),
        (pod(container(TERMINATED), phase="Running"), False),  # it is started again
        (pod(container(TERMINATED), phase="Failed"), True),
        (pod(container(RUNNING), phase="Failed"), False),
        (pod(container(TERMINATED), {"name": "proxy", "state": RUNNING}, deleted=DELETED), False),
        (pod(deleted=DELETED, phase="Pending"), False),  # nobody has said anything of any container
        ({}, False),
    ],
)
def test_an_end_is_what_the_node_has_told_of_every_container(found: dict[str, Any], *, ended: bool) -> None:
    assert has_ended(found) == ended


def test_a_container_that_was_started_again_says_why() -> None:
    restarted = pod(container(RUNNING, KILLED, restartCount=2), phase="Running")
    assert (restart_of(restarted), restarts_of(restarted)) == ("OOMKilled (exit code 137)", 2)
    assert (restart_of(pod(container(RUNNING))), restarts_of(pod(container(RUNNING)))) == ("", 0)
    assert (restart_of({}), restarts_of({"status": {"containerStatuses": [container({}, restartCount="x")]}})) == (
        "",
        0,
    )


def test_a_grace_has_run_out_when_the_server_has_said_that_it_will_have() -> None:
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert gone_since_s(pod(deleted=DELETED), now) == 30
    for never in (pod(), pod(deleted="never"), {}, {"metadata": {"deletionTimestamp": 7}}):
        assert gone_since_s(never, now) < 0
