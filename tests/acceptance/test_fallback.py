"""Runs that go on with another agent: told of the first one, led by whichever worker there is, one log, one result."""

import os
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import (
    AgentFailed,
    AgentNotInstalled,
    AuthenticationFailed,
    BudgetExceeded,
    InvalidRequest,
    RunError,
)
from steersman.contracts.run import Handle, RunState
from tests.acceptance.loops import claude_loop, ended, project, tick
from tests.acceptance.site import Site, following, gone, in_order
from tests.loops.loop_site import repository
from tests.scripted_model import Script, ScriptedModel, answer, fail, hold, say, tool
from tests.support.processes import lives, marked, until
from tests.support.programs import program


def worker_env(site: Site, codex: Script, *, on_path: bool = True) -> dict[str, str]:
    """The environment of a worker whose Codex has that script for its model."""
    environment = {**codex.codex_env(site.root / "codex"), "HOME": str(site.root / "home")}
    path = f"{Path(program('codex')).parent}{os.pathsep}" if on_path else ""
    return {**environment, "PATH": f"{path}{os.environ['PATH']}"}


def asked(site: Site, claude: Script, mark: str, workspace: Path, **fields: Any) -> dict[str, Any]:
    """Claude Code, and Codex where that cannot."""
    request = site.claude(claude, "mend the fence", mark, workspace=workspace, permissions={"mode": "full"})
    env = {**request["env"], "MOCK_KEY": {"from_env": "MOCK_KEY"}}
    return {**request, "env": env, "fallback": [{"agent": "codex"}], **fields}


async def test_another_agent_goes_on_and_is_told_what_was_done(site: Site, model: ScriptedModel, mark: str) -> None:
    refused = fail(429, "slow down", retry_after_s=3600)
    first = model.script("a", answer(say("I begin with the gate"), tool("Bash", command="echo new > gate")), refused)
    second = model.script("b", hold("half"), say("mended"))
    environment = worker_env(site, second)
    worker = site.worker("--allow-env", "MOCK_KEY", **environment)
    await worker.ready()
    workspace, steersman = repository(site.workspace(), {"gate": "old\n"}), await site.steersman()
    run = await steersman.start(asked(site, first, mark, workspace))
    await second.wait_held()

    state = await until(lambda: at_work(steersman, run, "codex"))
    assert state.capabilities
    assert (state.part, state.attempt, state.capabilities.cost) == (1, 2, False)
    pid = (await until(lambda: handle(steersman, run))).pid
    worker.kill()
    assert lives(pid)
    await site.worker("--allow-env", "MOCK_KEY", **environment).ready()
    async with following(steersman, run) as events:
        await steersman.interrupt(run, "with nails")
        log = await events.end()
    result = await steersman.result(run)

    assert (result.text, result.attempts, result.status) == ("mended", 2, "succeeded")
    assert [(each.agent, each.attempts) for each in result.parts] == [("claude", 1), ("codex", 1)]
    assert "slow down" in (result.parts[0].error or "")
    assert result.parts[1].error is None
    assert result.parts[0].cost_usd == result.cost_usd > 0
    assert result.session_id == result.parts[1].session_id != result.parts[0].session_id
    used = [each.usage.input_tokens for each in result.parts]
    assert sum(used) == result.usage.input_tokens
    assert min(used) > 0
    told = "\n".join(second.requests[0].texts)
    for words in ("could not go on", "I begin with the gate", "-old\n+new", "mend the fence"):
        assert words in told
    assert second.requests[-1].saw("with nails")
    assert in_order(log)
    said = [each.text for each in log if each.type == "progress" and "cannot go on" in each.text]
    assert len(said) == 1
    assert said[0].startswith("claude cannot go on (")
    assert said[0].endswith("; codex does")
    described = await steersman.temporal.get_workflow_handle(run).describe()
    assert described.search_attributes["AgentName"] == ["codex"]
    await gone(mark)


@pytest.mark.exhaustive
async def test_one_that_is_not_installed_is_passed_over(site: Site, model: ScriptedModel, mark: str) -> None:
    claude = model.script("a", say("done"))
    await site.worker(PATH="/usr/bin:/bin").ready()
    steersman, workspace = await site.steersman(), site.workspace()
    request = site.claude(claude, mark=mark, workspace=workspace)
    fallback = [{"agent": "opencode"}, {"agent": "claude"}]
    run = await steersman.start({**request, "agent": "gemini", "fallback": fallback})
    result = await steersman.result(run)
    assert (result.text, result.attempts) == ("done", 1)
    assert [(each.agent, each.attempts) for each in result.parts] == [("gemini", 0), ("opencode", 0), ("claude", 1)]
    assert "not on PATH" in (result.parts[0].error or "")
    assert "Another agent" not in "\n".join(claude.requests[0].texts)
    assert in_order(await steersman.events(run))

    nobody = await steersman.start({**request, "agent": "gemini", "fallback": [{"agent": "opencode"}]})
    with pytest.raises(AgentNotInstalled, match="gemini"):
        await steersman.result(nobody)


