"""A person ends a run together with its turn: it closes as interrupted, and its session can be gone on with."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
from temporalio.client import WorkflowUpdateFailedError

from steersman.client import Steersman
from steersman.contracts.messages import MessageReceipt
from steersman.contracts.run import RunResult
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, claudes, in_order, phase, settled
from tests.scripted_model import Say, ScriptedModel, Tool, answer, hold, say, tool
from tests.support.files import files_with
from tests.support.processes import marked, until

END = {"end": True}
LONG_TOOL = Tool("Bash", {"command": "python3 -c 'import time; time.sleep(60)'"})


async def ended(steersman: Steersman, run: str) -> RunResult:
    """The result of a run that was ended; nothing of it is left open."""
    result = await asyncio.wait_for(steersman.result(run), 40)
    assert (result.status, result.stop_reason, result.error, result.facts) == ("succeeded", "interrupted", None, {})
    events = await steersman.events(run)
    assert in_order(events)
    assert events[-1].type == "done"
    state = await steersman.state(run)
    assert state.approvals == ()
    assert {each.state for each in state.messages} <= {"acknowledged", "rejected", "too_late"}
    return result


async def test_it_interrupts_a_tool_and_another_run_goes_on_with_the_session(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    workspace = shared.workspace()
    script = model.script("ended", answer(Say("on my way"), LONG_TOOL), say("never"))
    run = await steersman.start(shared.claude(script, mark=mark, workspace=workspace, permissions={"mode": "full"}))
    await until(lambda: any("time.sleep(60)" in line for line in marked(mark).values()))
    steer = await steersman.steer(run, "never read")

    handle = steersman.temporal.get_workflow_handle(run)
    receipt = await handle.execute_update("interrupt", {**END, "reason": "pause"}, result_type=MessageReceipt)
    result = await ended(steersman, run)

    assert (await settled(steersman, run, receipt.id, "acknowledged")).how == "interrupted"
    assert (result.text, result.attempts, len(script.requests)) == ("on my way", 1, 1)
    assert not marked(mark)
    states = {each.id: each.state for each in (await steersman.state(run)).messages}
    assert states == {steer.id: "rejected", receipt.id: "acknowledged"}

    second = model.script("gone-on", say("there at last"))
    request = shared.claude(second, "go on", workspace=workspace, session=result.session_id)
    assert (await steersman.run(request)).text == "there at last"
    assert second.requests[0].saw("on my way")


@pytest.mark.exhaustive
async def test_by_the_temporal_cli_while_an_approval_waits(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("asked", tool("Bash", command="touch made-it"))
    run = await steersman.start(shared.claude(script, permissions={"mode": "ask"}))

    async def asked() -> bool:
        return bool((await steersman.state(run)).approvals)

    await until(asked)
    message = ("--workflow-id", run, "--name", "interrupt", "--input", json.dumps(END))
    await shared.temporal("workflow", "signal", *message)
    await ended(steersman, run)


async def worker_dies(site: Site, agent: int, end: Callable[[], Awaitable[None]]) -> None:
    await end()
    site.workers[-1].kill()
    await site.worker().ready()


async def agent_dies(site: Site, agent: int, end: Callable[[], Awaitable[None]]) -> None:
    """It has been told, and dies before it has heard."""
    os.kill(agent, signal.SIGSTOP)
    await end()
    await until(lambda: any(each.name == "journal" for each in files_with(site.state, "end-interrupt-")))
    os.kill(agent, signal.SIGKILL)


async def agent_died(site: Site, agent: int, end: Callable[[], Awaitable[None]]) -> None:
    """It is dead already, and perhaps on its way to be resumed."""
    os.kill(agent, signal.SIGKILL)
    await end()


@pytest.mark.exhaustive
@pytest.mark.parametrize("calamity", [worker_dies, agent_dies, agent_died])
async def test_in_the_moment_of_a_death(
    site: Site,
    model: ScriptedModel,
    mark: str,
    calamity: Callable[[Site, int, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    steersman = await site.steersman()
    await site.worker().ready()
    script = model.script("death", *[hold("half a story")] * 2)
    run = await steersman.start(site.claude(script, mark=mark))
    await script.wait_held()
    await phase(steersman, run, "running")
    handle = steersman.temporal.get_workflow_handle(run)
    (agent,) = claudes(mark)

    await calamity(site, agent, lambda: handle.signal("interrupt", END))
    result = await ended(steersman, run)

    assert result.attempts == 1 or calamity is agent_died
    assert not marked(mark)
    again = model.script("again", say("the other half"))
    assert (await steersman.run(site.claude(again, "go on", session=result.session_id))).text == "the other half"


async def test_who_cannot_be_interrupted_says_so(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(OBEDIENT)))
    await phase(steersman, run, "running")

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await steersman.temporal.get_workflow_handle(run).execute_update("interrupt", END)
    assert 'agent "process" cannot interrupt' in str(refused.value.cause)
    await steersman.stop(run)
