"""What a run has cost is told to the last call of the model that is in its journals, whoever sees its end."""

from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.run import RunState
from steersman.errors import RunCancelled
from tests.acceptance.loops import project
from tests.acceptance.site import Site, gone
from tests.scripted_model import ScriptedModel, Tool, Usage, answer, hold
from tests.support.processes import until

DEAR = Usage(output=100_000)
"""A reply for more than a dollar. As much of input would have Claude Code sum up its conversation first."""


async def at_work(steersman: Steersman, run: str) -> RunState:
    async def spent() -> RunState | None:
        state = await steersman.state(run)
        return state if state.cost_usd > 1 else None

    return await until(spent)


async def logged(steersman: Steersman, run: str) -> float:
    """What the event log says that it has cost."""
    return max(event.cost_usd for event in await steersman.events(run) if event.type == "usage")


@pytest.mark.parametrize("why", ["refused", "moved"])
async def test_a_run_that_may_not_go_on_keeps_what_it_has_cost(
    site: Site, model: ScriptedModel, mark: str, why: str
) -> None:
    worker = site.worker()
    await worker.ready()
    steersman, workspace = await site.steersman(), project(site)
    script = model.script("a", answer(Tool("Bash", {"command": "true"}), usage=DEAR), hold("thinking"))
    run = await steersman.start(site.claude(script, "go", mark, workspace=workspace, permissions={"mode": "full"}))
    await script.wait_held()
    before = await at_work(steersman, run)
    worker.kill()
    if why == "moved":
        workspace.rename(Path(f"{workspace}.moved"))
    flags = ("--max-permission", "accept_edits", "--allow-env", "RUN_MARK") if why == "refused" else ()
    await site.worker(*flags).ready()
    with pytest.raises(InvalidRequest if why == "refused" else (InvalidRequest, WorkspaceError)) as failed:
        await steersman.result(run)
    state = await steersman.state(run)
    assert failed.value.result
    assert state.cost_usd == failed.value.result.cost_usd == await logged(steersman, run) >= before.cost_usd
    assert (state.usage.output_tokens, state.turns) >= (100_000, before.turns)
    assert [each.id for each in await steersman.list("CostUsd > 1")] == [run]
    await gone(mark)


async def test_calls_that_no_worker_saw_count(site: Site, model: ScriptedModel, mark: str) -> None:
    """The run is cancelled while none is there: the next one reads them in the journal."""
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    go_on = site.root / "go-on"
    waits = Tool("Bash", {"command": f"until [ -e {go_on} ]; do sleep 0.1; done"})
    calls = [answer(waits, usage=DEAR), *[answer(Tool("Bash", {"command": "true"}), usage=DEAR)] * 2, hold("thinking")]
    script = model.script("a", *calls)
    run = await steersman.start(site.claude(script, "go", mark, workspace=project(site), permissions={"mode": "full"}))

    async def waiting() -> bool:
        return any(event.type == "tool_use" for event in await steersman.events(run))

    await until(waiting)
    worker.kill()
    go_on.touch()
    await script.wait_held()
    await steersman.temporal.get_workflow_handle(run).cancel()
    await site.worker().ready()
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    state = await steersman.state(run)
    assert state.usage.output_tokens >= 300_000
    assert state.cost_usd == await logged(steersman, run) > 3
    await gone(mark)
