"""What a run has done in a pod outlives the pod, whatever becomes of that: the worker keeps it from time to time."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import RunError
from steersman.errors import RunCancelled
from tests.acceptance.loops import ended, process_loop, project, reaches, tick
from tests.acceptance.own_cluster import SLOW_S, OwnCluster, goes_on_after
from tests.acceptance.site import following
from tests.acceptance.test_changes import git, made
from tests.acceptance.test_loop_copies import sweep
from tests.acceptance.test_talk import said
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
OFTEN = {"backup_s": 1}


@pytest.fixture
async def steersman(pods: OwnCluster) -> Steersman:
    return await pods.site.steersman()


@pytest.fixture
def repository(pods: OwnCluster) -> Path:
    return made(pods.site.workspace())


async def backed_up(pods: OwnCluster) -> None:
    """Wait until all that was done until now is in a backup."""
    now = datetime.now(UTC)
    await until(lambda: any(each > now for each in times(pods)), SLOW_S)


def times(pods: OwnCluster) -> list[datetime]:
    """When the backups that count were taken."""
    found = pods.site.state.glob("runs/*/*/backup.json")
    return [datetime.fromisoformat(json.loads(each.read_text())["time"]) for each in found]


@pytest.mark.exhaustive
async def test_claude_goes_on_in_another_pod_with_its_files_and_what_was_said(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    async def lose() -> None:
        await backed_up(pods)
        pods.lose()

    events = await goes_on_after(lose, pods, steersman, model, repository, runtime=OFTEN)
    told = [event.text for event in events if event.type == "progress" and "is gone" in event.text]
    assert len(told) == 1
    assert "goes on with its files and its session as they were at" in told[0]


@pytest.mark.exhaustive
async def test_a_loop_goes_on_after_a_pod_that_its_program_does_not_outlive(
    pods: OwnCluster, steersman: Steersman
) -> None:
    """Nothing waits for a person: the iteration has failed, and the next one has a pod of its own."""
    workspace = project(pods.site)
    program = f"test -e go && {{ {tick('one', 'two')}; exit 0; }}; echo begun; sleep 600"
    request = process_loop(pods.site, program, workspace)
    request["run"]["runtime"] = pods.runtime()
    loop = await steersman.loops.start(request)
    await reaches(steersman, loop, lambda now: now.run is not None)
    async with following(steersman, f"{loop}-1") as attached:
        await attached.until(lambda e: e.type == "message" and "begun" in e.text, SLOW_S)
    (workspace / "go").touch()
    pods.lose()
    result = await asyncio.wait_for(ended(steersman, loop), 120)
    assert (result.status, result.iterations) == ("completed", 2)
    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "failure", "iteration"]
    await sweep(pods.site, steersman)
    assert pods.left == []


@pytest.mark.exhaustive
async def test_a_worker_that_is_killed_over_that_is_followed_by_one_that_ends_it(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    pods.server.settings.starting_takes = timedelta(seconds=2)
    steps = (tool("Bash", command="echo a first step | tee step"), hold("thinking"), say("finished"))
    script = model.script("killed", *steps)
    request = pods.claude(script, "build it", workspace=repository, runtime=OFTEN)
    run = await steersman.start(request)
    await script.wait_held()
    await until(lambda: pods.has_written("a first step"))
    await backed_up(pods)
    pods.lose()
    await until(lambda: list(pods.site.state.glob("runs/*/*/loss")), SLOW_S)
    pods.site.workers[-1].kill()
    pods.server.settings.starting_takes = timedelta(0)
    await pods.worker()
    result = await asyncio.wait_for(steersman.result(run), 120)
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("a first step")
    assert (repository / "step").read_text() == "a first step\n"
    assert pods.left == []


@pytest.mark.exhaustive
async def test_a_message_is_backed_up_at_once(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    script = model.script("told", hold("thinking"), hold("about it"), say("finished"))
    request = pods.claude(script, "build it", workspace=repository, runtime={"backup_s": 3600})
    run = await steersman.start(request)
    await script.wait_held()
    await steersman.interrupt(run, "and paint it green")
    kept = "runs/*/*/backup/sessions-*/**/*.jsonl"
    await until(lambda: any("paint it green" in each.read_text() for each in pods.site.state.glob(kept)), SLOW_S)
    await until(lambda: times(pods))
    pods.lose()
    result = await asyncio.wait_for(steersman.result(run), 120)
    assert (result.status, result.text) == ("succeeded", "finished")
    assert said(script.requests[-1], "and paint it green") == 1


async def test_what_a_run_that_fails_with_its_pod_has_done_is_kept_at_a_ref(
    pods: OwnCluster, steersman: Steersman, repository: Path
) -> None:
    program = "import time; open('made', 'w').write('by hand'); print('made', flush=True); time.sleep(600)"
    request = pods.process("python3", "-c", program, workspace=repository, runtime=OFTEN)
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and "made" in e.text, SLOW_S)
        await backed_up(pods)
        pods.lose()
        with pytest.raises(RunError) as failed:
            await asyncio.wait_for(steersman.result(run), 120)
    finalize = (await steersman.state(run)).finalize
    assert finalize
    assert finalize.ref
    assert (failed.value.type, finalize.status) == ("AgentCrashed", "failed")
    assert "the copy is lost" in str(finalize.error)
    assert "is kept" in str(finalize.error)
    assert git(repository, "show", f"{finalize.ref}:made") == "by hand"
    assert not (repository / "made").exists()
    assert pods.left == []


@pytest.mark.exhaustive
async def test_a_run_that_is_cancelled_while_it_waits_for_its_next_pod_loses_nothing_that_was_kept(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    steps = (tool("Bash", command="echo a first step | tee step"), hold("thinking"), say("finished"))
    script = model.script("cancelled", *steps)
    run = await steersman.start(pods.claude(script, "build it", workspace=repository, runtime=OFTEN))
    await script.wait_held()
    await until(lambda: pods.has_written("a first step"))
    await backed_up(pods)
    pods.server.settings.schedules_pods = False
    try:
        pods.lose()
        await until(lambda: list(pods.site.state.glob("runs/*/*/loss")), SLOW_S)
        report = await asyncio.wait_for(steersman.stop(run), SLOW_S)
        with pytest.raises(RunCancelled):
            await asyncio.wait_for(steersman.result(run), SLOW_S)
    finally:
        pods.server.settings.schedules_pods = True
    assert report.left == ()
    state = await steersman.state(run)
    assert state.finalize
    assert state.finalize.ref
    assert "is kept" in str(state.finalize.error)
    assert git(repository, "show", f"{state.finalize.ref}:step") == "a first step\n"
    assert not (repository / "step").exists()
    assert pods.left == []
    script = model.script("here", say("remembered"))
    request = pods.site.claude(script, "go on", workspace=repository, session=state.session_id)
    assert (await steersman.run(request)).text == "remembered"
    assert script.requests[-1].saw("a first step")


@pytest.mark.exhaustive
async def test_without_backups_it_begins_with_what_was_carried_out(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    steps = (tool("Bash", command="echo lost > lost"), hold("thinking"), say("once more"))
    script = model.script("without", *steps)
    request = pods.claude(script, "build it", workspace=repository, runtime={"backup_s": 0})
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking", SLOW_S)
        pods.lose()
        result = await asyncio.wait_for(steersman.result(run), 120)
        events = await attached.end()
    assert (result.status, result.text) == ("succeeded", "once more")
    assert not (repository / "lost").exists()
    (told,) = [event.text for event in events if event.type == "progress" and "is gone" in event.text]
    assert "as it was carried out; what was done and said since is lost" in told
    assert pods.left == []


@pytest.mark.exhaustive
async def test_a_pod_that_is_deleted_with_its_grace_costs_nothing(
    pods: OwnCluster, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    """As where a node is drained: the agent is stopped by the cluster, and what it has done is fetched then."""

    async def delete() -> None:
        assert times(pods) == []
        pods.delete()

    runtime = {"backup_s": 3600, "grace_s": 20}
    events = await goes_on_after(delete, pods, steersman, model, repository, runtime=runtime)
    (told,) = [event.text for event in events if event.type == "progress" and "deleted" in event.text]
    assert "as they were at" in told
