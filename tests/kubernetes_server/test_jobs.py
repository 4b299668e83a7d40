"""Jobs: the pods that they make, what their status says, and what becomes of them."""

import os
import signal
import time
from datetime import timedelta

import pytest

from tests.kubernetes_server.kube import NAMESPACE, Kube, refused, said
from tests.support.kubernetes import OLD, BackgroundServer, Settings
from tests.support.processes import until


def condition(kube: Kube, name: str = "j") -> dict[str, str]:
    found = kube.json(kube.batch.read_namespaced_job, name)["status"].get("conditions", [])
    return {each["type"]: each.get("reason", "") for each in found if each["status"] == "True"}


async def test_a_job_makes_a_pod_that_is_its_own(kube: Kube) -> None:
    job = kube.job(command=("true",))
    await until(lambda: "Complete" in condition(kube))
    (pod,) = kube.pods(f"batch.kubernetes.io/controller-uid={job.metadata.uid}")
    assert pod.metadata.name.startswith("j-")
    assert len(pod.metadata.name) == len("j-12345")
    assert pod.metadata.labels["job-name"] == "j"
    (owner,) = pod.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller) == ("Job", job.metadata.uid, True)
    status = kube.batch.read_namespaced_job("j", NAMESPACE).status
    assert (status.succeeded, status.failed, status.active) == (1, None, None)
    assert status.completion_time
    assert kube.reasons("j") == {"SuccessfulCreate", "Completed"}


async def test_a_job_fails_once_its_pods_have_failed_too_often(kube: Kube) -> None:
    kube.job(command=("false",), backoffLimit=1)
    await until(lambda: condition(kube).get("Failed") == "BackoffLimitExceeded")
    assert kube.batch.read_namespaced_job("j", NAMESPACE).status.failed == 2
    assert [each.status.phase for each in kube.pods()] == ["Failed", "Failed"]


async def test_a_container_is_restarted_in_place_where_the_policy_wants_that(kube: Kube) -> None:
    command = ("sh", "-c", "test -e /data/been && exit 0; touch /data/been; exit 7")
    volume = {"volumes": [{"name": "data", "emptyDir": {}}], "restartPolicy": "OnFailure"}
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    kube.job(command=command, backoffLimit=3, pod={**volume, "container": mounts})
    await until(lambda: "Complete" in condition(kube))
    (pod,) = kube.pods()
    (status,) = pod.status.container_statuses
    assert (status.restart_count, status.last_state.terminated.exit_code) == (1, 7)


async def test_a_deadline_of_the_job_takes_its_pods_along(kube: Kube) -> None:
    kube.job(activeDeadlineSeconds=1)
    await until(lambda: condition(kube).get("Failed") == "DeadlineExceeded")
    assert not kube.pods()


async def test_a_suspended_job_has_no_pod_until_it_goes_on(kube: Kube) -> None:
    kube.job(suspend=True)
    await until(lambda: "Suspended" in condition(kube))
    assert not kube.pods()
    kube.batch.patch_namespaced_job("j", NAMESPACE, {"spec": {"suspend": False}})
    await kube.of_job()
    assert "Suspended" not in condition(kube)


@pytest.mark.parametrize("settings", [Settings(release=OLD)])
async def test_an_old_cluster_drops_what_it_does_not_know(kube: Kube) -> None:
    made = kube.job(suspend=True, ttlSecondsAfterFinished=1)
    assert made.spec.suspend is None
    assert made.spec.ttl_seconds_after_finished is None
    await kube.of_job()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("settings", "replaced"), [(Settings(), False), (Settings(release=OLD), True)])
async def test_whether_a_deleted_pod_is_a_failure_depends_on_the_release(kube: Kube, *, replaced: bool) -> None:
    kube.job()
    pod = await kube.of_job()
    kube.core.delete_namespaced_pod(pod.metadata.name, NAMESPACE)
    await kube.gone(pod.metadata.name)
    if replaced:
        assert (await kube.of_job()).metadata.name != pod.metadata.name
    else:
        await until(lambda: condition(kube).get("Failed") == "BackoffLimitExceeded")


