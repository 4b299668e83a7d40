"""`steer doctor --runtime kubernetes`: what it finds in a cluster of the tests' own, of which nothing is left there."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.runtimes.kubernetes.api import KubernetesApi
from activities.runtimes.kubernetes.manifest import OWNER
from activities.runtimes.kubernetes.pods import KubernetesPods
from activities.store.identity import StoreIdentity
from steersman.cli.worker_code import worker_command
from steersman.contracts.kubernetes import KubernetesRuntime
from tests.cli.steer import Said, Steer
from tests.support.kubernetes import BackgroundServer, Rule
from tests.support.kubernetes.faults import of
from tests.support.kubernetes.fixtures import cluster, settings
from tests.support.kubernetes.kinds import JOBS, PODS, QUOTAS
from tests.support.kubernetes.worker_role import worker_role
from tests.support.processes import until
from tests.support.temporal import Namespace
from workers import cluster_check
from workers.cluster_check import RIGHTS
from workers.connection import owner_of

__all__ = ["cluster", "settings"]

IMAGE = "local/agent:1"
ALLOWED = {"STEERSMAN_ALLOW_KUBERNETES": "default", "STEERSMAN_ALLOW_POD": "image=local/*"}
ALL_WELL = ["policy", "cluster", "access", "quota", "pod", "python there", "clock there", "disk there", "git there"]
RULES = worker_role("default")


class Doctor:
    """The command, as a user of the cluster who may do what `rules` say; anything without them."""

    def __init__(self, steer: Steer, cluster: BackgroundServer, home: Path) -> None:
        self.steer, self.cluster, self.config = steer, cluster, home / "kubeconfig"
        scratch = {"TMPDIR": str(home)}  # where one that is killed leaves what it has written
        self.env = {"KUBECONFIG": str(self.config), "STEERSMAN_AGENTS": "process", **ALLOWED, **scratch}
        cluster.server.kubeconfig(self.config)

    def may(self, *rules: Rule) -> None:
        token = self.cluster.call(lambda: self.cluster.server.access.grant("worker", *rules))
        self.cluster.server.kubeconfig(self.config, token)

    async def __call__(self, *words: str, namespace: str = "default", image: str = IMAGE, **env: str) -> Said:
        arguments = ("doctor", "--runtime", "kubernetes", namespace, "--image", image, "--json", "--pod", "grace_s=5")
        return await self.steer(*arguments, *words, **{**self.env, **env})

    async def checks(self, *words: str, **given: str) -> dict[str, dict[str, Any]]:
        """By their names; after each of them nothing is left in the cluster."""
        said = await self(*words, **given)
        found = {each["check"]: each for each in said.json}
        assert (said.code == 0) == all(each["ok"] for each in found.values()), said.json
        assert all(each["hint"] for each in found.values() if not each["ok"]), said.json
        assert self.left() == 0
        return found

    def left(self) -> int:
        store = self.cluster.server.store
        return self.cluster.call(lambda: sum(len(store.list(kind, "default")) for kind in (JOBS, PODS)))

    def jobs(self) -> list[dict[str, Any]]:
        return self.cluster.call(lambda: list(self.cluster.server.store.list(JOBS, "default")))

    def created(self) -> list[Any]:
        """The Jobs that were ever asked for."""
        requests = self.cluster.server.requests
        return self.cluster.call(lambda: [each.body for each in requests if of(verb="create", resource="jobs")(each)])


@pytest.fixture
def doctor(steer: Steer, cluster: BackgroundServer, tmp_path: Path) -> Doctor:
    return Doctor(steer, cluster, tmp_path)


@pytest.fixture
async def api(doctor: Doctor) -> AsyncIterator[KubernetesApi]:
    """As the user of `doctor`, who may do what a worker does."""
    doctor.may(*RULES)
    found = KubernetesApi(None, {"KUBECONFIG": str(doctor.config)})
    yield found
    await found.aclose()


async def test_all_is_well_and_nothing_is_left(doctor: Doctor) -> None:
    doctor.may(*RULES, Rule("list", "resourcequotas"))
    checks = await doctor.checks()
    assert list(checks) == [*ALL_WELL, "shim there", "pod removed"]
    assert [each for each in checks.values() if not each["ok"]] == []
    assert "allowed" in checks["policy"]["detail"]
    assert "v1.35.0" in checks["cluster"]["detail"]
    assert f"all {len(RIGHTS)} rights" in checks["access"]["detail"]
    assert "default has none" in checks["quota"]["detail"]
    (job,) = doctor.created()
    assert job["spec"]["activeDeadlineSeconds"] == 900 + 120


@pytest.mark.exhaustive
async def test_what_a_worker_would_refuse_is_said_with_the_flags_that_help(doctor: Doctor) -> None:
    doctor.cluster.server.settings.unschedulable = "0/1 nodes are available"
    words = ("--pod", "start_s=5", "--pod", 'env_from_secrets=["key"]', "--pod", 'node_selector={"gpu":"yes"}')
    checks = await doctor.checks(*words, STEERSMAN_ALLOW_KUBERNETES="", STEERSMAN_ALLOW_POD="image=none")
    detail = checks["policy"]["detail"]
    assert "--allow-kubernetes default --allow-pod image=local/agent:1 --allow-pod secret=key" in detail
    assert "--allow-pod node_selector=gpu=yes" in detail
    assert "0/1 nodes are available" in checks["pod"]["detail"]
    assert not checks["pod"]["ok"]


@pytest.mark.parametrize("lost", RIGHTS, ids=lambda right: right.name)
async def test_each_right_that_is_missing_is_named_with_the_role(
    api: KubernetesApi, doctor: Doctor, lost: cluster_check.Right
) -> None:
    doctor.may(*(rule for rule in RULES if (rule.verb, rule.group, rule.resource) != lost[:3]))
    (found,) = await cluster_check.access(api, "default")
    assert lost.name in found.check
    assert found.ok is not lost.is_needed
    assert "deploy/kubernetes/access.yaml" in found.detail + found.hint


async def test_no_pod_is_made_where_it_could_not_be_deleted(doctor: Doctor) -> None:
    doctor.may(*(each for each in RULES if (each.verb, each.resource) != ("delete", "jobs")))
    checks = await doctor.checks()
    assert list(checks) == ["policy", "cluster", "access: delete jobs", "quota"]
    assert not checks["access: delete jobs"]["ok"]
    assert checks["quota"]["ok"]  # a worker has no need to read it
    assert doctor.created() == []


@pytest.mark.exhaustive
async def test_a_right_that_a_run_can_do_without_is_no_failure(doctor: Doctor) -> None:
    doctor.may(*(each for each in RULES if each.resource != "events"))
    checks = await doctor.checks()
    assert "may not list events" in checks["access: list events"]["detail"]
    assert all(each["ok"] for each in checks.values())


async def test_what_is_left_of_a_quota(api: KubernetesApi, doctor: Doctor) -> None:
    doctor.may(*RULES, Rule("list", "resourcequotas"))
    status = {
        "hard": {"pods": "4", "requests.cpu": "2", "limits.memory": "8Gi"},
        "used": {"pods": "3", "requests.cpu": "1500m", "limits.memory": "1Gi"},
    }

    def make() -> None:
        doctor.cluster.server.store.create(
            QUOTAS,
            {"metadata": {"name": "agents", "namespace": "default", "uid": "u"}, "spec": {}, "status": status},
        )

    doctor.cluster.call(make)
    runtime = KubernetesRuntime(kind="kubernetes", image=IMAGE)
    found = await cluster_check.quota(api, "default", runtime)
    assert found.ok
    assert "pods 1 of 4" in found.detail
    assert "requests.cpu 0.500 of 2" in found.detail
    wide = KubernetesRuntime.model_validate(
        {"kind": "kubernetes", "image": IMAGE, "resources": {"limits": {"cpu": "1", "memory": "8Gi"}}}
    )
    short = await cluster_check.quota(api, "default", wide)
    assert not short.ok
    assert "agents: limits.memory, agents: requests.cpu" in short.hint


@pytest.mark.exhaustive
async def test_a_quota_that_is_used_up_is_told_in_the_clusters_words(doctor: Doctor) -> None:
    doctor.cluster.server.settings.pods_refused = "exceeded quota: agents, requested: pods=1, used: pods=1"
    checks = await doctor.checks()
    assert "FailedCreate" in checks["pod"]["detail"]
    assert "exceeded quota: agents" in checks["pod"]["detail"]
    assert list(checks)[-1] == "pod removed"


@pytest.mark.exhaustive
async def test_an_image_that_is_not_there(doctor: Doctor) -> None:
    doctor.cluster.server.settings.image_errors[IMAGE] = "ErrImagePull"
    checks = await doctor.checks()
    assert IMAGE in checks["pod"]["detail"]
    assert "image_pull_secrets" in checks["pod"]["hint"]


@pytest.mark.exhaustive
async def test_an_image_without_python_and_without_an_agent(doctor: Doctor) -> None:
    no_python = await doctor.checks("--python", "python-that-is-not-there")
    assert "--pod python=NAME" in no_python["pod"]["hint"]
    no_agent = await doctor.checks(STEERSMAN_AGENTS="claude")
    assert not no_agent["claude there"]["ok"]
    assert "in the image" in no_agent["claude there"]["hint"]
    assert no_agent["shim there"]["ok"]


@pytest.mark.exhaustive
async def test_a_cluster_that_is_not_reached(doctor: Doctor) -> None:
    wrong = await doctor.checks(namespace="nowhere/default")
    assert list(wrong) == ["policy", "cluster"]
    assert "context 'nowhere'" in wrong["cluster"]["detail"]
    doctor.cluster.server.kubeconfig(doctor.config, "no-such-token")
    stranger = await doctor.checks()
    assert "Unauthorized" in stranger["cluster"]["detail"]
    doctor.cluster.call(doctor.cluster.server.unreachable)
    lost = await doctor.checks()
    assert "is it up" in lost["cluster"]["hint"]


@pytest.mark.exhaustive
async def test_a_pod_that_somebody_deletes_meanwhile(doctor: Doctor) -> None:
    faults = doctor.cluster.server.faults
    faults.answer(500, times=1 << 30, matches=of(verb="delete"))
    said = await doctor("--pod", "grace_s=5")
    checks = {each["check"]: each for each in said.json}
    assert said.code == 1
    assert not checks["pod removed"]["ok"]
    (job,) = doctor.jobs()
    assert f"kubectl -n default delete job {job['metadata']['name']}" in checks["pod removed"]["hint"]


@pytest.mark.exhaustive
async def test_ctrl_c_deletes_what_was_made(doctor: Doctor) -> None:
    doctor.cluster.server.settings.unschedulable = "0/1 nodes are available"
    words = ("doctor", "--runtime", "kubernetes", "default", "--image", IMAGE)
    process = await doctor.steer.start(*words, **doctor.env)
    await until(lambda: doctor.left() == 2)
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 30) == 130
    assert doctor.left() == 0


@pytest.mark.exhaustive
async def test_a_sweep_finds_what_a_killed_one_has_left(
    doctor: Doctor, client_namespace: Namespace, tmp_path: Path
) -> None:
    doctor.cluster.server.settings.unschedulable = "0/1 nodes are available"
    on = {"kind": "kubernetes", "namespace": "default", "image": IMAGE, "grace_s": 5}
    env = doctor.steer.env | doctor.env
    worker = await asyncio.create_subprocess_exec(
        *worker_command("check", "--on", json.dumps(on)), env=env, stdout=asyncio.subprocess.DEVNULL
    )
    await until(lambda: doctor.left() == 2)
    worker.kill()
    await worker.wait()
    (job,) = doctor.jobs()
    assert job["metadata"]["labels"][OWNER]
    client = await Client.connect(client_namespace.address, namespace=client_namespace.name)
    state = Path(env["XDG_STATE_HOME"]) / "steersman"
    store = StoreIdentity(state).open()
    pods = KubernetesPods(lambda _: None, {**os.environ, **doctor.env}, state, await owner_of(client), store)
    assert await pods.sweep() == 1
    await pods.aclose()
    await until(lambda: doctor.left() == 0)


async def test_wrong_words(doctor: Doctor) -> None:
    for words, told in (
        (("doctor", "--runtime", "kubernetes"), "NAMESPACE"),
        (("doctor", "--runtime", "kubernetes", "default"), "image"),
        (("doctor", "--image", "a"), "go with --runtime kubernetes"),
        (("doctor", "--runtime", "kubernetes", "default", "--image", "a b"), "must be an image"),
    ):
        said = await doctor.steer(*words)
        assert (said.code, told in said.err) == (2, True), said.err
