"""What a loop may use up is held in the middle of an iteration, too; a provider's limit is waited for."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import LoopFailed
from steersman.contracts.loop_state import LoopResult
from tests.acceptance.loops import LONG_TOOL, claude_loop, ended, in_tool, process_loop, project, reaches, tick, told
from tests.acceptance.site import Site, gone
from tests.scripted_model import Hold, Say, ScriptedModel, Usage, answer, fail, hold, say, tool
from tests.support.processes import marked, until

MUCH = answer(Say("much"), Hold(), usage=Usage(input=1_000_000))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("limit", "reason", "says"),
    [
        ({"cost_usd": 0.05}, "cost", r"limits.cost_usd: \$.* of \$0.05 are spent"),
        ({"tokens": 50_000}, "tokens", r"limits.tokens: \d+ of 50000 are used"),
        ({"duration_s": 15}, "duration", r"limits.duration_s: the loop was at work for 1[5-9] s"),
    ],
    ids=["cost", "tokens", "duration"],
)
async def test_a_limit_stops_the_run_in_its_middle_and_the_loop(
    shared: Site,
    steersman: Steersman,
    model: ScriptedModel,
    mark: str,
    limit: dict[str, Any],
    reason: str,
    says: str,
) -> None:
    workspace = project(shared)
    script = model.script("much", say("a little"), hold("for ever") if reason == "duration" else MUCH)
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mark, limits=limit))
    result = await ended(steersman, loop)

    assert (result.status, result.stop_reason, result.iterations) == ("exited", reason, 2)
    assert re.fullmatch(says, result.error or "")
    assert not marked(mark)
    assert await script.wait_outcome(script.requests[1]) == "hung up"
    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "iteration", "failure"]
    assert f"limits.{next(iter(limit))}" in (kept[-1].error or "")
    # What the run that was stopped has used up counts.
    assert result.usage.input_tokens == sum(each.usage.input_tokens for each in kept)
    assert (result.usage.input_tokens > 1_000_000) == (reason != "duration")


@pytest.mark.exhaustive
async def test_an_iteration_that_takes_too_long_has_failed(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    workspace = project(shared)
    script = model.script("slow", hold("for ever"), tool("Bash", command=tick("one", "two")), say("done"))
    limits = {"iteration_duration_s": 12}
    request = claude_loop(shared, script, workspace, mark, limits=limits, pause_between_s=600)
    loop = await steersman.loops.start(request)

    await script.wait_held()
    failed = await reaches(steersman, loop, lambda now: now.wakes_at)
    assert (failed.failures, failed.iteration) == (1, 1)
    assert "limits.duration_s" in (failed.last_error or "")
    await steersman.loops.set_limits(loop, iteration_duration_s=0)
    await steersman.loops.skip_wait(loop)
    result = await ended(steersman, loop)

    assert (result.status, result.iterations) == ("completed", 2)
    kinds = [each.kind for each in await steersman.loops.checkpoints(loop)]
    assert kinds == ["baseline", "failure", "iteration"]
    assert (await steersman.loops.state(loop)).failures == 0


@pytest.mark.exhaustive
async def test_failures_in_a_row_fail_the_loop(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    request = process_loop(shared, "echo the reason is this >&2; exit 7", workspace, limits={"failures": 2})
    loop = await steersman.loops.start(request)

    with pytest.raises(LoopFailed, match=r"limits.failures: 2 in a row failed.*the reason is this") as raised:
        await ended(steersman, loop)

    result = LoopResult.model_validate(raised.value.result)
    assert (result.status, result.stop_reason, result.iterations) == ("failed", "failures", 2)
    assert [each.kind for each in await steersman.loops.checkpoints(loop)] == ["baseline", "failure", "failure"]


@pytest.mark.exhaustive
async def test_nothing_done_and_too_much_done_stop_the_loop(shared: Site, steersman: Steersman) -> None:
    # A commit alone is progress.
    commits = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m more"
    idle = await steersman.loops.start(process_loop(shared, "true", project(shared), limits={"no_progress": 2}))
    busy = process_loop(shared, commits, project(shared), limits={"no_progress": 2, "iterations": 4})

    result = await ended(steersman, await steersman.loops.start(busy))
    assert (result.status, result.stop_reason, result.iterations) == ("exited", "iterations", 4)
    result = await ended(steersman, idle)
    assert (result.status, result.stop_reason, result.iterations) == ("exited", "no_progress", 2)


async def test_a_command_that_is_not_there_is_no_proof(shared: Site, steersman: Steersman) -> None:
    done = {"verify": {"command": ["no-such-command", "--now"]}}
    loop = await steersman.loops.start(process_loop(shared, tick("one"), project(shared), done=done))

    with pytest.raises(LoopFailed, match=r"done.verify: there is no such command: no-such-command --now"):
        await ended(steersman, loop)

    state = await steersman.loops.state(loop)
    assert (state.stop_reason, state.iteration) == ("verification_missing", 2)
    assert state.verification is not None
    assert state.verification.status == "missing"


async def test_a_rate_limit_is_waited_for_and_no_failure(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    workspace = project(shared)
    limited = fail(429, "slow down", retry_after_s=45)
    both = tool("Bash", command=tick("one", "two"))
    script = model.script("limited", tool("Bash", command="true"), limited, limited, both, say("done"))
    loop = await steersman.loops.start(claude_loop(shared, script, workspace, mark))

    waiting = await reaches(steersman, loop, "waiting_rate_limit")
    assert waiting.wakes_at is not None
    assert timedelta(seconds=10) < waiting.wakes_at - datetime.now(UTC) < timedelta(seconds=80)
    assert not marked(mark)
    assert (waiting.failures, waiting.last_error) == (0, None)
    await steersman.loops.skip_wait(loop)
    await until(lambda: len(script.requests) == 3)
    again = await reaches(steersman, loop, "waiting_rate_limit")
    assert again.session_id == waiting.session_id is not None
    await steersman.loops.feedback(loop, "go on now")
    result = await ended(steersman, loop)

    assert (result.status, result.iterations, result.session_id) == ("completed", 1, waiting.session_id)
    assert "You were interrupted in the middle of iteration 1" in told(script.requests[3])
    assert "- go on now" in told(script.requests[3])
    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "pause", "pause", "iteration"]


async def test_a_rate_limit_can_end_the_loop(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    script = model.script("stops", fail(429, "slow down", retry_after_s=45))
    loop = await steersman.loops.start(claude_loop(shared, script, project(shared), rate_limit="stop"))
    result = await ended(steersman, loop)
    assert (result.status, result.stop_reason, result.iterations) == ("exited", "rate_limit", 1)


async def test_a_run_that_is_terminated_costs_what_it_had_cost(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    """Its workflow is told of that ever more seldom."""
    dear = Usage(input=200_000, output=1_000)
    steps = [answer(tool("Bash", command="sleep 1"), usage=dear)] * 6
    script = model.script("dear", *steps, answer(tool("Bash", command=LONG_TOOL), usage=dear))
    request = claude_loop(shared, script, project(shared), mark, limits={"no_progress": 0, "cost_usd": 100})
    loop = await steersman.loops.start(request)
    run = f"{loop}-1"
    await in_tool(mark)
    used = [each.cost_usd for each in await steersman.events(run) if each.type == "usage"]
    await shared.temporal("workflow", "terminate", "--workflow-id", run)
    state = await reaches(steersman, loop, "paused")
    assert state.totals.cost_usd == pytest.approx(max(used))
    await gone(mark)
    await steersman.loops.exit(loop)
