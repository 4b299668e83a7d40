"""Runs in pods of a real cluster: followed, steered, stopped with proof, going on whatever becomes of the pod."""

import asyncio
import json
import os
import secrets
import shlex
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.runtimes.kubernetes.manifest import RUN
from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest, PlaceError, RunError
from steersman.contracts.run import Finalize
from steersman.errors import RunCancelled, RunTerminated
from tests.acceptance.loops import PLAN, ended, process_loop, project, tick
from tests.acceptance.programs import OBEDIENT, STUBBORN
from tests.acceptance.site import Site, following, gone, heard, in_order, phase
from tests.acceptance.test_approvals import ASK, approval
from tests.acceptance.test_changes import EDIT, git, made
from tests.acceptance.test_isolated import COMMIT
from tests.acceptance.test_loop_copies import sweep
from tests.acceptance.test_talk import TOOL_UNTIL_GO, said
from tests.cli.steer import Steer
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.cluster import BRIDGE, IMAGE, Cluster, missing
from tests.support.processes import marked, until
from tests.support.temporal import new_namespace
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.acceptance, pytest.mark.cluster, pytest.mark.timeout(180)]

SLOW_S = 60
"""A node that shares this machine with the tests takes its time."""


def python(code: str) -> tuple[str, ...]:
    """A program in the image's Python."""
    return ("python3", "-I", "-S", "-u", "-c", code)


async def nothing_is_left(cluster: Cluster) -> None:
    """Job and pod were deleted with their run. A busy cluster carries that out in its own time."""
    await until(lambda: cluster.left == [], SLOW_S)


class Pods:
    """A machine with Steersman on it, and a namespace of the cluster that its workers may use."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.cluster = Cluster(f"test-{secrets.token_hex(4)}")

    @classmethod
    @contextmanager
    def of(cls, site: Site) -> Iterator["Pods"]:
        """Without a worker as yet. The test is skipped where there is no cluster."""
        if reason := missing():
            pytest.skip(reason)
        found = cls(site)
        try:
            yield found
        finally:
            found.end()

    def start_worker(self, *flags: str) -> WorkerProcess:
        """It may not be polling yet."""
        return self.site.worker(*self.cluster.flags, *flags, KUBECONFIG=str(self.cluster.kubeconfig))

    async def worker(self, *flags: str) -> None:
        await self.start_worker(*flags).ready()

    def process(self, program: str, **fields: Any) -> dict[str, Any]:
        return self.site.process(*python(program), **{"runtime": self.cluster.runtime(), **fields})

    def claude(self, *arguments: Any, **fields: Any) -> dict[str, Any]:
        return self.site.claude(*arguments, **{"runtime": self.cluster.runtime(), **fields})

    @property
    def pod(self) -> str:
        """The only one that is not on its way out."""
        (found,) = [each for each in self.cluster.objects("pods") if "deletionTimestamp" not in each["metadata"]]
        return str(found["metadata"]["name"])

    def end(self) -> None:
        self.site.end()
        self.cluster.close()


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Pods]:
    """With a worker at work, for tests that leave it alone."""
    if reason := missing():
        pytest.skip(reason)
    found = Pods(Site(tmp_path_factory.mktemp("pods"), asyncio.run(new_namespace(dev_server))))
    try:
        asyncio.run(found.cluster.begin())
        asyncio.run(found.worker())
        yield found
    finally:
        found.end()


@pytest.fixture
def own(site: Site) -> Iterator[Pods]:
    """Of the test's own, without a worker as yet."""
    with Pods.of(site) as found:
        yield found


@pytest.fixture
async def steersman(pods: Pods) -> Steersman:
    return await pods.site.steersman()


@pytest.fixture
def repository(pods: Pods) -> Path:
    return made(pods.site.workspace())


@pytest.fixture
async def model(pods: Pods) -> AsyncIterator[ScriptedModel]:
    """A scripted model that pods reach, where there has been one."""
    async with ScriptedModel(address=BRIDGE) as serving:
        yield serving


async def copy_of(steersman: Steersman, run: str) -> str:
    """The workspace in the pod, once a process works there."""
    await phase(steersman, run, "running", SLOW_S)
    carried = (await steersman.state(run)).carried
    assert carried
    return carried.directory


async def written_down(pods: Pods, text: str) -> None:
    """Wait until Claude's session has it as what a tool has said: Claude writes that a little later."""
    pod = pods.pod

    def is_there() -> bool:
        look = "grep -rh tool_result /home/agent --include=*.jsonl 2>/dev/null || true"
        return text in pods.cluster.exec(pod, "sh", "-c", look)

    await until(is_there)


