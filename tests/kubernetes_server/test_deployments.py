"""Deployments: as many pods as wanted, also where one is taken out of the pool."""

from typing import Any

from tests.kubernetes_server.kube import FOR_EVER, NAMESPACE, Kube
from tests.support.processes import until

POOL = "pool=warm"


def deployment(replicas: int) -> dict[str, Any]:
    labels = {"pool": "warm"}
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "i", "command": list(FOR_EVER)}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "metadata": {"name": "warm"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def warm(kube: Kube) -> list[Any]:
    return [each for each in kube.pods(POOL) if each.status.phase == "Running" and not each.metadata.deletion_timestamp]


async def test_a_pod_that_leaves_the_pool_is_left_alone_and_replaced(kube: Kube) -> None:
    kube.apps.create_namespaced_deployment(NAMESPACE, deployment(2))
    first, second = await until(lambda: found if len(found := warm(kube)) == 2 else None)
    assert first.metadata.owner_references[0].kind == "ReplicaSet"
    taken = kube.core.patch_namespaced_pod(
        first.metadata.name,
        NAMESPACE,
        {"metadata": {"labels": {"pool": "taken"}, "resourceVersion": first.metadata.resource_version}},
    )
    assert taken.metadata.labels["pool"] == "taken"
    names = await until(lambda: found if len(found := {each.metadata.name for each in warm(kube)}) == 2 else None)
    assert second.metadata.name in names
    left = kube.core.read_namespaced_pod(first.metadata.name, NAMESPACE)
    assert (left.status.phase, left.metadata.owner_references) == ("Running", None)
    await until(lambda: kube.apps.read_namespaced_deployment("warm", NAMESPACE).status.ready_replicas == 2)


async def test_a_pod_that_is_deleted_is_replaced(kube: Kube) -> None:
    kube.apps.create_namespaced_deployment(NAMESPACE, deployment(1))
    (pod,) = await until(lambda: warm(kube))
    kube.core.delete_namespaced_pod(pod.metadata.name, NAMESPACE)
    await until(lambda: warm(kube) and warm(kube)[0].metadata.name != pod.metadata.name)


async def test_a_deployment_is_scaled_and_goes_with_its_pods(kube: Kube) -> None:
    kube.apps.create_namespaced_deployment(NAMESPACE, deployment(1))
    await until(lambda: warm(kube))
    kube.apps.patch_namespaced_deployment("warm", NAMESPACE, {"spec": {"replicas": 2}})
    await until(lambda: len(warm(kube)) == 2)
    kube.apps.delete_namespaced_deployment("warm", NAMESPACE)
    await until(lambda: not kube.pods())
