"""A worker of a StatefulSet comes up on another node, with its name and its claims: all its runs go on."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from temporalio.api.enums.v1 import PendingActivityState

from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.errors import AgentCrashed
from steersman.contracts.run import RunResult
from steersman.errors import RunCancelled
from tests.acceptance import own_cluster
from tests.acceptance.own_cluster import OwnCluster
from tests.acceptance.programs import DEAF, OBEDIENT, python
from tests.acceptance.site import Site, answered, following, gone, in_order, phase
from tests.acceptance.test_approvals import ASK, approval
from tests.acceptance.test_changes import made
from tests.acceptance.test_isolated import WAIT
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support import nodes
from tests.support.kubernetes import BackgroundServer, Settings
from tests.support.kubernetes.fixtures import cluster
from tests.support.kubernetes.kinds import JOBS, PODS, Kind
from tests.support.kubernetes.kubeconfig import write_private
from tests.support.nodes import Node
from tests.support.processes import marked, until
from tests.support.relays import Relay
from tests.support.workers import WorkerProcess

__all__ = ["cluster"]

pytestmark = [pytest.mark.acceptance, pytest.mark.linux, pytest.mark.timeout(180)]

NOTHING: Mapping[str, str] = {}
HOST = "steersman-worker-0"
SLOW_S = 60.0
WEEKS_S = 3_000_000
"""The nodes of a cluster have not been up for equally long."""
COUNT = """
import itertools, os, time
open("starts", "a").write("x")
for number in itertools.count():
    print(number)
    time.sleep(0.05)
    if os.path.exists("/home/agent/enough"):
        break
"""
BIG_BYTES = 32 << 20
BIG = f"import os; open('big', 'wb').write(os.urandom({BIG_BYTES}))\n"


class Moving(OwnCluster):
    """The worker of a StatefulSet, on one node after another."""

    def __init__(self, site: Site, cluster: BackgroundServer) -> None:
        super().__init__(site, cluster)
        self.nodes: list[Node] = []

    async def begin(self) -> Steersman:
        """It comes up for the first time."""
        await self.come_up()
        return await self.site.steersman()

    async def come_up(self, env: Mapping[str, str] = NOTHING, **node: Any) -> None:
        """On a further node, with the claims of the one before."""
        self.nodes.append(Node(self.site.root / f"node-{len(self.nodes)}", **{"up_s": WEEKS_S, **node}))
        await self.start(self.nodes[-1], env).ready()

    def start(self, node: Node, env: Mapping[str, str]) -> WorkerProcess:
        """The worker, as a kubelet does it."""
        environ = {"STEERSMAN_HOST": HOST, "KUBECONFIG": str(self.config), **env}
        return self.site.worker_on(node, *self.flags, **environ)

    async def lose_node(self) -> None:
        """With all that was at work there."""
        self.site.workers[-1].kill()
        await gone(str(self.nodes[-1].root))

    async def move(self) -> None:
        """From a node that is lost to a further one."""
        await self.lose_node()
        await self.come_up()

    async def result(self, steersman: Steersman, run: str) -> RunResult:
        """How a run ends; then nothing of it is left in the cluster, and its events are whole."""
        try:
            return await asyncio.wait_for(steersman.result(run), SLOW_S)
        finally:
            assert self.left == []
            assert in_order(await steersman.events(run))

    def program(self, code: str, workspace: Path, **fields: Any) -> dict[str, Any]:
        """A request for one in the image's Python."""
        return self.process("python3", "-I", "-S", "-u", "-c", code, workspace=workspace, **fields)

    def ever(self, kind: Kind) -> int:
        """How many there were, from the beginning."""
        changes = self.cluster.call(lambda: list(self.server.store.changes))
        return len({each.after["metadata"]["uid"] for each in changes if each.kind is kind})


@pytest.fixture
def settings() -> Settings:
    return own_cluster.settings()


@pytest.fixture
def moving(site: Site, cluster: BackgroundServer) -> Iterator[Moving]:
    if reason := nodes.missing():
        pytest.skip(reason)
    try:
        yield Moving(site, cluster)
    finally:
        site.end()  # before its cluster


