"""Runs of real agents that speak ACP through Temporal: asked, their worker killed, interrupted, stopped."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.run import Approval, Handle
from tests.acceptance.site import Site, following, gone, heard, in_order
from tests.scripted_model import Script, ScriptedModel, Tool, answer, hold, say
from tests.support.processes import lives, until
from tests.support.programs import program
from tests.support.workers import WorkerProcess


def opencode(site: Site, script: Script) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of a request, and the worker's environment."""
    environment = script.opencode_env(site.root / "opencode")
    environment["PATH"] = f"{Path(program('opencode')).parent}{os.pathsep}{os.environ['PATH']}"
    return {"agent": "opencode"}, environment


def gemini(site: Site, script: Script) -> tuple[dict[str, Any], dict[str, str]]:
    """The same."""
    environment = {**script.gemini_env(site.root / "gemini"), "GEMINI_API_KEY": "dummy"}
    environment["PATH"] = f"{Path(program('gemini')).parent}{os.pathsep}{os.environ['PATH']}"
    return {"agent": "gemini"}, environment


AGENTS = {"opencode": opencode, "gemini": gemini}
PROGRAMS = ["opencode", pytest.param("gemini", marks=pytest.mark.exhaustive)]
COMMAND = {"command": "echo once >> made", "description": "as asked"}
TOOLS = {"opencode": Tool("bash", COMMAND), "gemini": Tool("run_shell_command", COMMAND)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("agent", PROGRAMS)
async def test_it_is_asked_taken_over_interrupted_and_ends(
    site: Site, model: ScriptedModel, mark: str, agent: str
) -> None:
    workspace = site.workspace()
    script, steersman, run, make = await _started(site, model, mark, agent, workspace)
    approval = await until(lambda: _approval(steersman, run))
    assert approval.tool == "execute"
    pid = (await until(lambda: _handle(steersman, run))).pid
    (worker,) = site.workers
    worker.kill()
    assert lives(pid)
    await make().ready()
    await steersman.decide(run, approval.id, "allow")
    await script.wait_held()
    async with following(steersman, run) as events:
        await heard(steersman, run, await steersman.interrupt(run, "rather that"))
        all_events = await events.end()
    result = await steersman.result(run)
    assert (result.status, result.text, result.attempts) == ("succeeded", "as you wish", 1)
    assert result.messages_delivered == 1
    assert in_order(all_events)
    assert (workspace / "made").read_text() == "once\n"
    assert script.requests[-1].saw("rather that")
    await gone(mark)


@pytest.mark.parametrize("agent", PROGRAMS)
@pytest.mark.exhaustive
async def test_a_cancel_leaves_nothing(site: Site, model: ScriptedModel, mark: str, agent: str) -> None:
    script, steersman, run, _ = await _started(site, model, mark, agent, site.workspace())
    approval = await until(lambda: _approval(steersman, run))
    await steersman.decide(run, approval.id, "allow")
    await script.wait_held()
    stopped = await steersman.stop(run)
    await gone(mark)
    assert (stopped.outcome, stopped.left) == ("stopped", ())


async def _started(
    site: Site, model: ScriptedModel, mark: str, agent: str, workspace: Path
) -> tuple[Script, Steersman, str, Callable[[], WorkerProcess]]:
    script = model.script("a", answer(TOOLS[agent]), hold("half"), lambda _request: say("as you wish"))
    fields, environment = AGENTS[agent](site, script)
    names: Mapping[str, Any] = fields.get("env", {})
    # Where the state directory is below /tmp, Gemini CLI cannot be told that a workspace is not trusted.
    arguments = ["--trust", str(workspace), *(each for name in names for each in ("--allow-env", name))]

    def make() -> WorkerProcess:
        return site.worker(*arguments, **environment)

    await make().ready()
    steersman = await site.steersman()
    request = {
        "prompt": "go",
        "workspace": {"path": str(workspace)},
        "permissions": {"mode": "ask"},
        **fields,
        "env": {**names, "RUN_MARK": mark},
    }
    return script, steersman, await steersman.start(request), make


async def _handle(steersman: Steersman, run: str) -> Handle | None:
    return (await steersman.state(run)).handle


async def _approval(steersman: Steersman, run: str) -> Approval | None:
    waiting = (await steersman.state(run)).approvals
    return waiting[0] if waiting else None
