"""The role of `deploy/kubernetes/`: all of it is needed, as something fails, or is not told, without any one right.

That it is enough is shown by every other test of pods, whose workers have no other.
"""

from collections.abc import Awaitable

import pytest

from activities.runtimes.kubernetes import manifest
from activities.runtimes.kubernetes.pod import CopyPod
from activities.runtimes.kubernetes.pods import KubernetesPods
from activities.shim.client import MachineUnreachable
from steersman.contracts.errors import PlaceError
from steersman.contracts.kubernetes import KubernetesRuntime
from tests.runtimes.pod_site import PodSite, said
from tests.support.kubernetes import OLD, Rule
from tests.support.kubernetes.kinds import DEPLOYMENTS, PODS
from tests.support.kubernetes.worker_role import worker_role
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

RIGHTS = worker_role("default")
EVERYTHING = {"made", "gone on with", "exec", "removed", "swept", "taken", "told of a quota"}
QUOTA = "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.kubernetes.start.HOPELESS_S", 0.3)
    monkeypatch.setattr("activities.runtimes.kubernetes.start.CREATED_S", 1.0)


async def test_all_of_it_is_enough(site: PodSite) -> None:
    assert await achieved(site) == EVERYTHING


@pytest.mark.exhaustive
@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: f"{right.verb} {right.resource}")
async def test_something_is_missing_without_any_one_right(site: PodSite, right: Rule) -> None:
    if (right.verb, right.resource) == ("get", "pods/exec"):
        site.server.settings.release = OLD  # which asks for nothing else
    site.withdraw(right)
    assert await achieved(site) < EVERYTHING


async def achieved(site: PodSite) -> set[str]:
    """What a worker brings about."""
    worker, found = site.worker(), set()
    if await succeeds(site.pod(worker).prepare("run")):
        found.add("made")
    if "made" in found and await succeeds(site.pod().prepare("run")):
        found.add("gone on with")
    if "made" in found and await answers(site.pod(worker)):
        found.add("exec")
    if "made" in found and await succeeds(site.pod(worker).leave(copy=True)) and not site.left:
        found.add("removed")
    found |= await swept(site, worker) | await taken(site, worker) | await told(site, worker)
    return found


async def swept(site: PodSite, worker: KubernetesPods) -> set[str]:
    """A Job of which nothing is written down any more."""
    copy = "a" * 32
    if not await succeeds(worker.of(site.placement, copy).pod.prepare("run")):
        return set()
    await worker.records.forget(copy)
    await site.pod(worker).bar("another")  # by which a sweep knows of the namespace
    return {"swept"} if await worker.sweep() == 1 else set()


async def taken(site: PodSite, worker: KubernetesPods) -> set[str]:
    """A pod of a pool."""
    placement = {**site.placement, "pool": "warm"}
    deployment = manifest.pool(KubernetesRuntime.model_validate(placement), 1)
    site.cluster.call(lambda: site.server.registry.create(DEPLOYMENTS, "default", deployment))
    await until(lambda: any(manifest.POOL in each["metadata"]["labels"] and runs(each) for each in site.objects(PODS)))
    copy = "b" * 32
    await succeeds(worker.of(placement, copy).pod.prepare("run"))
    record = worker.records.read(copy)
    return {"taken"} if record and record.pooled else set()


async def told(site: PodSite, worker: KubernetesPods) -> set[str]:
    """Why there is no pod."""
    site.server.settings.pods_refused = QUOTA
    try:
        await worker.of(site.placement, "c" * 32).pod.prepare("run")
    except (PlaceError, MachineUnreachable) as error:
        return {"told of a quota"} if QUOTA in str(error) else set()
    return set()


def runs(pod: dict[str, dict[str, str]]) -> bool:
    return pod.get("status", {}).get("phase") == "Running"


async def succeeds(work: Awaitable[object]) -> bool:
    try:
        return await work is not False
    except (PlaceError, MachineUnreachable):
        return False


async def answers(pod: CopyPod) -> bool:
    try:
        return await said(await pod.exec("sh", "-c", "echo hello")) == b"hello\n"
    except MachineUnreachable:
        return False
