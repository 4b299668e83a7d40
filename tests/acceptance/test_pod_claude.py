"""Claude Code in pods of a cluster of the tests' own: what becomes of a run whatever is killed, cut or in its way."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import WorkspaceError
from steersman.errors import RunCancelled
from tests.acceptance.own_cluster import SLOW_S, OwnCluster, goes_on_after
from tests.acceptance.site import following, heard, in_order
from tests.acceptance.test_changes import made
from tests.acceptance.test_loop_copies import sweep, verified_gone_back_with_and_forked
from tests.acceptance.test_talk import TOOL_UNTIL_GO
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.kubernetes.faults import ExecCut
from tests.support.processes import marked, until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


@pytest.fixture
async def steersman(pods: OwnCluster) -> Steersman:
    return await pods.site.steersman()


@pytest.fixture
def repository(pods: OwnCluster) -> Path:
    return made(pods.site.workspace())


@pytest.mark.exhaustive
async def test_a_killed_shim_leaves_no_agent_and_the_session_goes_on(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel, mark: str
) -> None:
    async def kill_shim() -> None:
        agents = set(marked(mark))
        (shim,) = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_shim_of(int(path.name), agents)]
        os.kill(shim, signal.SIGKILL)

    await goes_on_after(kill_shim, pods, steersman, model, repository, mark=mark)
    await until(lambda: not marked(mark))


@pytest.mark.exhaustive
async def test_a_container_that_used_too_much_memory_begins_again_with_files_and_session(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    async def kill_for_memory() -> None:
        pods.kill_for_memory()

    await goes_on_after(kill_for_memory, pods, steersman, model, repository)


def _is_shim_of(pid: int, agents: set[int]) -> bool:
    """Whether this is the process whose child the agent's oldest is."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return False
    return name.startswith("steersman-shim") and bool(agents & set(map(int, children.split())))


@pytest.mark.exhaustive
async def test_connections_that_are_cut_after_any_byte_lose_and_double_nothing(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    turns = [(tool("Bash", command=f"echo {number} >> lines"), hold(f"turn {number}")) for number in range(6)]
    script = model.script("cut", *(step for turn in turns for step in turn), say("finished"))
    run = await steersman.start(pods.claude(script, "build it", workspace=repository))
    async with following(steersman, run) as attached:
        for number, after in enumerate((0, 1, 9, 100, 1000, 5000)):
            await script.wait_held()
            pods.server.faults.exec_cuts = [ExecCut(sent=after), ExecCut(received=after)]
            pods.cut()
            await heard(steersman, run, await steersman.interrupt(run, f"and now {number}"))
            await script.wait_requests(2 * number + 3)
        result = await asyncio.wait_for(steersman.result(run), 120)
        events = await attached.end()
    assert (result.status, result.text, result.attempts, result.messages_delivered) == ("succeeded", "finished", 1, 6)
    assert (repository / "lines").read_text() == "".join(f"{number}\n" for number in range(6))
    assert in_order(events)
    assert pods.left == []


@pytest.mark.exhaustive
async def test_what_both_changed_is_named_and_kept(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    script = model.script("both", tool("Bash", command="echo theirs > edited"), hold("thinking"))
    run = await steersman.start(pods.claude(script, "build it", workspace=repository))
    await script.wait_held()
    (repository / "edited").write_text("mine\n")
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    found = (await steersman.state(run)).finalize
    assert found
    assert (found.status, found.conflicts, found.ref) == ("conflicted", ("edited",), f"refs/steersman/conflicts/{run}")
    assert (repository / "edited").read_text() == "mine\n"
    assert pods.left == []


@pytest.mark.parametrize("decision", ["retry", "discard"])
@pytest.mark.exhaustive
async def test_what_cannot_be_carried_back_waits_in_its_pod(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel, decision: str
) -> None:
    script = model.script("waits", tool("Bash", command="git init -q lib; touch lib/file new"), say("finished"))
    run = await steersman.start(pods.claude(script, "build it", workspace=repository))
    with pytest.raises(WorkspaceError, match="a repository of its own lies in the copy: lib"):
        await asyncio.wait_for(steersman.result(run), SLOW_S)
    assert pods.pod
    other = await steersman.start(pods.site.process("true", workspace=repository))
    with pytest.raises(WorkspaceError, match=f"what run {run} changed"):
        await steersman.result(other)
    if decision == "retry":
        assert (await steersman.retry_workspace(run)).finalize.status == "failed"
        (lib,) = pods.home.glob(".local/state/steersman/copies/*/copy/*/lib")
        shutil.rmtree(lib)
        assert (await steersman.retry_workspace(run)).finalize.status == "succeeded"
    else:
        await steersman.discard_workspace(run)
    assert (repository / "new").exists() == (decision == "retry")
    await until(lambda: pods.left == [], SLOW_S)


@pytest.mark.exhaustive
async def test_a_loop_is_verified_gone_back_with_and_forked(
    pods: OwnCluster, steersman: Steersman, model: ScriptedModel
) -> None:
    await verified_gone_back_with_and_forked(
        pods.site, steersman, model, lambda loop: {**loop, "run": {**loop["run"], "runtime": pods.runtime()}}
    )
    await sweep(pods.site, steersman)
    await until(lambda: pods.left == [], SLOW_S)


async def test_a_tool_goes_on_while_its_worker_is_replaced(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    script = model.script("replaced", TOOL_UNTIL_GO, say("finished"))
    run = await steersman.start(pods.claude(script, "build it", workspace=repository))
    copy = Path(await _copy(steersman, run)).relative_to("/home/agent")
    before = pods.pod
    pods.site.workers[-1].kill()
    await pods.worker()
    (pods.home / copy / "go").touch()
    result = await asyncio.wait_for(steersman.result(run), 120)
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 1)
    state = await steersman.state(run)
    assert state.handle
    assert state.handle.place == f"default: Job {before.rpartition('-')[0]}, pod {before}"
    assert pods.left == []


async def _copy(steersman: Steersman, run: str) -> str:
    async def there() -> str | None:
        state = await steersman.state(run)
        return state.carried.directory if state.carried and state.phase == "running" else None

    return str(await until(there, SLOW_S))
