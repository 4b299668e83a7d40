"""A run of the real Codex through Temporal: its worker is killed, the next one goes on, a person steers it."""

import os
from pathlib import Path

from steersman.client import Steersman
from steersman.contracts.run import Handle
from tests.acceptance.site import Site, following, gone, in_order
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import lives, until
from tests.support.programs import program


async def test_a_worker_that_is_killed_is_replaced_and_the_run_is_steered(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    script = model.script("a", tool("exec_command", cmd="echo once >> made"), hold("half"), say("as you wish"))
    environment = {**script.codex_env(site.root / "codex"), "HOME": str(site.root / "home")}
    environment["PATH"] = f"{Path(program('codex')).parent}{os.pathsep}{os.environ['PATH']}"
    worker = site.worker("--allow-env", "MOCK_KEY", **environment)
    await worker.ready()
    workspace, steersman = site.workspace(), await site.steersman()
    run = await steersman.start(
        {
            "agent": "codex",
            "prompt": "go",
            "workspace": {"path": str(workspace)},
            "env": {"MOCK_KEY": {"from_env": "MOCK_KEY"}, "RUN_MARK": mark},
            "limits": {"tokens": 10_000},
        }
    )
    await script.wait_requests(2)
    await script.wait_held()
    pid = (await until(lambda: _handle(steersman, run))).pid
    worker.kill()
    assert lives(pid)
    await site.worker("--allow-env", "MOCK_KEY", **environment).ready()
    async with following(steersman, run) as events:
        await steersman.steer(run, "rather that")
        all_events = await events.end()
    result = await steersman.result(run)
    assert (result.text, result.attempts, result.cost_usd) == ("as you wish", 1, 0.0)
    assert result.messages_delivered == 1
    assert in_order(all_events)
    assert (workspace / "made").read_text() == "once\n"
    assert script.requests[2].saw("rather that")
    await gone(mark)


async def _handle(steersman: Steersman, run: str) -> Handle | None:
    return (await steersman.state(run)).handle