async def test_a_delete_without_a_policy_leaves_the_pods(kube: Kube) -> None:
    kube.job()
    pod = await kube.of_job()
    answer = kube.batch.delete_namespaced_job("j", NAMESPACE)
    assert answer["status"] == "Success"
    left = kube.core.read_namespaced_pod(pod.metadata.name, NAMESPACE)
    assert left.metadata.owner_references is None
    assert left.metadata.deletion_timestamp is None


async def test_a_delete_in_the_background_takes_the_pods_along(kube: Kube) -> None:
    kube.job()
    pod = await kube.of_job()
    kube.batch.delete_namespaced_job("j", NAMESPACE, propagation_policy="Background")
    with refused(404):
        kube.batch.read_namespaced_job("j", NAMESPACE)
    await kube.gone(pod.metadata.name)


async def test_a_delete_in_the_foreground_waits_for_the_pods_with_their_own_grace(kube: Kube) -> None:
    kube.job(
        command=("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"), pod={"terminationGracePeriodSeconds": 1}
    )
    pod = await kube.of_job()
    kube.batch.delete_namespaced_job("j", NAMESPACE, propagation_policy="Foreground", grace_period_seconds=60)
    job = kube.batch.read_namespaced_job("j", NAMESPACE)
    assert job.metadata.deletion_timestamp
    assert job.metadata.finalizers == ["foregroundDeletion"]
    dying = await until(lambda: next((each for each in kube.pods() if each.metadata.deletion_timestamp), None))
    assert dying.metadata.deletion_grace_period_seconds == 1
    await kube.gone(pod.metadata.name)
    with refused(404):
        await until(lambda: kube.batch.read_namespaced_job("j", NAMESPACE) is None)


async def test_a_precondition_keeps_another_job_of_the_name(kube: Kube, cluster: BackgroundServer) -> None:
    uid = kube.job().metadata.uid
    with refused(409) as raised:
        kube.batch.delete_namespaced_job("j", NAMESPACE, body={"preconditions": {"uid": "another"}})
    assert said(raised)["message"] == (
        'Operation cannot be fulfilled on jobs.batch "j": Precondition failed: '
        f"UID in precondition: another, UID in object meta: {uid}"
    )
    (asked,) = [each for each in cluster.server.requests if each.verb == "delete"]
    assert asked.options == {"preconditions": {"uid": "another"}}
    assert asked.status == 409


async def test_a_finished_job_goes_after_its_time(kube: Kube) -> None:
    kube.job(command=("true",), ttlSecondsAfterFinished=1)
    await until(lambda: "Complete" in condition(kube))
    await until(lambda: not kube.batch.list_namespaced_job(NAMESPACE).items)
    await until(lambda: not kube.pods())


async def test_a_quota_is_told_of_in_an_event_alone(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.pods_refused = "exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4"
    job = kube.job()
    await until(lambda: "FailedCreate" in kube.reasons("j"))
    selector = f"involvedObject.uid={job.metadata.uid}"
    event = kube.core.list_namespaced_event(NAMESPACE, field_selector=selector).items[0]
    assert event.type == "Warning"
    assert event.message.startswith('Error creating: pods "j-')
    assert event.message.endswith("is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4")
    assert not kube.pods()
    cluster.server.settings.pods_refused = None
    await kube.of_job()


@pytest.mark.parametrize("settings", [Settings(job_back_off=timedelta(seconds=0.5))])
async def test_a_failed_pod_is_replaced_after_a_while(
    kube: Kube, cluster: BackgroundServer, settings: Settings
) -> None:
    kube.job(backoffLimit=1)
    failing = (await kube.of_job()).metadata.name
    container = cluster.call(lambda: cluster.server.nodes.container(NAMESPACE, failing, "main"))
    begun = time.monotonic()
    os.kill(container.pid, signal.SIGKILL)
    await until(lambda: len(kube.pods()) == 2)
    assert time.monotonic() - begun >= settings.job_back_off.total_seconds()
    assert (await kube.of_job()).metadata.name != failing
    assert kube.batch.read_namespaced_job("j", NAMESPACE).status.failed == 1
    assert "Failed" not in condition(kube)