class Ways:
    """How a node reaches Temporal and the cluster: `env` of its worker."""

    def __init__(self, moving: Moving) -> None:
        temporal, api = int(moving.site.namespace.address.rpartition(":")[2]), moving.server.listener.port
        self._relays = Relay(temporal), Relay(api)
        self._config, self._api = moving.config, api

    async def start(self) -> Self:
        for each in self._relays:
            await each.start()
        config = json.loads(self._config.read_text().replace(f":{self._api}", f":{self._relays[1].port}"))
        path = write_private(self._config.with_name("kubeconfig-of-the-first"), config)
        self.env = {"TEMPORAL_ADDRESS": f"127.0.0.1:{self._relays[0].port}", "KUBECONFIG": str(path)}
        return self

    def cut(self) -> None:
        for each in self._relays:
            each.cut()

    def mend(self) -> None:
        for each in self._relays:
            each.mend()

    async def aclose(self) -> None:
        for each in self._relays:
            await each.aclose()


@pytest.fixture
async def ways(moving: Moving) -> AsyncIterator[Ways]:
    found = await Ways(moving).start()
    yield found
    moving.site.end()  # or its workers would try again for ever
    await found.aclose()


def _numbers(mark: str) -> set[int]:
    """How their own machine numbers these processes and their parents."""
    return {_number(each) for pid in marked(mark) for each in (pid, int(_status(pid, "PPid")))}


def _number(pid: int) -> int:
    return int(_status(pid, "NSpid").split()[-1])


def _status(pid: int, field: str) -> str:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(line for line in text.splitlines() if line.startswith(f"{field}:")).partition(":")[2].strip()


async def under_way(steersman: Steersman, run: str, activity: str) -> bool:
    description = await steersman.temporal.get_workflow_handle(run).describe()
    return any(
        each.activity_type.name == activity and each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        for each in description.raw_description.pending_activities
    )


@pytest.mark.exhaustive
async def test_one_whose_pod_is_being_made_gets_that_pod(moving: Moving) -> None:
    steersman = await moving.begin()
    moving.server.settings.schedules_pods = False
    run = await steersman.start(moving.program("print('here')", made(moving.site.workspace())))
    await until(lambda: moving.ever(PODS))
    await moving.move()
    moving.server.settings.schedules_pods = True
    assert (await moving.result(steersman, run)).text == "here"
    assert (moving.ever(JOBS), moving.ever(PODS)) == (1, 1)


async def test_an_agent_works_on_and_none_of_its_words_is_lost_or_said_twice(moving: Moving, mark: str) -> None:
    steersman = await moving.begin()
    workspace = made(moving.site.workspace())
    run = await steersman.start(moving.program(COUNT, workspace, mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "3", SLOW_S)
        agent = set(marked(mark))
        await moving.move()
        before = len(attached.events)
        await until(lambda: len(attached.events) > before + 3, SLOW_S)
    assert set(marked(mark)) == agent
    (moving.home / "enough").touch()
    result = await moving.result(steersman, run)
    counted = result.text.split()
    assert (result.attempts, counted) == (1, [str(number) for number in range(len(counted))])
    assert (workspace / "starts").read_text() == "x"


@pytest.mark.exhaustive
async def test_an_approval_is_waited_for_on(moving: Moving, model: ScriptedModel, mark: str) -> None:
    steersman = await moving.begin()
    script = model.script("asking", tool("Bash", command="touch made"), say("made"))
    workspace = made(moving.site.workspace())
    run = await steersman.start(moving.claude(script, workspace=workspace, permissions=ASK, mark=mark))
    asked = await approval(steersman, run)
    agent = set(marked(mark))
    await moving.move()
    receipt = await answered(partial(steersman.decide, run, asked.id, "allow"))
    result = await moving.result(steersman, run)
    assert (receipt.decision, result.text, result.attempts) == ("allow", "made", 1)
    assert (len(agent), len(script.requests)) == (1, 2)
    assert (workspace / "made").exists()


@pytest.mark.exhaustive
async def test_a_stop_comes_to_its_end(moving: Moving, mark: str) -> None:
    steersman = await moving.begin()
    slow = {"terminate_after_s": 0, "kill_after_s": 5}
    run = await steersman.start(moving.program(DEAF, made(moving.site.workspace()), mark=mark, stop=slow))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "ready", SLOW_S)
        await moving.site.temporal("workflow", "cancel", "--workflow-id", run)
        await attached.until(lambda e: e.type == "message" and e.text == "heard")
        await moving.move()
    with pytest.raises(RunCancelled):
        await moving.result(steersman, run)
    report = (await steersman.state(run)).stop_report
    assert report
    assert (report.outcome, report.how, report.left) == ("stopped", "killed", ())
    assert not marked(mark)


