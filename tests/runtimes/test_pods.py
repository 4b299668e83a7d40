"""What is particular to pods: one Job for a copy whatever happens on the way, and what is said of one that ends."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from activities.ports.runtime import StopTimes
from activities.runtimes.kubernetes import manifest
from activities.runtimes.kubernetes.pod_errors import PodGone
from activities.shim.client import MachineUnreachable
from steersman.contracts.errors import PlaceError
from steersman.contracts.kubernetes import KubernetesRuntime
from tests.runtimes.pod_site import IMAGE, PodSite, said
from tests.runtimes.stage import DEAF, ECHO, QUICK, line, records
from tests.support.kubernetes import BackgroundServer
from tests.support.kubernetes.deletion import DeleteOptions
from tests.support.kubernetes.faults import ExecCut, of
from tests.support.kubernetes.kinds import JOBS, PODS
from tests.support.processes import lives, marked, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

HELLO = ("sh", "-c", "echo hello")


# Made.


async def test_prepared_twice_it_is_made_once(site: PodSite) -> None:
    first = await site.made()
    before = site.record
    await first.prepare("run")
    await site.pod().prepare("run")
    assert site.record == before
    assert (len(site.ever(JOBS)), len(site.ever(PODS))) == (1, 1)
    assert len(site.requests("create", "jobs")) == 1


async def test_workers_that_prepare_at_once_make_one_job(site: PodSite) -> None:
    pods = [site.pod() for _ in range(5)]
    await asyncio.gather(*(pod.prepare("run") for pod in pods))
    assert (len(site.ever(JOBS)), len(site.ever(PODS))) == (1, 1)
    assert [await said(await pod.exec(*HELLO)) for pod in pods] == [b"hello\n"] * 5


async def test_a_job_of_the_name_that_is_anothers_is_refused_and_left_alone(site: PodSite, tmp_path: Path) -> None:
    other = site.pod(site.worker(tmp_path / "other", "other"))
    await other.prepare("theirs")
    before = [each["metadata"] for kind in (JOBS, PODS) for each in site.objects(kind)]
    ours = site.pod(site.worker(site.state))
    with pytest.raises(PlaceError, match=r"AlreadyExists.*not this run's") as refused:
        await ours.prepare("run")
    assert refused.value.facts["job"] == site.job
    assert await ours.leave(copy=True)
    assert [each["metadata"] for kind in (JOBS, PODS) for each in site.objects(kind)] == before
    assert await said(await other.exec(*HELLO)) == b"hello\n"


@pytest.mark.exhaustive
async def test_a_worker_lost_after_any_request_is_followed_by_one_that_makes_no_second_job(
    cluster: BackgroundServer, tmp_path: Path
) -> None:
    for count in range(1, 30):
        (directory := tmp_path / str(count)).mkdir()
        site = PodSite(cluster, directory)
        before, jobs = len(site.server.requests), len(site.ever(JOBS))
        preparing = asyncio.create_task(site.pod().prepare("run"))
        while len(site.server.requests) < before + count and not preparing.done():
            await asyncio.sleep(0)
        finished = preparing.done()
        preparing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await preparing
        following = site.pod()
        await following.prepare("run")
        assert len(site.ever(JOBS)) == jobs + 1, count
        assert await said(await following.exec(*HELLO)) == b"hello\n"
        assert await following.leave(copy=True)
        assert site.left == []
        await site.aclose()
        if finished:
            return
    raise AssertionError("a pod takes more requests than that")


async def test_a_job_that_was_made_when_its_maker_died_is_adopted(site: PodSite) -> None:
    worker = site.worker()
    runtime = KubernetesRuntime.model_validate(site.placement)
    owner = site.pod(worker)._objects.owner  # noqa: SLF001 - as it would have made it
    job = manifest.job(runtime, site.copy, owner, "run")
    await worker.api(None).connect()
    made = await worker.api(None).create("/apis/batch/v1/namespaces/default/jobs", job)
    await site.pod(worker).prepare("run")
    assert site.record.job_uid == made["metadata"]["uid"]
    assert len(site.ever(JOBS)) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", [429, 500, 503, 504])
async def test_what_the_server_says_for_a_while_holds_up_nothing_for_good(site: PodSite, code: int) -> None:
    pod = site.pod()
    site.server.faults.answer(code, times=2)
    await pod.prepare("run")
    site.server.faults.answer(code, matches=of(resource="pods/exec"))
    other = site.pod()
    with pytest.raises(MachineUnreachable):
        await other.exec(*HELLO)
    assert await said(await other.exec(*HELLO)) == b"hello\n"
    site.server.faults.answer(code, times=2)
    for _ in range(2):
        with pytest.raises(MachineUnreachable):
            await other.leave(copy=True)
    assert await other.leave(copy=True)
    assert len(site.ever(JOBS)) == 1
    assert site.left == []


async def test_a_server_that_says_so_for_long_is_told_of(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start._RETRY_S", 0.5)
    site.server.faults.answer(503, times=1000)
    with pytest.raises(PlaceError, match="ServiceUnavailable: the server is currently unable"):
        await site.pod().prepare("run")


async def test_a_server_that_says_so_now_and_then_may_do_it_for_as_long_as_the_pod_takes(
    site: PodSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start._RETRY_S", 2.0)
    monkeypatch.setattr("activities.runtimes.kubernetes.start.HOPELESS_S", 600.0)
    site.server.settings.image_errors = {IMAGE: "ErrImagePull"}
    preparing = asyncio.create_task(site.made())

    async def asked(times: int) -> None:
        wanted = len(site.server.requests) + times
        await until(lambda: len(site.server.requests) >= wanted or preparing.done())

    began = time.monotonic()
    while time.monotonic() - began < 5:
        site.server.faults.answer(503, times=1)
        await asked(5)
        assert not preparing.done()
    site.server.settings.image_errors = {}
    await preparing


async def test_a_server_that_is_away_is_waited_for_by_others(site: PodSite) -> None:
    pod = await site.made()
    running = await pod.exec("cat")
    site.cluster.call(site.server.unreachable)
    with pytest.raises(MachineUnreachable):
        await running.wait()
    for each in (pod, site.pod()):
        with pytest.raises(MachineUnreachable):
            await each.prepare("run")
        with pytest.raises(MachineUnreachable):
            await each.exec(*HELLO)
        with pytest.raises(MachineUnreachable):
            await each.leave(copy=True)
    assert not site.record.removed
    site.cluster.call(site.server.reachable)
    following = site.pod()
    await following.prepare("run")
    assert await said(await following.exec(*HELLO)) == b"hello\n"
    assert await following.leave(copy=True)
    assert len(site.ever(JOBS)) == 1
    assert site.left == []


async def test_a_server_that_answers_nothing_is_given_up(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = await site.made()
    monkeypatch.setattr("activities.runtimes.kubernetes.api._ANSWER_S", 0.3)
    other = site.pod()
    for ask in (lambda: other.prepare("run"), lambda: pod.leave(copy=True)):
        site.server.faults.swallow()
        with pytest.raises(MachineUnreachable, match="does not answer within"):
            await ask()
    site.server.faults.swallow(matches=of(resource="pods/exec"))
    with pytest.raises(MachineUnreachable, match="no program began"):
        await other.exec(*HELLO)
    monkeypatch.undo()
    assert await pod.leave(copy=True)
    assert site.left == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("why", ["ErrImagePull", "InvalidImageName"])
async def test_an_image_that_is_not_to_be_had_is_named(
    site: PodSite, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start.HOPELESS_S", 0.5)
    site.server.settings.image_errors = {IMAGE: why}
    pod = site.pod()
    with pytest.raises(PlaceError, match=rf"Image.*{IMAGE}"):
        await pod.prepare("run")
    assert await pod.leave(copy=True)
    assert site.left == []


async def test_an_image_that_comes_late_is_waited_for(site: PodSite) -> None:
    site.server.settings.image_errors = {IMAGE: "ErrImagePull"}
    preparing = asyncio.create_task(site.pod().prepare("run"))
    await until(lambda: "ErrImagePull" in str(site.objects(PODS)))
    site.server.settings.image_errors = {}
    await preparing


async def test_a_secret_that_is_not_there_is_named(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start.HOPELESS_S", 0.5)
    with pytest.raises(PlaceError, match='CreateContainerConfigError: secret "nope" not found'):
        await site.made(env_from_secrets=["nope"])


async def test_a_quota_that_is_used_up_is_named(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start.HOPELESS_S", 0.5)
    site.server.settings.pods_refused = "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"
    with pytest.raises(PlaceError, match=r"FailedCreate: .*exceeded quota: none"):
        await site.made()


async def test_a_context_that_is_not_there_is_named_and_nothing_has_to_be_removed(site: PodSite) -> None:
    pod = site.pod(context="nope")
    with pytest.raises(PlaceError, match="context 'nope' cannot be used") as failed:
        await pod.prepare("run")
    assert failed.value.facts["reason"] == "Unusable"
    assert await pod.remove()
    assert site.record.removed


async def test_a_pod_that_its_node_cannot_set_up_is_named_by_its_events(
    site: PodSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod itself says ContainerCreating, for ever. One that its node has set up later runs."""
    monkeypatch.setattr("activities.runtimes.kubernetes.start._SILENT_S", 1.0)  # the event may come late
    site.server.settings.sandbox_error = "minimum memory limit is 6MB"
    told: list[str] = []
    pod = site.pod(start_s=8)
    with pytest.raises(PlaceError, match=r"FailedCreatePodSandBox: .*minimum memory limit is 6MB") as failed:
        await pod.prepare("run", told.append)
    assert failed.value.facts["reason"] == "FailedCreatePodSandBox"
    assert told[-1] == (
        "waiting for a pod: FailedCreatePodSandBox: Failed to create pod sandbox: minimum memory limit is 6MB"
    )
    later = asyncio.create_task(site.made())
    await until(lambda: "ContainerCreating" in str(site.objects(PODS)))
    site.server.settings.sandbox_error = None
    await later


