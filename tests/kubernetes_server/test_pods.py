"""Pods: their phases, what their containers find, and how they end."""

import asyncio
import os
from pathlib import Path
from typing import Any

from tests.kubernetes_server.kube import FOR_EVER, NAMESPACE, Kube
from tests.support.kubernetes import BackgroundServer
from tests.support.processes import lives, until

IGNORES = ("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")


def main(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["status"]["containerStatuses"][0]
    return found


def true_conditions(pod: dict[str, Any]) -> set[str]:
    return {each["type"] for each in pod["status"]["conditions"] if each["status"] == "True"}


async def test_a_pod_that_runs_says_so(kube: Kube) -> None:
    made = kube.pod()
    assert made.status.phase == "Pending"
    pod = await kube.phase("p", "Running")
    assert pod["spec"]["nodeName"] == "node-1"
    assert true_conditions(pod) == {"PodScheduled", "Initialized", "Ready", "ContainersReady"}
    status = main(pod)
    assert (status["ready"], status["started"], status["restartCount"]) == (True, True, 0)
    assert status["state"]["running"]["startedAt"]
    assert status["containerID"].startswith("containerd://")
    assert {"Scheduled", "Created", "Started"} <= kube.reasons("p")


async def test_a_pod_that_has_ended_says_how(kube: Kube) -> None:
    kube.pod("good", ("true",))
    kube.pod("bad", ("sh", "-c", "exit 9"))
    kube.pod("killed", ("sh", "-c", "sh -c 'kill -KILL 1'; kill -TERM $$; exit 143"))
    good, bad = await kube.phase("good", "Succeeded"), await kube.phase("bad", "Failed")
    assert main(good)["state"]["terminated"]["reason"] == "Completed"
    ended = main(bad)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (9, "Error")
    assert main(await kube.phase("killed", "Failed"))["state"]["terminated"]["exitCode"] == 143
    ready = next(each for each in bad["status"]["conditions"] if each["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodFailed")


async def test_a_command_that_is_not_there_fails_the_pod(kube: Kube) -> None:
    kube.pod(command=("no-such-program",))
    ended = main(await kube.phase("p", "Failed"))["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in ended["message"]


async def test_a_containers_first_process_is_its_command_and_sees_no_others(kube: Kube) -> None:
    kube.pod(command=("sh", "-c", "exec sleep 60"))
    await kube.phase("p", "Running")
    said = kube.exec("p", "sh", "-c", "cat /proc/1/cmdline | tr '\\0' ' '; ls /proc | grep -c '^[0-9]'").stdout.decode()
    command, count = said.strip().rsplit(" ", 1)
    assert command.strip() == "sleep 60"
    assert int(count) < 8


async def test_what_a_container_writes_stays_in_it(kube: Kube, tmp_path: Path) -> None:
    kube.pod("a")
    kube.pod("b")
    for name in ("a", "b"):
        await kube.phase(name, "Running")
    place = f"/made-in-a-container-{os.getpid()}"
    assert kube.exec("a", "sh", "-c", f"echo x > {place} && cat {place}").code == 0
    assert kube.exec("b", "test", "-e", place).code == 1
    assert not Path(place).exists()


async def test_containers_of_a_pod_share_volumes_and_run_after_the_init_containers(kube: Kube) -> None:
    mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/workspace/deep"}]}
    first = {"name": "first", "image": "i", "command": ["sh", "-c", "echo 1 > /workspace/deep/order"], **mounts}
    second = {"name": "second", "image": "i", "command": ["sh", "-c", "echo 2 >> /workspace/deep/order"], **mounts}
    other = {"name": "other", "image": "i", "command": list(FOR_EVER), **mounts}
    spec: dict[str, Any] = {"volumes": [{"name": "shared", "emptyDir": {}}], "initContainers": [first, second]}
    one = {"name": "main", "image": "i", "command": list(FOR_EVER), "workingDir": "/workspace/deep", **mounts}
    kube.pod(**spec, containers=[one, other])
    pod = await kube.phase("p", "Running")
    assert [each["state"]["terminated"]["reason"] for each in pod["status"]["initContainerStatuses"]] == [
        "Completed"
    ] * 2
    assert kube.exec("p", "cat", "order", container="main").stdout == b"1\n2\n"
    assert kube.exec("p", "cat", "/workspace/deep/order", container="other").stdout == b"1\n2\n"


async def test_an_init_container_that_fails_fails_the_pod(kube: Kube) -> None:
    kube.pod(initContainers=[{"name": "first", "image": "i", "command": ["false"]}])
    pod = await kube.phase("p", "Failed")
    assert main(pod)["state"]["waiting"]["reason"] == "PodInitializing"


async def test_secrets_come_as_variables_and_as_files(kube: Kube) -> None:
    kube.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": "s"}, "stringData": {"KEY": "value", "B": "b"}})
    container = {
        "envFrom": [{"secretRef": {"name": "s"}}, {"secretRef": {"name": "not-there", "optional": True}}],
        "env": [
            {"name": "PLAIN", "value": "$(KEY) and $$(KEY)"},
            {"name": "ONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "B"}}},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "volumeMounts": [{"name": "files", "mountPath": "/etc/secret", "readOnly": True}],
    }
    kube.pod(container=container, volumes=[{"name": "files", "secret": {"secretName": "s", "defaultMode": 0o400}}])
    await kube.phase("p", "Running")
    said = kube.exec("p", "sh", "-c", 'echo "$KEY/$PLAIN/$ONE/$NAME/$HOSTNAME"; cat /etc/secret/KEY').stdout
    assert said == b"value/value and $(KEY)/b/p/p\nvalue"
    assert kube.exec("p", "sh", "-c", "echo x > /etc/secret/KEY").code != 0


async def test_a_container_has_the_user_and_the_limits_that_it_was_given(kube: Kube) -> None:
    security = {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456}
    container = {
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    kube.pod(securityContext=security, container=container, volumes=[{"name": "data", "emptyDir": {}}])
    await kube.phase("p", "Running")
    said = kube.exec("p", "sh", "-c", "id -u; id -g; id -G; grep -E 'CapEff|NoNewPrivs' /proc/self/status").stdout
    assert said.decode().split() == ["1234", "2345", "2345", "3456", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert kube.exec("p", "sh", "-c", "echo x > /data/x && stat -c %g /data/x").stdout == b"3456\n"
    assert b"Read-only file system" in kube.exec("p", "sh", "-c", "touch /tmp/new-$$").stderr


async def test_a_claim_outlives_the_pods_that_have_it(kube: Kube) -> None:
    claim = {"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    kube.core.create_namespaced_persistent_volume_claim(NAMESPACE, claim)
    spec: dict[str, Any] = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        "container": {"volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "below"}]},
    }
    kube.pod("a", ("sh", "-c", "echo kept > /data/file"), **spec)
    await kube.phase("a", "Succeeded")
    kube.pod("b", ("sh", "-c", "grep kept /data/file"), **spec)
    await kube.phase("b", "Succeeded")


async def test_a_container_that_crashes_is_started_again_and_again(kube: Kube) -> None:
    kube.pod(command=("false",), restartPolicy="Always")
    assert "back-off 10s restarting failed container=main" in await kube.waiting("p", "CrashLoopBackOff")
    pod = await until(lambda: found if main(found := kube.get("p"))["restartCount"] >= 2 else None)
    assert main(pod)["lastState"]["terminated"]["exitCode"] == 1
    assert pod["status"]["phase"] == "Running"


async def test_a_pods_deadline_fails_it(kube: Kube) -> None:
    kube.pod(activeDeadlineSeconds=1)
    status = (await kube.phase("p", "Failed"))["status"]
    assert status["reason"] == "DeadlineExceeded"
    assert status["message"] == "Pod was active on the node longer than the specified deadline"


async def test_a_deleted_pod_is_asked_first_and_stays_until_it_has_ended(kube: Kube) -> None:
    kube.pod(command=("sh", "-c", "trap 'sleep 0.5; exit 0' TERM; while :; do sleep 0.05; done"))
    await kube.phase("p", "Running")
    answer = kube.core.delete_namespaced_pod("p", NAMESPACE)
    assert answer.metadata.deletion_grace_period_seconds == 5
    assert kube.get("p")["metadata"]["deletionTimestamp"]
    assert main(kube.get("p"))["state"]["running"]
    await kube.gone()


async def test_after_the_grace_every_process_is_killed(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod(command=IGNORES)
    await kube.phase("p", "Running")
    pid = cluster.server.nodes.container(NAMESPACE, "p").pid
    kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=30)
    assert lives(pid)
    answer = kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=60)  # cannot be made longer
    assert answer.metadata.deletion_grace_period_seconds == 30
    kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=1)
    await kube.gone()
    assert not lives(pid)


async def test_without_a_grace_a_pod_is_gone_at_once(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod(command=IGNORES)
    await kube.phase("p", "Running")
    pid = cluster.server.nodes.container(NAMESPACE, "p").pid
    kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=0)
    assert not kube.pods()
    await until(lambda: not lives(pid))


async def test_without_a_grace_processes_may_be_left(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.forced_deletion_leaves_processes = True
    kube.pod()
    await kube.phase("p", "Running")
    pid = cluster.server.nodes.container(NAMESPACE, "p").pid
    kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=0)
    assert not kube.pods()
    await asyncio.sleep(1.5)  # longer than the grace that it would have been given
    assert lives(pid)


async def test_zombies_stay_where_the_first_process_does_not_wait_for_them(kube: Kube) -> None:
    kube.pod(command=("sleep", "60"))
    await kube.phase("p", "Running")
    kube.exec("p", "sh", "-c", "(sleep 0.1 &) ; exit 0")
    await until(lambda: b"Z" in kube.exec("p", "sh", "-c", "ps -o stat=,ppid= -A | grep ' 1$' || true").stdout)


async def test_a_shared_directory_is_the_machines_own(kube: Kube, cluster: BackgroundServer, tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    cluster.server.settings.shared = (str(shared),)
    kube.pod(volumes=[{"name": "v", "emptyDir": {}}], container={"volumeMounts": [{"name": "v", "mountPath": "/tmp"}]})
    await kube.phase("p", "Running")
    assert kube.exec("p", "sh", "-c", f"echo there > {shared}/made").code == 0
    assert (shared / "made").read_text() == "there\n"