@pytest.mark.exhaustive
async def test_what_was_being_carried_back_comes_back(moving: Moving) -> None:
    steersman = await moving.begin()
    workspace = made(moving.site.workspace())
    run = await steersman.start(moving.program(BIG + WAIT.format(go="/home/agent/go"), workspace))
    await phase(steersman, run, "running", SLOW_S)
    (moving.home / "go").touch()
    await until(lambda: under_way(steersman, run, names.CARRY_BACK), SLOW_S)
    await moving.lose_node()
    assert not (workspace / "big").exists()
    await moving.come_up()
    result = await moving.result(steersman, run)
    assert (result.attempts, result.finalize and result.finalize.status) == (1, "succeeded")
    assert (workspace / "big").stat().st_size == BIG_BYTES


@pytest.mark.exhaustive
@pytest.mark.parametrize("up_s", [WEEKS_S, 0])
async def test_what_worked_on_the_node_that_is_lost_has_crashed_or_is_resumed(
    moving: Moving, model: ScriptedModel, mark: str, up_s: int
) -> None:
    steersman, site = await moving.begin(), moving.site
    program = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    steps = (tool("Bash", command="echo a first step > step"), hold("thinking"), say("finished"))
    script = model.script("moved", *steps)
    claude = await steersman.start(site.claude(script, mark=mark, permissions={"mode": "full"}))
    async with following(steersman, program) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "ready")
        await phase(steersman, program, "running")
        await script.wait_held()
        taken = _numbers(mark)
        await moving.lose_node()
        await moving.come_up(up_s=up_s, taken=taken)
        await attached.end()
    with pytest.raises(AgentCrashed, match="its end was not seen"):
        await moving.result(steersman, program)
    result = await moving.result(steersman, claude)
    assert (result.text, result.attempts) == ("finished", 2)
    assert not marked(mark)
    others = [pid for pid in marked(str(moving.nodes[-1].root)) if _number(pid) in taken]
    assert len(others) == len(taken) >= 4  # two agents and their shims; who has their numbers was left alone


@pytest.mark.parametrize("is_copy", [True, False], ids=["a copy of the claims", "the same claims"])
@pytest.mark.exhaustive
async def test_a_node_that_was_only_cut_off_does_nothing_more_once_it_is_back(
    moving: Moving, ways: Ways, mark: str, *, is_copy: bool
) -> None:
    site, work = moving.site, moving.site.root / "workspaces"
    for name in ("pod", "here", "later"):
        (work / name).mkdir(parents=True)
        made(work / name)
    await moving.come_up(ways.env)
    steersman, first = await site.steersman(), site.workers[0]
    run = await steersman.start(moving.program(COUNT, work / "pod", mark=f"{mark}-pod"))
    here = await steersman.start(site.process(*python(OBEDIENT), mark=f"{mark}-here", workspace=work / "here"))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "3", SLOW_S)
    await phase(steersman, here, "running")
    agent = set(marked(f"{mark}-pod"))

    ways.cut()
    moved = {path: path.with_name(f"{path.name}-copy") for path in (site.state, work)} if is_copy else {}
    for path, copy in moved.items():
        subprocess.run(["cp", "-a", path, copy], check=True)
    await moving.come_up(moved=moved)
    if is_copy:
        await until(lambda: site.workers[1].said("agent_adopted"), SLOW_S)
    ways.mend()
    said = await until(lambda: first.said("worker_failed"), SLOW_S)
    assert "a newer worker of this host is at work on another machine" in said["message"]
    await gone(f"{mark}-here")
    if is_copy:
        again = moving.start(moving.nodes[0], ways.env)
        await until(lambda: again.said("worker_failed"), SLOW_S)
        assert not again.said("worker_ready")

    there = moved.get(work, work)
    for number in range(6):
        write = f"open('by-{number}', 'w').close()"
        await asyncio.wait_for(steersman.run(site.process(*python(write), workspace=work / "later")), SLOW_S)
        assert (there / "later" / f"by-{number}").exists()
    with pytest.raises(AgentCrashed, match="its end was not seen" if is_copy else "its end was not seen|signal 9"):
        await asyncio.wait_for(steersman.result(here), SLOW_S)
    assert set(marked(f"{mark}-pod")) == agent
    (moving.home / "enough").touch()
    result = await moving.result(steersman, run)
    counted = result.text.split()
    assert (result.attempts, counted) == (1, [str(number) for number in range(len(counted))])
    assert (there / "pod" / "starts").read_text() == "x"
    assert moving.ever(PODS) == 1
