"""A copy's pod out of a warm pool: nobody else's, never used twice, and a Job's where none can be had."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from activities.runtimes.kubernetes import manifest
from activities.runtimes.kubernetes.pod import CopyPod
from steersman.contracts.errors import PlaceError
from steersman.contracts.kubernetes import KubernetesRuntime
from tests.runtimes.pod_site import PodSite, said
from tests.runtimes.stage import DEAF, ECHO, QUICK, line
from tests.support.kubernetes import BackgroundServer
from tests.support.kubernetes.deletion import DeleteOptions
from tests.support.kubernetes.faults import of
from tests.support.kubernetes.kinds import DEPLOYMENTS, JOBS, PODS
from tests.support.processes import marked, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

HELLO = ("sh", "-c", "echo hello")
POOL = "warm"


@pytest.fixture
def site(site: PodSite) -> PodSite:
    return with_pool(site)


def site_of(cluster: BackgroundServer, directory: Path) -> PodSite:
    return with_pool(PodSite(cluster, directory))


def with_pool(site: PodSite) -> PodSite:
    """Its requests name the pool."""
    site.placement["pool"] = POOL
    return site


async def pool(site: PodSite, replicas: int, **fields: Any) -> None:
    """One for requests as this site makes them, with these fields; all of its pods run."""
    runtime = KubernetesRuntime.model_validate({**site.placement, **fields})
    deployment = manifest.pool(runtime, replicas)
    site.cluster.call(lambda: site.server.registry.create(DEPLOYMENTS, "default", deployment))
    await full(site, replicas)


async def full(site: PodSite, replicas: int) -> None:
    await until(lambda: len(waiting(site)) == replicas)


def waiting(site: PodSite) -> list[str]:
    """The pods of the pool that run and are nobody's."""
    return [
        each["metadata"]["name"]
        for each in site.objects(PODS)
        if each["metadata"]["labels"].get(manifest.POOL) == POOL and runs(each)
    ]


def runs(pod: dict[str, Any]) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return bool(statuses) and not pod["metadata"].get("deletionTimestamp") and "running" in statuses[0]["state"]


def taken(site: PodSite) -> list[str]:
    """The pods that are some copy's."""
    return [each["metadata"]["name"] for each in site.objects(PODS) if manifest.COPY in each["metadata"]["labels"]]


async def prepared(pod: CopyPod) -> list[str]:
    """Make it run; what people are told meanwhile."""
    told: list[str] = []
    await pod.prepare("run", told.append)
    return told


