"""People talk to the run at work as to any run; the loop takes it as what it is. The Temporal CLI alone is enough."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from tests.acceptance.loops import LONG_TOOL, claude_loop, ended, in_tool, process_loop, project, reaches, tick, told
from tests.acceptance.site import Site, gone, phase
from tests.cli.steer import Steer
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import marked, until

BOTH = tool("Bash", command=tick("one", "two"))


@pytest.mark.exhaustive
async def test_steering_and_interrupting_the_run_at_work_is_no_matter_of_the_loop(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    wait = tool("Bash", command="until test -e go; do sleep 0.05; done")
    script = model.script("talk", wait, hold("the wrong way"), hold("another one"), BOTH, say("the right way"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace))
    run = f"{loop}-1"
    await script.wait_requests(1)
    await phase(steersman, run, "running")

    await steersman.steer(run, "mind the step")
    (workspace / "go").touch()
    await script.wait_requests(2)
    await script.wait_held()
    await steersman.interrupt(run, "turn round")
    await script.wait_requests(3)
    await script.wait_held()
    await steersman.interrupt(run)
    await script.wait_outcome(script.requests[2])
    assert (await steersman.loops.state(loop)).status == "running"
    await steersman.steer(run, "and on")
    result = await ended(steersman, loop)

    assert (result.status, result.iterations, result.text) == ("completed", 1, "the right way")
    assert [script.requests[-1].saw(text) for text in ("mind the step", "turn round", "and on")] == [True] * 3
    assert (await steersman.result(run)).messages_delivered == 4
    kinds = [each.kind for each in await steersman.loops.checkpoints(loop)]
    assert kinds == ["baseline", "iteration"]


def steer_command(site: Site, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The real command line."""
    command = [str(Path(sys.executable).parent / "steer"), *arguments]
    env = {**site.namespace.env, "HOME": str(site.root / "home"), "PATH": str(Path(sys.executable).parent)}
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["steer stop", "terminate"])
async def test_a_run_that_somebody_ends_pauses_the_loop(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, how: str
) -> None:
    workspace = project(shared)
    script = model.script("ended", tool("Bash", command=LONG_TOOL), BOTH, say("done"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mark))
    run = f"{loop}-1"
    await in_tool(mark)
    await phase(steersman, run, "running")

    if how == "steer stop":
        stopped = await asyncio.to_thread(steer_command, shared, "stop", run)
        assert stopped.returncode == 0, stopped.stderr
    else:
        await shared.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "enough")
    paused = await reaches(steersman, loop, "paused")

    await gone(mark)
    assert (paused.waits_for or "").startswith("iteration 1: its run was ")
    assert (paused.failures, paused.last_error, paused.run) == (0, None, None)
    assert paused.session_id is not None
    await until(lambda: _kinds(steersman, loop, ["baseline", "pause"]))
    await steersman.loops.resume(loop, "try again")
    result = await ended(steersman, loop)

    assert (result.status, result.iterations, result.session_id) == ("completed", 1, paused.session_id)
    assert "- try again" in told(script.requests[1])
    assert script.requests[1].saw("Work on the plan below")


@pytest.mark.exhaustive
async def test_a_verification_that_somebody_stops_is_made_up_for(shared: Site, steersman: Steersman, mark: str) -> None:
    workspace = project(shared)
    verify = {"command": "until test -e ../verified.go; do sleep 0.05; done"}
    request = process_loop(shared, "echo x >> work", workspace, mark, done={"verify": verify})
    loop = await steersman.loops.start(request)
    await reaches(steersman, loop, "verifying")
    await until(lambda: marked(mark))

    assert (await steersman.stop(f"{loop}-1-verify")).outcome == "stopped"
    paused = await reaches(steersman, loop, "paused")
    assert paused.waits_for == "the verification of iteration 1 was stopped"
    (shared.root / "verified.go").touch()
    await steersman.loops.resume(loop)

    assert (await ended(steersman, loop)).iterations == 1
    assert (workspace / "work").read_text() == "x\n"


async def test_the_run_at_work_asks_a_person(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = project(shared)
    script = model.script("asks", BOTH, say("done"))
    request = claude_loop(shared, script, workspace, run={"permissions": {"mode": "ask"}})
    loop = await steersman.loops.start(request)
    run = f"{loop}-1"
    await script.wait_requests(1)

    async def asked() -> str | None:
        return next((each.id for each in (await steersman.state(run)).approvals), None)

    approval = await until(asked)
    told = f"{run} waits for {approval}  Bash, denied at "
    steer = Steer(shared.namespace.address, shared.root, shared.namespace.name)

    async def listed() -> bool:
        return told in (await steer("loop", "list")).out

    await until(listed)
    assert told in (await steer("loop", "status", loop)).out
    assert told in (await steer("list")).out
    await steersman.decide(run, approval, "allow")
    result = await ended(steersman, loop)

    assert (result.status, result.iterations) == ("completed", 1)
    (summary,) = await steersman.list(f'WorkflowId="{run}"')
    assert summary.parent == loop


async def _kinds(steersman: Steersman, loop: str, wanted: list[str]) -> bool:
    return [each.kind for each in await steersman.loops.checkpoints(loop)] == wanted


async def test_the_temporal_cli_alone_is_enough(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    workspace = project(shared)
    script = model.script("cli", tool("Bash", command=LONG_TOOL), hold("slowly"), hold("more slowly"))
    loop = f"loop-{mark}"
    request = json.dumps(claude_loop(shared, script, workspace, mark))
    start = ("--type", "AgentLoop", "--task-queue", "steersman", "--workflow-id", loop, "--input", request)
    await shared.temporal("workflow", "start", *start)

    async def signal(name: str, said: str | None = None) -> None:
        more = ("--input", said) if said else ()
        await shared.temporal("workflow", "signal", "--workflow-id", loop, "--name", name, *more)

    async def state() -> dict[str, Any]:
        answer = await shared.temporal("workflow", "query", "--workflow-id", loop, "--type", "state")
        found: dict[str, Any] = answer["queryResult"][0]
        return found

    async def is_now(status: str) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            found = await state()
            return found if found["status"] == status else None

        return await until(there)

    await in_tool(mark)
    # What makes no sense is dropped; the loop goes on.
    await signal("rollback", '{"checkpoint": 77}')
    await signal("pause", '{"nwo": true}')
    await signal("feedback", '"just a text"')
    await signal("resume")
    assert (await state())["status"] == "running"

    await signal("pause", '{"now": true, "reason": "tea"}')
    paused = await is_now("paused")
    assert (paused["waits_for"], paused["iteration"], paused["failures"]) == ("tea", 1, 0)
    assert not marked(mark)
    await signal("feedback", '{"text": "use tabs", "id": "mine"}')
    await signal("resume", '{"text": "go on"}')
    await script.wait_held()
    said = told(script.requests[1])
    assert said.index("- use tabs") < said.index("- go on")
    assert (await state())["feedback_consumed"][0]["id"] == "mine"

    update = ("workflow", "update", "execute", "--workflow-id", loop, "--name", "pause", "--input", '{"now": false}')
    receipt = (await shared.temporal(*update))["result"]
    assert receipt["note"] == "it pauses when the iteration has ended"
    await signal("exit", '{"reason": "home time"}')
    result = await shared.temporal("workflow", "result", "--workflow-id", loop)
    assert (result["result"]["status"], result["result"]["stop_reason"]) == ("exited", "exit")
    assert not marked(mark)
    assert (await state())["status"] == "exited"
