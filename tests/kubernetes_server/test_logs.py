"""What containers have written."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.kubernetes_server.kube import NAMESPACE, Kube, refused, said
from tests.support.kubernetes import BackgroundServer
from tests.support.processes import until


def log(kube: Kube, name: str = "p", **options: Any) -> str:
    return str(kube.core.read_namespaced_pod_log(name, NAMESPACE, **options))


async def test_a_log_has_both_streams_and_a_last_line_without_an_end(kube: Kube) -> None:
    kube.pod(command=("sh", "-c", "echo one; sleep 0.1; echo two >&2; sleep 0.1; printf three"))
    await kube.phase("p", "Succeeded")
    assert log(kube) == "one\ntwo\nthree"
    assert log(kube, tail_lines=2) == "two\nthree"
    assert log(kube, limit_bytes=5) == "one\nt"
    stamped = log(kube, timestamps=True).splitlines()
    time, _, text = stamped[0].partition(" ")
    assert text == "one"
    assert abs(datetime.fromisoformat(time[:26] + "Z") - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.exhaustive
async def test_a_log_since_a_time_begins_with_its_second(kube: Kube) -> None:
    kube.pod(command=("sh", "-c", "echo one; sleep 1.1; echo two; exec sleep 60"))
    await kube.phase("p", "Running")
    await until(lambda: "two" in log(kube))
    last = log(kube, timestamps=True).splitlines()[-1].split(" ")[0]

    def since(time: str) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/p/log"
        asked = kube.api.param_serialize("GET", path, query_params=[("sinceTime", time)], auth_settings=["BearerToken"])
        return str(kube.api.call_api(*asked).read().decode())

    assert since(last) == "two\n"
    assert since("2001-01-01T00:00:00Z") == "one\ntwo\n"


async def test_a_log_is_followed_to_the_end_of_its_container(kube: Kube) -> None:
    followed: list[str] = []
    kube.pod(command=("sh", "-c", "echo one; sleep 1; echo two"))
    await kube.phase("p", "Running")
    reader = threading.Thread(target=lambda: followed.append(log(kube, follow=True)))
    reader.start()
    await asyncio.to_thread(reader.join, 10)
    assert followed == ["one\ntwo\n"]


async def test_the_log_before_a_restart_is_kept(kube: Kube) -> None:
    kube.pod(
        command=("sh", "-c", "echo run-$(cat /data/n 2>/dev/null); echo x >> /data/n; exit 1"),
        restartPolicy="Always",
        volumes=[{"name": "d", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "d", "mountPath": "/data"}]},
    )
    await until(lambda: kube.get()["status"]["containerStatuses"][0]["restartCount"] == 1)
    await kube.waiting("p", "CrashLoopBackOff")
    assert log(kube, previous=True).startswith("run-")
    assert log(kube) == "run-x\n"


async def test_a_pod_without_a_node_has_an_empty_log(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.schedules_pods = False
    kube.pod()
    assert not log(kube)


async def test_what_has_not_started_has_no_log(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.starting_takes = timedelta(seconds=30)
    kube.pod()
    await until(lambda: kube.get()["status"].get("containerStatuses"))
    with refused(400) as raised:
        log(kube)
    assert said(raised)["message"] == 'container "main" in pod "p" is waiting to start: ContainerCreating'