async def test_it_is_taken_replaced_and_never_used_again(site: PodSite) -> None:
    await pool(site, 2)
    before = waiting(site)
    pod = site.pod()
    assert await prepared(pod) == []
    assert site.name in before
    assert await said(await pod.exec(*HELLO)) == b"hello\n"
    assert site.ever(JOBS) == set()
    (found,) = [each for each in site.objects(PODS) if each["metadata"]["name"] == site.name]
    assert found["metadata"]["annotations"]["steersman.dev/run"] == "run"
    assert found["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    await until(lambda: len(waiting(site)) == 2)

    assert await pod.leave(copy=True)

    assert site.name not in [each["metadata"]["name"] for each in site.objects(PODS)]
    assert len(waiting(site)) == 2


async def test_prepared_twice_it_is_taken_once(site: PodSite) -> None:
    await pool(site, 2)
    first = site.pod()
    await first.prepare("run")
    before = site.record
    await first.prepare("run")
    await site.pod().prepare("run")
    assert site.record == before
    assert taken(site) == [site.name]


@pytest.mark.exhaustive
async def test_an_agent_in_it_is_stopped_with_proof(site: PodSite) -> None:
    await pool(site, 1)
    await site.made()
    run = site.run()
    channel = await run.open(ECHO)
    await channel.write("a", "hello\n")
    await line(channel, b"heard hello")
    report = await run.runtime.stop(run.key, QUICK, "cancelled")
    assert (report.outcome, report.left) == ("stopped", ())
    assert report.place == f"kubernetes: pod {site.name} of pool {POOL}"
    await channel.close()
    assert marked(site.mark) == {}
    assert not await site.pod().leave(copy=True)
    await run.runtime.release(run.key)
    assert taken(site) == []


@pytest.mark.exhaustive
async def test_what_ignores_sigterm_in_it_ends_with_it(site: PodSite) -> None:
    await pool(site, 1)
    pod = await site.made()
    run = site.run()
    channel = await run.open(DEAF)
    await line(channel, b"ready")
    await channel.close()
    await pod.remove()
    assert marked(site.mark) == {}
    assert taken(site) == []


async def test_many_at_once_share_none(cluster: BackgroundServer, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / str(number)).mkdir()
    sites = [site_of(cluster, tmp_path / str(number)) for number in range(6)]
    await pool(sites[0], 3)
    pods = [each.pod() for each in sites]
    await asyncio.gather(*(pod.prepare("run") for pod in pods))
    assert len({each.record.pod_uid for each in sites}) == 6
    assert sum(each.record.pooled for each in sites) >= 3
    assert [await said(await pod.exec(*HELLO)) for pod in pods] == [b"hello\n"] * 6
    await asyncio.gather(*(pod.leave(copy=True) for pod in pods))
    assert (taken(sites[0]), sites[0].objects(JOBS)) == ([], [])
    for each in sites:
        await each.aclose()


async def test_workers_that_prepare_at_once_have_one(site: PodSite) -> None:
    await pool(site, 5)
    pods = [site.pod() for _ in range(4)]
    await asyncio.gather(*(pod.prepare("run") for pod in pods))
    assert [await said(await pod.exec(*HELLO)) for pod in pods] == [b"hello\n"] * 4
    await until(lambda: taken(site) == [site.name])
    assert site.objects(JOBS) == []


async def test_an_empty_pool_is_told_of_and_a_job_is_made(site: PodSite) -> None:
    pod = site.pod()
    assert await prepared(pod) == ["no pod of pool warm can be had (none is free): a Job is made"]
    assert await said(await pod.exec(*HELLO)) == b"hello\n"
    assert (len(site.ever(JOBS)), site.record.pooled) == (1, False)
    # It is the copy's, whatever comes into the pool then.
    await pool(site, 1)
    await site.pod().prepare("run")
    assert (len(taken(site)), len(waiting(site))) == (1, 1)
    assert await pod.leave(copy=True)
    assert site.objects(JOBS) == []


async def test_pods_of_another_request_are_left_where_they_are(site: PodSite) -> None:
    await pool(site, 2, grace_s=7)
    (told,) = await prepared(site.pod())
    assert "its pods, 2 of them, are made of another request or by another version" in told
    assert len(waiting(site)) == 2
    assert not site.record.pooled


async def test_who_may_not_take_one_has_a_job(site: PodSite) -> None:
    await pool(site, 1)
    site.server.faults.answer(500, matches=of(verb="patch", resource="pods"))
    (told,) = await prepared(site.pod())
    assert "etcdserver: request timed out" in told
    assert len(site.ever(JOBS)) == 1


@pytest.mark.exhaustive
async def test_a_worker_lost_after_any_request_is_followed_by_one_that_takes_no_second_pod(
    cluster: BackgroundServer, tmp_path: Path
) -> None:
    await pool(site_of(cluster, tmp_path), 2)
    for count in range(1, 30):
        (directory := tmp_path / str(count)).mkdir()
        site = site_of(cluster, directory)
        await full(site, 2)
        before = len(site.server.requests)
        preparing = asyncio.create_task(site.pod().prepare("run"))
        while len(site.server.requests) < before + count and not preparing.done():
            await asyncio.sleep(0)
        finished = preparing.done()
        preparing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await preparing
        following = site.pod()
        await following.prepare("run")
        assert taken(site) == [site.name], count
        assert await said(await following.exec(*HELLO)) == b"hello\n"
        assert await following.leave(copy=True)
        assert (taken(site), site.objects(JOBS)) == ([], [])
        await site.aclose()
        if finished:
            return
    raise AssertionError("a pod takes more requests than that")


async def test_one_that_is_deleted_is_followed_by_another_of_the_pool(site: PodSite) -> None:
    await pool(site, 1)
    pod = await site.made()
    first = site.name
    await until(lambda: waiting(site))
    site.cluster.call(lambda: site.server.deletion.delete(PODS, "default", first, DeleteOptions()))
    await pod.prepare("run")
    assert site.name != first
    assert site.record.pooled
    assert site.objects(JOBS) == []


async def test_its_container_that_begins_again_is_waited_for(site: PodSite) -> None:
    await pool(site, 2)
    pod = await site.made()
    name = site.name
    assert await said(await pod.exec("sh", "-c", "echo kept > ~/file; echo")) == b"\n"
    site.cluster.call(lambda: site.server.nodes.kill_for_memory("default", name, "agent"))
    await until(lambda: not any(runs(each) for each in site.objects(PODS) if each["metadata"]["name"] == name))
    await site.pod().prepare("run")
    assert taken(site) == [name]
    assert site.name == name
    assert await said(await site.pod().exec("cat", f"{manifest.HOME}/file")) == b"kept\n"
    assert site.objects(JOBS) == []


@pytest.mark.exhaustive
async def test_pods_of_a_lost_node_are_left_where_they_are(site: PodSite) -> None:
    await pool(site, 1)
    site.cluster.call(lambda: site.server.nodes.lose("node-1"))
    told: list[str] = []
    with pytest.raises(PlaceError, match="node"):
        await site.pod(start_s=5).prepare("run", told.append)
    assert told[0] == "no pod of pool warm can be had (none is free): a Job is made"
    assert all(manifest.TAKEN_FROM not in each["metadata"]["labels"] for each in site.objects(PODS))
    site.cluster.call(lambda: site.server.nodes.recover("node-1"))


async def test_a_sweep_deletes_those_that_nobody_knows(site: PodSite) -> None:
    await pool(site, 2)
    await site.made()
    worker = site.worker()
    forgotten = worker.of(site.placement, "f" * 32).pod
    await forgotten.prepare("run")
    await worker.records.forget("f" * 32)
    assert len(taken(site)) == 2
    assert await worker.sweep() == 1
    await until(lambda: taken(site) == [site.name])
    await until(lambda: len(waiting(site)) == 2)
    assert await worker.sweep() == 0