@pytest.mark.exhaustive
async def test_a_pod_that_no_node_takes_is_given_its_time(site: PodSite) -> None:
    site.server.settings.unschedulable = "0/1 nodes are available: 1 Insufficient cpu."
    with pytest.raises(PlaceError, match="Unschedulable: 0/1 nodes are available: 1 Insufficient cpu") as failed:
        await site.made(start_s=5)
    assert failed.value.facts["reason"] == "Unschedulable"


async def test_a_queue_may_hold_it_for_ever_and_it_is_cancelled_at_once(
    site: PodSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start.CREATED_S", 0.5)
    pod = site.pod(queue="agents")
    preparing = asyncio.create_task(pod.prepare("run"))
    await asyncio.sleep(1.5)
    assert not preparing.done()
    (job,) = site.objects(JOBS)
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "agents"
    assert site.objects(PODS) == []
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    async with asyncio.timeout(2):
        assert await pod.leave(copy=True)
    assert site.left == []


async def test_a_job_that_its_queue_lets_go_runs(site: PodSite) -> None:
    preparing = asyncio.create_task(site.pod(queue="agents").prepare("run"))
    (job,) = await until(lambda: site.objects(JOBS))
    site.cluster.call(lambda: site.server.store.update(JOBS, job, lambda after: after["spec"].update(suspend=False)))
    await preparing


async def test_a_pod_that_was_removed_while_it_was_waited_for_is_not_made_again(site: PodSite) -> None:
    site.server.settings.schedules_pods = False
    preparing = asyncio.create_task(site.pod().prepare("run"))
    await until(lambda: site.objects(PODS))
    assert await site.pod().leave(copy=True)
    with pytest.raises((PlaceError, MachineUnreachable)):
        await asyncio.wait_for(preparing, 5)
    assert site.left == []


@pytest.mark.exhaustive
async def test_a_pod_that_somebody_deletes_is_waited_out_and_another_one_is_made(site: PodSite) -> None:
    await site.made()
    run = site.run()
    await line(await run.open(DEAF), b"ready")
    before = site.record
    site.cluster.call(lambda: site.server.deletion.delete(PODS, "default", site.name, DeleteOptions()))
    following = site.pod()
    await following.prepare("run")
    assert site.record.old_job == before.job_uid
    assert site.record.pod_uid != before.pod_uid
    assert site.record.runs == ()
    assert not marked(site.mark)
    assert await said(await following.exec(*HELLO)) == b"hello\n"
    assert await following.leave(copy=True)
    assert site.left == []


async def test_a_late_look_at_a_pod_that_is_gone_says_nothing_of_the_one_after_it(
    site: PodSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a worker that was frozen meanwhile."""
    await site.made()
    run = site.run()
    await line(await run.open(DEAF), b"ready")
    worker = site.worker()
    late, api = site.pod(worker), worker.api(None)
    get, asked, thawed = api.get, asyncio.Event(), asyncio.Event()

    async def slow(*words: Any, **more: Any) -> Any:
        asked.set()
        await thawed.wait()
        return await get(*words, **more)

    monkeypatch.setattr(api, "get", slow)
    looking = asyncio.create_task(late.cause())
    await asked.wait()
    site.cluster.call(lambda: site.server.deletion.delete(PODS, "default", site.name, DeleteOptions()))
    following = site.pod()
    await following.prepare("run")
    before = site.record
    thawed.set()
    await looking
    assert site.record == before
    assert await said(await site.pod().exec(*HELLO)) == b"hello\n"
    assert await following.leave(copy=True)


async def test_a_job_that_somebody_deletes_is_waited_out(site: PodSite) -> None:
    site.server.settings.image_errors = {IMAGE: "ErrImagePull"}
    preparing = asyncio.create_task(site.pod().prepare("run"))
    (pod,) = await until(lambda: site.objects(PODS))
    site.cluster.call(lambda: site.server.nodes.lose("node-1"))
    site.cluster.call(lambda: site.server.deletion.delete(JOBS, "default", site.job, DeleteOptions("Foreground")))
    await asyncio.sleep(1)
    assert len(site.ever(JOBS)) == 1
    site.server.settings.image_errors = {}
    site.cluster.call(lambda: site.server.nodes.recover("node-1"))
    await preparing
    assert site.record.pod != pod["metadata"]["name"]
    assert len(site.ever(JOBS)) == 2


# Used.

CUTS = (0, 1, 5, 8, 9, 10, 11, 100, 1000, 5000)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["sent", "received"])
async def test_a_connection_that_is_cut_after_any_byte_is_followed_by_a_whole_one(site: PodSite, way: str) -> None:
    await site.made()
    size = 20_000
    for after in CUTS:
        pod = site.pod()
        site.server.faults.exec_cuts = [ExecCut(**{way: after})]
        with pytest.raises(MachineUnreachable):
            await said(await pod.exec("cat", stdin=b"x" * size))
        assert await said(await pod.exec("cat", stdin=b"y" * size)) == b"y" * size
        await pod.aclose()


async def test_all_programs_of_a_connection_that_is_cut_end_so(site: PodSite) -> None:
    pod = await site.made()
    program = f"echo begun; export MARK={site.mark}; exec sleep 600"
    streams = [await pod.exec("sh", "-c", program) for _ in range(10)]
    for each in streams:
        assert await each.stdout.readline() == b"begun\n"
    site.cluster.call(site.server.sessions.cut)
    for each in streams:
        assert await each.stdout.read() == b""
        with pytest.raises(MachineUnreachable):
            await each.wait()
    assert await said(await pod.exec(*HELLO)) == b"hello\n"
    await until(lambda: not marked(site.mark))  # they end with their connection, there too


async def test_a_connection_that_comes_after_the_worker_has_let_go_is_closed(site: PodSite) -> None:
    await site.made()
    await until(lambda: site.server.sessions.count == 1)
    pod = site.pod()
    site.server.faults.delay(0.5, 1, of(resource="pods/exec"))
    asking = asyncio.create_task(pod.exec(*HELLO))
    await until(lambda: len(site.requests("get", "pods/exec")) == 2)
    await pod.aclose()
    with pytest.raises(MachineUnreachable, match="let go of it"):
        await asking
    await until(lambda: site.server.sessions.count == 1)


async def test_an_end_that_nobody_tells_is_no_success(site: PodSite) -> None:
    pod = await site.made()
    site.server.faults.dropped_statuses = 1
    stream = await pod.exec("sh", "-c", "kill -9 $PPID; sleep 600")
    with pytest.raises(MachineUnreachable):
        await stream.wait()
    assert await said(await pod.exec(*HELLO)) == b"hello\n"


async def test_a_killed_server_of_programs_is_told_of_in_the_clusters_words(site: PodSite) -> None:
    pod = await site.made()
    stream = await pod.exec("sh", "-c", "kill -9 $PPID; sleep 600")
    with pytest.raises(MachineUnreachable, match="exit code 137"):
        await stream.wait()
    assert await said(await pod.exec(*HELLO)) == b"hello\n"


async def test_a_python_that_is_not_there_is_named(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start.HOPELESS_S", 0.5)
    site.placement["python"] = "/no/python3"
    with pytest.raises(PlaceError, match=r"StartError|CrashLoopBackOff"):
        await site.made()


# Ended by others.


@pytest.mark.exhaustive
async def test_a_killed_container_begins_again_with_its_files_and_its_agent_is_lost(site: PodSite) -> None:
    await site.made()
    run = site.run()
    channel = await run.open("open('made', 'w').close()\n" + DEAF)
    await line(channel, b"ready")
    restarted = "its container ended: OOMKilled (exit code 137)"
    site.cluster.call(lambda: site.server.nodes.kill_for_memory("default", site.name, "agent"))
    found = await records(channel)
    assert found[-1].stream != "exit", "nobody saw the end"
    assert not marked(site.mark)
    assert await site.pod().cause() == restarted
    assert await run.runtime.loss(run.key) is None
    following = await run.open("import os\nprint(os.path.exists('made'))", attempt=2)
    assert [each.data for each in await records(following) if each.stream == "out"] == [b"True"]
    assert (len(site.ever(JOBS)), len(site.ever(PODS))) == (1, 1)


@pytest.mark.exhaustive
async def test_an_evicted_pod_is_gone_with_proof(site: PodSite) -> None:
    await site.made()
    run = site.run()
    channel = await run.open(DEAF)
    await line(channel, b"ready")
    site.cluster.call(lambda: site.server.nodes.evict("default", site.name))
    await records(channel)
    await until(lambda: not marked(site.mark))
    assert "Evicted" in await until(site.pod().cause)
    assert "Evicted: The node was low on resource: memory." in str(await run.runtime.loss(run.key))
    report = await run.runtime.stop(run.key, QUICK, "cancelled")
    assert (report.outcome, report.left) == ("already_finished", ())
    with pytest.raises(PodGone):
        await site.pod().exec(*HELLO)


@pytest.mark.exhaustive
async def test_a_pod_that_somebody_deletes_has_its_agents_stopped_by_their_shims(site: PodSite) -> None:
    await site.made()
    run = site.run()
    channel = await run.open(ECHO)
    await channel.write("a", "one\n")
    await line(channel, b"heard one")
    reading = asyncio.create_task(records(channel))
    site.cluster.call(lambda: site.server.deletion.delete(PODS, "default", site.name, DeleteOptions()))
    found = await asyncio.wait_for(reading, 20)
    assert not marked(site.mark)
    await until(site.pod().cause)
    assert "deleted, and not by Steersman" in str(await until(lambda: run.runtime.loss(run.key)))
    report = await run.runtime.stop(run.key, QUICK, "cancelled")
    seen = found[-1].stream == "exit"
    assert (
        (report.outcome in ("already_finished", "stopped"))
        if seen
        else report.outcome
        in (
            "already_finished",
            "unverified",
        )
    )


@pytest.mark.exhaustive
async def test_a_pod_that_is_deleted_lets_what_was_asked_for_end_once_its_agents_have(site: PodSite) -> None:
    await site.made(grace_s=30)
    run = site.run()
    channel = await run.open(ECHO)
    await channel.write("a", "one\n")
    await line(channel, b"heard one")
    stream = await site.pod().exec("python3", "-c", "import time; time.sleep(4); print('fetched')")
    init, began = site.init, time.monotonic()
    site.cluster.call(lambda: site.server.deletion.delete(PODS, "default", site.name, DeleteOptions()))
    assert await stream.stdout.read(100) == b"fetched\n"
    await until(lambda: not lives(init))
    assert time.monotonic() - began < 30 - 3  # it has not waited for all of its grace
    assert not marked(site.mark)


async def test_a_pod_that_is_taken_out_of_the_books_proves_nothing(site: PodSite) -> None:
    site.server.settings.forced_deletion_leaves_processes = True
    await site.made()
    run = site.run()
    channel = await run.open(DEAF)
    await line(channel, b"ready")
    init = site.init
    site.cluster.call(lambda: site.server.deletion.delete(PODS, "default", site.name, DeleteOptions(grace=0)))
    site.cluster.call(site.server.sessions.cut)
    await records(channel)
    assert lives(init)
    assert marked(site.mark)
    assert "deleted, and not by Steersman" in await until(lambda: run.runtime.loss(run.key))
    assert (await run.runtime.stop(run.key, QUICK, "cancelled")).outcome == "unverified"


@pytest.mark.exhaustive
async def test_a_lost_node_proves_nothing_until_it_is_back(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 1)
    await site.made()
    run = site.run()
    channel = await run.open(DEAF)
    await line(channel, b"ready")
    await channel.close()
    site.cluster.call(lambda: site.server.nodes.lose("node-1"))
    site.cluster.call(site.server.sessions.cut)
    assert (await run.runtime.stop(run.key, QUICK, "cancelled")).outcome == "unverified"
    assert await run.runtime.loss(run.key) is None
    await run.runtime.release(run.key)
    assert marked(site.mark)
    assert run.runtime.has_living(run.key)
    site.cluster.call(lambda: site.server.nodes.recover("node-1"))
    report = await run.runtime.stop(run.key, QUICK, "cancelled")
    assert (report.outcome, report.how) == ("stopped", "killed")
    await until(lambda: all("steersman-shim" in each for each in marked(site.mark).values()))


async def test_a_pod_that_is_collected_for_its_lost_node_proves_nothing(site: PodSite) -> None:
    await site.made()
    run = site.run()
    channel = await run.open(DEAF)
    await line(channel, b"ready")
    await channel.close()
    site.cluster.call(lambda: site.server.nodes.lose("node-1"))
    why = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "node is gone"}

    def collected(after: dict[str, Any]) -> None:
        kept = {key: value for key, value in after["status"].items() if key not in ("reason", "message")}
        after["status"] = {**kept, "phase": "Failed", "conditions": [why]}

    (pod,) = site.objects(PODS)
    site.cluster.call(lambda: site.server.store.update(PODS, pod, collected))
    site.cluster.call(site.server.sessions.cut)
    report = await run.runtime.stop(run.key, QUICK, "cancelled")
    assert report.outcome == "unverified"
    assert marked(site.mark)
    assert "DeletionByPodGC: node is gone" in str(await run.runtime.loss(run.key))


async def test_a_stop_before_there_is_a_pod_keeps_the_run_out_of_it(site: PodSite) -> None:
    site.server.settings.schedules_pods = False
    preparing = asyncio.create_task(site.pod().prepare("run"))
    await until(lambda: site.objects(PODS))
    run = site.run()
    async with asyncio.timeout(2):
        report = await run.runtime.stop(run.key, StopTimes(0.25, 1.5), "cancelled")
    assert (report.outcome, report.processes) == ("stopped", 0)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing


# Removed.


async def test_the_last_one_that_leaves_removes_it(site: PodSite) -> None:
    await site.made()
    run = site.run()
    channel = await run.open("print('done')")
    await records(channel)
    await channel.close()
    assert not await site.pod().leave(copy=True)
    assert len(site.left) == 2
    await run.runtime.release(run.key)
    assert site.left == []
    assert site.record.removed
    assert not run.runtime.has_living(run.key)
    (deleted,) = site.requests("delete", "jobs")
    assert deleted.status == 200
    assert (await run.runtime.stop(run.key, QUICK, "cancelled")).outcome == "already_finished"


@pytest.mark.exhaustive
async def test_an_agent_at_work_keeps_its_pod(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.shim_runtime.UNREACHABLE_S", 1)
    await site.made()
    run = site.run()
    channel = await run.open(ECHO)
    assert not await site.pod().leave(copy=True)
    await run.runtime.release(run.key)
    await channel.write("a", "one\n")
    await line(channel, b"heard one")
    assert (await run.runtime.stop(run.key, QUICK, "cancelled")).outcome == "stopped"
    await run.runtime.release(run.key)
    assert site.left == []


async def test_it_is_deleted_in_the_foreground_and_by_its_uid(site: PodSite) -> None:
    pod = await site.made()
    job, stale = site.record.job_uid, "00000000-0000-0000-0000-000000000000"
    with pytest.raises(Exception, match="Precondition failed"):
        await site.worker().api(None).delete(f"/apis/batch/v1/namespaces/default/jobs/{site.job}", stale)
    assert await pod.leave(copy=True)
    changes = site.cluster.call(lambda: list(site.server.store.changes))
    last = [each.after["metadata"] for each in changes if each.after["metadata"]["uid"] == job][-1]
    assert "foregroundDeletion" in str([each.after["metadata"] for each in changes if each.kind is JOBS])
    assert last["deletionTimestamp"]


async def test_what_ignores_sigterm_has_its_grace_and_is_killed_then(site: PodSite) -> None:
    pod = await site.made()
    await pod.enter("another run")
    deaf = f"trap '' TERM; export MARK={site.mark}; (setsid sh -c 'trap \"\" TERM; echo up; sleep 600') & wait"
    stream = await pod.exec("sh", "-c", deaf)
    assert await stream.stdout.readline() == b"up\n"
    (pid,) = await until(lambda: [pid for pid, words in marked(site.mark).items() if words.startswith("sleep")])
    assert lives(pid)
    started = asyncio.get_running_loop().time()
    await pod.leave("another run")
    assert await pod.leave(copy=True)
    assert asyncio.get_running_loop().time() - started < 5 + 3
    assert not marked(site.mark)
    assert site.left == []


@pytest.mark.exhaustive
async def test_a_worker_lost_after_any_request_of_a_removal_is_followed_by_one_that_ends_it(
    cluster: BackgroundServer, tmp_path: Path
) -> None:
    for count in range(1, 30):
        (directory := tmp_path / str(count)).mkdir()
        site = PodSite(cluster, directory)
        pod = await site.made()
        before = len(site.server.requests)
        removing = asyncio.create_task(pod.leave(copy=True))
        while len(site.server.requests) < before + count and not removing.done():
            await asyncio.sleep(0)
        finished = removing.done()
        removing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await removing
        assert await site.pod().leave(copy=True), count
        assert site.left == []
        assert site.record.removed
        await site.aclose()
        if finished:
            return
    raise AssertionError("a removal takes more requests than that")


async def test_a_pod_of_a_lost_node_is_not_said_to_be_gone(site: PodSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.removal._KILL_S", -4.0)
    pod = await site.made()
    await pod.enter("another run")
    await pod.leave("another run")
    site.cluster.call(lambda: site.server.nodes.lose("node-1"))
    with pytest.raises(MachineUnreachable, match="not gone yet"):
        await pod.leave(copy=True)
    assert not site.record.removed
    site.cluster.call(lambda: site.server.nodes.recover("node-1"))
    monkeypatch.undo()
    assert await site.pod().leave(copy=True)
    assert site.left == []


async def test_a_sweep_deletes_jobs_of_this_owner_that_nobody_knows(site: PodSite, tmp_path: Path) -> None:
    await site.made()
    kept = site.job
    worker = site.worker()
    forgotten = site.worker().of(site.placement, "f" * 32).pod
    await forgotten.prepare("run")
    await worker.records.forget("f" * 32)
    theirs = site.worker(tmp_path / "other", "other").of(site.placement, "e" * 32).pod
    await theirs.prepare("run")
    assert await worker.sweep() == 1
    await until(lambda: len(site.objects(JOBS)) == 2)
    assert {each["metadata"]["name"] for each in site.objects(JOBS)} == {kept, manifest.job_name("e" * 32)}
    assert await worker.sweep() == 0


async def test_a_pod_that_was_removed_long_ago_is_forgotten(site: PodSite) -> None:
    worker, other = site.worker(), "f" * 32
    await (pod := site.pod(worker)).prepare("run")
    await worker.of(site.placement, other).prepare("run")
    await worker.prune(time.time() + 1)
    assert {copy for copy, _ in worker.records.all()} == {site.copy, other}
    assert await pod.leave(copy=True)
    await worker.prune(time.time() - 3600)
    assert site.record.removed
    await worker.prune(time.time() + 1)
    assert [copy for copy, _ in worker.records.all()] == [other]
    assert site.pod(worker) is not pod
    assert await site.pod(worker).leave(copy=True)


async def test_nothing_of_a_run_is_ever_in_the_cluster_but_its_name(site: PodSite) -> None:
    await site.made()
    run = site.run()
    channel = await run.open("import sys\nprint('a said-canary')\nfor line in sys.stdin: print(line)")
    await channel.write("a", "a prompt-canary\n")
    await line(channel, b"a prompt-canary")
    await run.runtime.stop(run.key, QUICK, "cancelled")
    await channel.close()
    await site.pod().leave(copy=True)
    await run.runtime.release(run.key)
    ever = site.cluster.call(site.server.store.ever)
    assert "steersman.dev/run" in ever
    assert "canary" not in ever
    assert site.mark not in ever
    assert "canary" not in " ".join(each.path + str(each.query) for each in site.server.requests)
