"""What goes wrong in a cluster, and where that is said."""

from typing import Any

import pytest

from tests.kubernetes_server.kube import NAMESPACE, Kube, no_websocket
from tests.support.kubernetes import BackgroundServer
from tests.support.processes import lives, until


def conditions(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in pod["status"].get("conditions", [])}


async def test_an_image_may_not_be_there(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.image_errors = {"local/agent:1": "ErrImagePull"}
    kube.pod()
    assert "not found" in await kube.waiting("p", "ErrImagePull")
    assert await kube.waiting("p", "ImagePullBackOff") == 'Back-off pulling image "local/agent:1"'
    assert {"Failed", "BackOff"} <= kube.reasons("p")
    cluster.server.settings.image_errors = {}
    await kube.phase("p", "Running")


async def test_an_image_may_have_no_name(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.image_errors = {"local/agent:1": "InvalidImageName"}
    kube.pod()
    assert "couldn't parse image name" in await kube.waiting("p", "InvalidImageName")
    kube.core.delete_namespaced_pod("p", NAMESPACE)
    await kube.gone()


async def test_a_secret_may_not_be_there(kube: Kube) -> None:
    kube.pod("env", container={"envFrom": [{"secretRef": {"name": "s"}}]})
    kube.pod("file", volumes=[{"name": "v", "secret": {"secretName": "s"}}])
    assert await kube.waiting("env", "CreateContainerConfigError") == 'secret "s" not found'
    await until(lambda: "FailedMount" in kube.reasons("file"))
    assert await kube.waiting("file", "ContainerCreating")
    kube.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": "s"}})
    await kube.phase("env", "Running")
    await kube.phase("file", "Running")


async def test_no_node_may_fit(kube: Kube) -> None:
    kube.pod(nodeSelector={"disk": "none"})
    pod = await until(lambda: found if "PodScheduled" in conditions(found := kube.get()) else None)
    scheduled = conditions(pod)["PodScheduled"]
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert scheduled["message"].startswith(
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    )
    assert "FailedScheduling" in kube.reasons("p")
    kube.core.delete_namespaced_pod("p", NAMESPACE)
    assert not kube.pods()  # no node has anything to end


async def test_a_pod_may_just_wait(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.schedules_pods = False
    kube.pod()
    assert kube.get()["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    cluster.server.settings.schedules_pods = True
    await kube.phase("p", "Running")


async def test_a_container_may_run_out_of_memory(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod(command=("sh", "-c", "sleep 61.25 & trap '' TERM; wait"))
    await kube.phase("p", "Running")
    cluster.call(lambda: cluster.server.nodes.kill_for_memory(NAMESPACE, "p", "main"))
    pod = await kube.phase("p", "Failed")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


async def test_a_pod_may_be_evicted(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    cluster.call(lambda: cluster.server.nodes.evict(NAMESPACE, "p"))
    pod = await kube.phase("p", "Failed")
    assert pod["status"]["reason"] == "Evicted"
    assert pod["status"]["message"] == "The node was low on resource: memory. "
    assert conditions(pod)["DisruptionTarget"]["reason"] == "TerminationByKubelet"


async def test_a_node_may_be_lost(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    pid = cluster.server.nodes.container(NAMESPACE, "p").pid
    cluster.call(lambda: cluster.server.nodes.lose("node-1"))
    pod = kube.get()
    assert pod["status"]["reason"] == "NodeLost"
    assert (conditions(pod)["Ready"]["status"], conditions(pod)["Ready"]["reason"]) == ("False", "NodeStatusUnknown")
    with no_websocket(500, "error dialing backend"):
        kube.exec("p", "true")
    kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=1)
    with pytest.raises(AssertionError):
        await until(lambda: not kube.pods(), 2)
    kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=0)
    assert not kube.pods()
    assert lives(pid)
    cluster.call(lambda: cluster.server.nodes.recover("node-1"))
    await until(lambda: not lives(pid))


async def test_a_node_that_comes_back_ends_what_was_deleted(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    kube.pod("q")
    for name in ("p", "q"):
        await kube.phase(name, "Running")
    cluster.call(lambda: cluster.server.nodes.lose("node-1"))
    kube.core.delete_namespaced_pod("p", NAMESPACE)
    cluster.call(lambda: cluster.server.nodes.recover("node-1"))
    await kube.gone()
    assert "reason" not in kube.get("q")["status"]
    assert kube.exec("q", "true").code == 0