async def test_the_operators_limit_of_cost_is_that_of_whichever_agent_reports_cost(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    claude = model.script("a", *[answer(say("on"), tool("Bash", command="true"))] * 20, say("done"))
    await site.worker("--max-cost", "0.001", PATH="/usr/bin:/bin").ready()
    steersman = await site.steersman()
    request = site.claude(claude, mark=mark, workspace=site.workspace())
    run = await steersman.start({**request, "agent": "gemini", "fallback": [{"agent": "claude"}]})
    with pytest.raises(BudgetExceeded):
        await steersman.result(run)
    assert (await steersman.state(run)).agent == "claude"
    await gone(mark)


@pytest.mark.exhaustive
async def test_the_last_ones_failure_is_the_runs(site: Site, model: ScriptedModel, mark: str) -> None:
    first, second = model.script("a", *[fail(401, "bad key")] * 5), model.script("b", *[fail(401, "bad key, too")] * 5)
    await site.worker("--allow-env", "MOCK_KEY", **worker_env(site, second)).ready()
    steersman = await site.steersman()
    run = await steersman.start(asked(site, first, mark, site.workspace()))
    with pytest.raises(RunError) as failure:
        await steersman.result(run)
    assert isinstance(failure.value, AuthenticationFailed | AgentFailed)
    assert "bad key, too" in failure.value.message
    assert (await steersman.state(run)).agent == "codex"
    await gone(mark)

    only = model.script("c", *[fail(401, "bad key")] * 5)
    other = await steersman.start(asked(site, only, mark, site.workspace(), fallback_on=["rate_limit"]))
    with pytest.raises(AuthenticationFailed, match="401"):
        await steersman.result(other)
    assert (await steersman.state(other)).agent == "claude"


async def test_a_cancel_stops_whoever_is_at_work(site: Site, model: ScriptedModel, mark: str) -> None:
    first, second = model.script("a", *[fail(401, "bad key")] * 5), model.script("b", hold("half"))
    await site.worker("--allow-env", "MOCK_KEY", **worker_env(site, second)).ready()
    steersman = await site.steersman()
    run = await steersman.start(asked(site, first, mark, site.workspace()))
    await second.wait_held()
    stopped = await steersman.stop(run)
    assert not marked(mark)
    assert (stopped.outcome, stopped.left) == ("stopped", ())
    assert in_order(await steersman.events(run))


async def at_work(steersman: Steersman, run: str, agent: str) -> RunState | None:
    state = await steersman.state(run)
    return state if state.agent == agent else None


async def handle(steersman: Steersman, run: str) -> Handle | None:
    return (await steersman.state(run)).handle


async def test_in_a_loop_each_run_begins_with_the_first_one_again(site: Site, model: ScriptedModel, mark: str) -> None:
    first = model.script("a", *[fail(429, "slow down", retry_after_s=3600)] * 2)
    second = model.script("b", say("mended"), say("mended more"))
    await site.worker("--allow-env", "MOCK_KEY", **worker_env(site, second)).ready()
    steersman, workspace = await site.steersman(), project(site)
    request = claude_loop(site, first, workspace, mark, limits={"iterations": 2})
    request["run"] |= {
        "env": {**request["run"]["env"], "MOCK_KEY": {"from_env": "MOCK_KEY"}},
        "fallback": [{"agent": "codex"}],
    }
    loop = await steersman.loops.start(request)
    outcome = await ended(steersman, loop)
    assert (outcome.status, outcome.stop_reason, outcome.iterations) == ("exited", "iterations", 2)
    assert [len(first.requests), len(second.requests)] == [2, 2]

    dear = await steersman.loops.start({**request, "limits": {"cost_usd": 25}})
    with pytest.raises(InvalidRequest, match=r'run.fallback.0: limits.cost_usd is not supported by agent "codex"'):
        await steersman.loops.result(dear)


async def test_a_loop_of_an_agent_that_sets_no_bound_to_its_patience(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    codex = model.script("b", tool("exec_command", cmd=tick("one", "two", "three")), say("done"))
    await site.worker("--allow-env", "MOCK_KEY", **worker_env(site, codex)).ready()
    steersman, workspace = await site.steersman(), project(site)
    request = claude_loop(site, codex, workspace, mark, limits={"iterations": 2})
    request["run"] |= {"agent": "codex", "env": {"RUN_MARK": mark, "MOCK_KEY": {"from_env": "MOCK_KEY"}}}
    outcome = await ended(steersman, await steersman.loops.start(request))
    assert (outcome.status, outcome.iterations) == ("completed", 1)