async def test_it_works_there_and_what_it_did_comes_back(pods: Pods, steersman: Steersman, repository: Path) -> None:
    told = "import os; print(os.getcwd(), os.environ['HOME'], os.environ['SAID'], os.getuid())\n"
    request = pods.process(told + EDIT + COMMIT, workspace=repository, env={"SAID": "yes"})
    run = await steersman.start(request)
    result = await steersman.result(run)
    copy, home, said, uid = result.text.splitlines()[0].split()
    assert (copy.startswith("/home/agent/"), home, said, uid) == (True, "/home/agent", "yes", "1000")
    assert result.finalize == Finalize(status="succeeded", commit=git(repository, "rev-parse", "HEAD").strip())
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"
    assert in_order(await steersman.events(run))
    await nothing_is_left(pods.cluster)


async def test_claude_is_asked_interrupted_and_steered(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    steps = (tool("Bash", command="touch made"), hold("the wrong way"), TOOL_UNTIL_GO, say("done"))
    script = model.script("pod", *steps)
    run = await steersman.start(pods.claude(script, workspace=repository, permissions=ASK))
    copy = await copy_of(steersman, run)
    asked = await approval(steersman, run)
    await steersman.decide(run, asked.id, "allow")
    await script.wait_held()
    assert "made" in pods.cluster.exec(pods.pod, "ls", copy)
    await heard(steersman, run, await steersman.interrupt(run, "turn round"))
    await script.wait_requests(3)
    await heard(steersman, run, await steersman.steer(run, "and quickly"))
    pods.cluster.exec(pods.pod, "touch", f"{copy}/go")
    result = await steersman.result(run)
    assert (result.text, result.attempts, result.messages_delivered) == ("done", 1, 2)
    assert said(script.requests[-1], "turn round") == 1
    assert said(script.requests[-1], "and quickly") == 1
    assert (repository / "made").exists()
    assert in_order(await steersman.events(run))
    await nothing_is_left(pods.cluster)


async def test_claude_is_stopped_in_a_tool(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel, mark: str
) -> None:
    script = model.script("stopped", tool("Bash", command=f"{shlex.join(python(STUBBORN))} > begun"))
    request = pods.claude(script, mark=mark, workspace=repository, permissions={"mode": "full"})
    run = await steersman.start(request)
    copy = await copy_of(steersman, run)
    await until(lambda: pods.cluster.exec(pods.pod, "sh", "-c", f"cat {copy}/begun 2>/dev/null || true") == "ready\n")
    job, pod = f"steersman-{copy.split('/')[-3]}", pods.pod
    report = await steersman.stop(run)
    assert (report.outcome, report.left) == ("stopped", ())
    assert report.place == f"{pods.cluster.namespace}: Job {job}, pod {pod}"
    await gone(mark)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert (repository / "begun").exists()
    await nothing_is_left(pods.cluster)


async def test_a_killed_claude_goes_on_with_its_session_there(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel, mark: str
) -> None:
    steps = (tool("Bash", command="echo a first step"), hold("thinking"), say("finished"))
    script = model.script("crash", *steps)
    request = pods.claude(script, "build it", mark=mark, workspace=repository, permissions={"mode": "full"})
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        await written_down(pods, "a first step")
        for pid in [pid for pid, line in marked(mark).items() if "stream-json" in line]:
            os.kill(pid, signal.SIGKILL)
        result = await steersman.result(run)
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("a first step")


@pytest.mark.exhaustive
async def test_a_container_that_is_killed_begins_again_with_its_files_and_the_session(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    steps = (tool("Bash", command="echo a first step | tee step"), hold("thinking"), say("finished"))
    script = model.script("oom", *steps)
    request = pods.claude(script, "build it", workspace=repository, permissions={"mode": "full"})
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        await written_down(pods, "a first step")
        init = _inits(pods.pod, pods)
        os.kill(init, signal.SIGKILL)
        result = await asyncio.wait_for(steersman.result(run), 120)
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("a first step")
    assert (repository / "step").read_text() == "a first step\n"
    await nothing_is_left(pods.cluster)


def _inits(pod: str, pods: Pods) -> int:
    """Process 1 of the pod's container, as this machine has it."""
    (found,) = [each for each in pods.cluster.objects("pods") if each["metadata"]["name"] == pod]
    container = found["status"]["containerStatuses"][0]["containerID"].partition("//")[2]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, groups = (path / "status").read_text(), (path / "cgroup").read_text()
        except OSError:
            continue
        spids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if container in groups and len(spids) > 1 and spids[-1] == "1":
            return int(path.name)
    raise AssertionError("the container has no process 1")


async def test_a_run_whose_pod_is_deleted_goes_on_in_a_new_one(
    pods: Pods, steersman: Steersman, repository: Path
) -> None:
    program = "import os, time\nprint('begun', flush=True)\nopen('made', 'w').close()\ntime.sleep(600)"
    run = await steersman.start(pods.process(program, workspace=repository))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and "begun" in e.text, SLOW_S)
        pods.cluster.kubectl("-n", pods.cluster.namespace, "delete", "pod", pods.pod)
        with pytest.raises(RunError) as failed:
            await asyncio.wait_for(steersman.result(run), 120)
    assert failed.value.type == "AgentCrashed"
    assert "pod" in failed.value.message
    await nothing_is_left(pods.cluster)


@pytest.mark.exhaustive
async def test_claude_goes_on_in_a_new_pod_with_all_that_it_had_in_one_that_is_deleted(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    steps = (tool("Bash", command="echo a first step | tee step"), hold("thinking"), say("finished"))
    script = model.script("drained", *steps)
    request = pods.claude(script, "build it", workspace=repository, permissions={"mode": "full"})
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        await written_down(pods, "a first step")
        pods.cluster.kubectl("-n", pods.cluster.namespace, "delete", "pod", pods.pod, "--wait=false")
        result = await asyncio.wait_for(steersman.result(run), 150)
        events = await attached.end()
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("a first step")
    assert (repository / "step").read_text() == "a first step\n"
    assert any("as they were at" in event.text for event in events if event.type == "progress")
    assert in_order(events)
    await nothing_is_left(pods.cluster)


@pytest.mark.exhaustive
async def test_claude_begins_again_in_a_new_pod_and_says_what_is_lost(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    steps = (tool("Bash", command="echo lost > lost"), hold("thinking"), say("once more"))
    script = model.script("deleted", *steps)
    runtime = pods.cluster.runtime(backup_s=0)
    request = pods.claude(script, "build it", workspace=repository, permissions={"mode": "full"}, runtime=runtime)
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        pods.cluster.kubectl("-n", pods.cluster.namespace, "delete", "pod", pods.pod, "--wait=false")
        result = await asyncio.wait_for(steersman.result(run), 150)
        events = await attached.end()
    assert (result.status, result.text) == ("succeeded", "once more")
    assert any("is lost" in event.text for event in events if event.type == "progress")
    assert not (repository / "lost").exists()
    assert in_order(events)
    await nothing_is_left(pods.cluster)


@pytest.mark.exhaustive
async def test_what_is_on_a_claim_outlives_the_pod_and_goes_with_the_run(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    disk = pods.site.root / "disk"
    disk.mkdir()
    disk.chmod(0o777)
    for parent in disk.parents:
        parent.chmod(parent.stat().st_mode | 0o011)
    pods.cluster.claim("work", disk)
    steps = (tool("Bash", command="echo a first step | tee step"), hold("thinking"), say("finished"))
    script = model.script("claim", *steps)
    runtime = pods.cluster.runtime(workspace_volume="work")
    request = pods.claude(script, "build it", workspace=repository, permissions={"mode": "full"}, runtime=runtime)
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        await written_down(pods, "a first step")
        pods.cluster.kubectl("-n", pods.cluster.namespace, "delete", "pod", pods.pod, "--wait=false")
        result = await asyncio.wait_for(steersman.result(run), 150)
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("a first step")
    assert (repository / "step").read_text() == "a first step\n"
    await nothing_is_left(pods.cluster)
    kept = disk / ".local/state/steersman"
    assert [*kept.glob("copies/*"), *kept.glob("places/*")] == []


async def test_claude_works_in_a_pod_that_waited_in_a_pool_and_nobody_does_after(
    own: Pods, model: ScriptedModel, tmp_path: Path
) -> None:
    """Three runs, one after another, each stopped in the midst of a tool: each in another pod, and without a Job."""
    await own.worker()
    steersman = await own.site.steersman()
    runtime = own.cluster.runtime(pool="warm")
    printed = await Steer(own.site.namespace.address, tmp_path)(
        "worker", "pool", json.dumps(runtime), "--replicas", "2"
    )
    own.cluster.apply(json.loads(printed.out))

    def waiting() -> list[str]:
        found = own.cluster.objects("pods", "steersman.dev/pool=warm")
        return [each["metadata"]["name"] for each in found if each["status"]["phase"] == "Running"]

    used = set()
    for number in range(3):
        await until(lambda: len(waiting()) == 2, SLOW_S)
        script = model.script(f"pool-{number}", TOOL_UNTIL_GO, hold("thinking"), say("finished"))
        workspace = made(own.site.workspace())
        request = own.claude(script, "build it", workspace=workspace, permissions={"mode": "full"}, runtime=runtime)
        run = await steersman.start(request)
        (taken,) = await until(lambda: own.cluster.objects("pods", "steersman.dev/taken-from=warm"), SLOW_S)
        used.add(taken["metadata"]["uid"])
        await phase(steersman, run, "running", SLOW_S)
        assert taken["metadata"]["annotations"][RUN] == run
        report = await steersman.stop(run)
        assert (report.outcome, report.left) == ("stopped", ())
        await until(lambda: not own.cluster.objects("pods", "steersman.dev/taken-from=warm"), SLOW_S)
        assert own.cluster.objects("jobs") == []
    assert len(used) == 3


async def test_an_image_that_is_not_there_is_named_at_once(pods: Pods, steersman: Steersman) -> None:
    runtime = pods.cluster.runtime(image="nowhere.invalid/agent:1")
    with pytest.raises(PlaceError, match=r"Image.*nowhere.invalid/agent:1") as failed:
        await asyncio.wait_for(steersman.run(pods.process("", runtime=runtime)), SLOW_S)
    assert failed.value.facts["reason"] in ("ErrImagePull", "ImagePullBackOff")
    await nothing_is_left(pods.cluster)


@pytest.mark.exhaustive
async def test_a_secret_that_is_not_there_is_named(pods: Pods, steersman: Steersman) -> None:
    runtime = pods.cluster.runtime(env_from_secrets=["nope"])
    with pytest.raises(PlaceError, match='CreateContainerConfigError: secret "nope" not found'):
        await asyncio.wait_for(steersman.run(pods.process("", runtime=runtime)), SLOW_S)


@pytest.mark.exhaustive
async def test_a_pod_that_no_node_takes_fails_in_the_clusters_words(pods: Pods, steersman: Steersman) -> None:
    runtime = pods.cluster.runtime(node_selector={"disk": "fast"}, start_s=5)
    with pytest.raises(PlaceError, match="Unschedulable: 0/1 nodes"):
        await asyncio.wait_for(steersman.run(pods.process("", runtime=runtime)), SLOW_S)
    await nothing_is_left(pods.cluster)


async def test_a_pod_over_the_quota_fails_in_the_clusters_words(own: Pods) -> None:
    await own.worker()
    steersman = await own.site.steersman()
    own.cluster.kubectl("-n", own.cluster.namespace, "create", "quota", "none", "--hard=pods=0")
    with pytest.raises(PlaceError, match=r"FailedCreate: .*exceeded quota: none"):
        await asyncio.wait_for(steersman.run(own.process("")), SLOW_S)
    await nothing_is_left(own.cluster)


@pytest.mark.exhaustive
async def test_one_that_waits_for_a_node_is_cancelled_at_once(pods: Pods, steersman: Steersman) -> None:
    run = await steersman.start(pods.process("", runtime=pods.cluster.runtime(node_selector={"disk": "fast"})))
    await until(lambda: pods.cluster.objects("pods"))
    report = await steersman.stop(run)
    assert (report.outcome, report.processes) == ("already_finished", 0) or report.outcome == "stopped"
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(steersman.result(run), SLOW_S)
    await nothing_is_left(pods.cluster)


@pytest.mark.exhaustive
async def test_what_is_not_allowed_is_refused_by_name(pods: Pods, steersman: Steersman) -> None:
    for fields, named in (
        ({"namespace": "kube-system"}, "runtime.namespace"),
        ({"service_account": "admin"}, "runtime.service_account"),
        ({"priority_class": "system-node-critical"}, "runtime.priority_class"),
        ({"pod_template": {"spec": {"hostNetwork": True}}}, "pod_template.spec.hostNetwork"),
        ({"pod_template": {"spec": {"containers": [{"securityContext": {"privileged": True}}]}}}, "privileged"),
    ):
        with pytest.raises(InvalidRequest, match=named):
            await steersman.run(pods.process("", runtime=pods.cluster.runtime(**fields)))


async def test_a_terminated_run_is_stopped_and_carried_back(
    pods: Pods, steersman: Steersman, repository: Path, mark: str
) -> None:
    run = await steersman.start(pods.process(EDIT + OBEDIENT, workspace=repository, mark=mark))
    await copy_of(steersman, run)
    await until(lambda: len(marked(mark)) > 0)
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and "ready" in e.text)
        await steersman.temporal.get_workflow_handle(run).terminate("enough")
        with pytest.raises(RunTerminated):
            await steersman.result(run)
    await gone(mark, SLOW_S)
    await until(lambda: (repository / "edited").read_text() == "one\nTWO\nthree\n", SLOW_S)
    await sweep(pods.site, steersman)
    await nothing_is_left(pods.cluster)


async def test_nothing_of_the_request_is_in_the_cluster(
    pods: Pods, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    script = model.script("canaries", hold("thinking"))
    request = pods.claude(
        script,
        "a prompt-canary",
        workspace=repository,
        system_prompt="a system-canary",
        env={"GREETING": "an env-canary"},
    )
    run = await steersman.start(request)
    await script.wait_held()
    seen = pods.cluster.kubectl("-n", pods.cluster.namespace, "get", "jobs,pods,events,secrets", "-o", "json")
    seen += pods.cluster.kubectl("-n", pods.cluster.namespace, "logs", pods.pod)
    assert "canary" not in seen
    assert script.env(Path("/"))["ANTHROPIC_API_KEY"] not in seen
    await steersman.stop(run)


async def test_another_worker_goes_on_with_it_and_a_shutdown_deletes_nothing(own: Pods, mark: str) -> None:
    await own.worker()
    steersman = await own.site.steersman()
    repository = made(own.site.workspace())
    program = "import time\nfor n in range(400):\n    print(n, flush=True)\n    time.sleep(0.05)\n" + EDIT
    run = await steersman.start(own.process(program, workspace=repository, mark=mark))
    await phase(steersman, run, "running", SLOW_S)
    before = own.pod
    own.site.workers[0].kill()
    await own.worker()
    await own.site.workers[1].terminate()
    assert own.pod == before
    await own.worker()
    result = await asyncio.wait_for(steersman.result(run), 120)
    assert (result.status, result.attempts) == ("succeeded", 1)
    assert result.text.split() == [str(number) for number in range(400)]
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"
    await nothing_is_left(own.cluster)


@pytest.mark.exhaustive
async def test_a_loops_runs_work_in_one_pod_one_after_another(pods: Pods, steersman: Steersman) -> None:
    workspace = project(pods.site)
    program = f"hostname >> hosts; if grep -q '\\[x\\] one' PLAN.md; then {tick('two')}; else {tick('one')}; fi"
    done = {"items": {"kind": "checkboxes"}, "verify": {"command": "hostname >> hosts"}}
    request = process_loop(pods.site, program, workspace, done=done)
    request["run"]["runtime"] = pods.cluster.runtime()
    loop = await steersman.loops.start(request)
    assert (await asyncio.wait_for(ended(steersman, loop), 120)).status == "completed"
    assert (workspace / "PLAN.md").read_text() == PLAN.replace("[ ]", "[x]")
    hosts = (workspace / "hosts").read_text().split()
    assert (len(hosts) >= 3, len(set(hosts))) == (True, 1)
    await sweep(pods.site, steersman)
    await nothing_is_left(pods.cluster)


async def test_the_doctor_looks_at_a_cluster(pods: Pods, tmp_path: Path) -> None:
    steer = Steer(pods.site.namespace.address, tmp_path, pods.site.namespace.name)
    env = {"KUBECONFIG": str(pods.cluster.kubeconfig), "STEERSMAN_ALLOW_KUBERNETES": pods.cluster.namespace}
    words = ("doctor", "--runtime", "kubernetes", pods.cluster.namespace, "--image", IMAGE, "--json")
    said = await steer(*words, "--pod", "grace_s=10", **env, STEERSMAN_ALLOW_POD="image=*")
    checks = {each["check"]: each for each in said.json}
    assert said.code == 0, said.json
    assert list(checks) == [
        *("policy", "cluster", "access", "quota", "pod", "python there", "clock there", "disk there", "git there"),
        *("claude there", "shim there", "pod removed"),
    ]
    assert probes(pods) == []
    lost = await steer(*words[:-2], "docker.io/local/no-such-image:1", "--json", **env)
    assert lost.code == 1
    assert "no-such-image" in lost.out
    assert probes(pods) == []


def probes(pods: Pods) -> list[str]:
    """Jobs that are no run's."""
    found = pods.cluster.objects("jobs")
    return [each["metadata"]["name"] for each in found if each["metadata"]["annotations"][RUN] == "steer doctor"]
