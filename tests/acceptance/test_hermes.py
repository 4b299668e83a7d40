"""A run of the real Hermes through Temporal: its worker is killed, the next one goes on, it is steered and stopped."""

import os
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.run import Handle
from tests.acceptance.site import Site, following, gone, in_order
from tests.scripted_model import ScriptedModel, hold, tool
from tests.support.processes import lives, until
from tests.support.programs import program


async def test_a_worker_that_is_killed_is_replaced_and_the_run_is_steered_and_stopped(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    wait = tool("terminal", command="echo once >> made; while ! [ -e go ]; do sleep 0.02; done", timeout=600)
    script = model.script("a", wait, hold("as you wish"))
    environment = {**script.hermes_env(site.root / "hermes"), "HOME": str(site.root / "home")}
    environment["PATH"] = f"{Path(program('hermes')).parent}{os.pathsep}{os.environ['PATH']}"
    worker = site.worker(**environment)
    await worker.ready()
    workspace, steersman = site.workspace(), await site.steersman()
    asked = {"agent": "hermes", "prompt": "go", "workspace": {"path": str(workspace)}, "env": {"RUN_MARK": mark}}
    with pytest.raises(InvalidRequest, match="asks nobody before it acts"):
        await steersman.start(asked)
    run = await steersman.start({**asked, "permissions": {"mode": "full"}, "limits": {"tokens": 10_000}})
    await until((workspace / "made").exists, 30)
    pid = (await until(lambda: _handle(steersman, run))).pid
    worker.kill()
    assert lives(pid)
    await site.worker(**environment).ready()
    async with following(steersman, run) as events:
        await steersman.steer(run, "rather that", id="m-1")
        await until(lambda: _settled(steersman, run, "delivered"))
        assert list(site.state.rglob("snapshot-*.sh"))
        (workspace / "go").touch()
        await script.wait_held()
        assert await until(lambda: _settled(steersman, run, "acknowledged")) == ["mid_turn"]
        assert (await steersman.stop(run)).outcome == "stopped"
        all_events = await events.end()
    assert in_order(all_events)
    assert [each.attempt for each in all_events if each.type == "init"] == [1]
    assert (workspace / "made").read_text() == "once\n"
    assert "rather that" in str(script.requests[1].body["messages"][-1])
    closed = await steersman.state(run)
    assert closed.phase == "closed"
    assert closed.capabilities is not None
    assert (closed.capabilities.steer, closed.capabilities.permissions) == (True, False)
    await gone(mark)
    # What its shell has of variables.
    assert not list((site.root / "tmp").glob("hermes-snap-*"))
    assert not list(site.state.rglob("snapshot-*"))


async def _settled(steersman: Steersman, run: str, state: str) -> list[str]:
    return [each.how or "-" for each in (await steersman.state(run)).messages if each.state == state]


async def _handle(steersman: Steersman, run: str) -> Handle | None:
    return (await steersman.state(run)).handle
