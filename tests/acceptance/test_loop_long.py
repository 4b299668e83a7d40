"""A long loop goes on as new executions of one id; nobody who looks at it or talks to it notices."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop_state import LoopState
from steersman.loop_items import RunBegun
from tests.acceptance.loops import claude_loop, ended, process_loop, project, reaches, refs, tick
from tests.acceptance.site import Site
from tests.scripted_model import Request, ScriptedModel, Step, say, tool
from tests.support.processes import until
from tests.support.temporal import SHORT_HISTORIES

ITERATIONS = 12
HALF = ITERATIONS // 2


@pytest.fixture
async def hasty(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A machine with a worker, and with a server that wants short histories."""
    made = Site(tmp_path_factory.mktemp("hasty"), settings=SHORT_HISTORIES)
    try:
        await made.worker().ready()
        yield made
    finally:
        made.end()


async def executions(steersman: Steersman, loop: str) -> int:
    """How many there were of it."""
    return (await steersman.temporal.count_workflows(f'WorkflowId = "{loop}"')).count


@pytest.mark.exhaustive
async def test_it_is_one_loop_to_everybody(hasty: Site) -> None:
    steersman = await hasty.steersman()
    workspace = project(hasty)
    counts = f"echo x >> n; test $(wc -l < n) -lt {ITERATIONS} || {{ {tick('one', 'two')}; }}"
    waits = "until test -e ../{}; do sleep 0.05; done"
    command = f"{waits.format('go')}; touch n; test $(wc -l < n) -lt {HALF - 1} || {waits.format('on')}; {counts}"
    loop = await steersman.loops.start(process_loop(hasty, command, workspace, limits={"iterations": ITERATIONS}))
    runs: list[str] = []
    states: list[LoopState] = []

    async def follow() -> None:
        async for item in steersman.loops.follow(loop):
            if isinstance(item, RunBegun):
                runs.append(item.run)
            elif isinstance(item, LoopState):
                states.append(item)

    following = asyncio.create_task(follow())
    await until(lambda: runs)
    (workspace.parent / "go").touch()
    await reaches(steersman, loop, lambda now: now.iteration >= 2)
    await steersman.loops.feedback(loop, "use tabs", id="mine")
    await reaches(steersman, loop, lambda now: now.iteration == HALF)
    await steersman.loops.pause(loop)
    (workspace.parent / "on").touch()
    paused = await reaches(steersman, loop, "paused")
    assert await executions(steersman, loop) > 1
    with pytest.raises(InvalidRequest, match=f"loop {loop} has it"):  # as it had in its first execution
        await steersman.run(hasty.process("true", workspace=workspace))
    await steersman.loops.resume(loop)
    result = await ended(steersman, loop)
    await asyncio.wait_for(following, 30)

    assert await executions(steersman, loop) > 2
    assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", ITERATIONS)
    kept = await steersman.loops.checkpoints(loop)
    assert [each.number for each in kept] == list(range(result.checkpoints))
    assert refs(workspace, loop) == {each.number: each.commit for each in kept}
    assert [each.run for each in kept if each.run] == [f"{loop}-{number + 1}" for number in range(ITERATIONS)]
    assert runs == [f"{loop}-{number + 1}" for number in range(ITERATIONS)]
    assert states[-1].status == "completed"
    last = await steersman.loops.state(loop)
    assert [each.id for each in last.feedback_consumed] == ["mine"]
    assert (paused.started_at, paused.execution) == (last.started_at, last.execution)
    assert (workspace / "n").read_text() == "x\n" * ITERATIONS


@pytest.mark.exhaustive
async def test_its_session_its_pauses_and_its_limits_go_on(hasty: Site, model: ScriptedModel) -> None:
    steersman = await hasty.steersman()
    workspace = project(hasty)
    answers = 0

    def step(request: Request) -> Step:
        nonlocal answers
        answers += 1
        return tool("Bash", command=f"echo {answers} > n") if answers % 2 else say(f"answer {answers}")

    script = model.script("long", step)
    limits = {"iterations": 6}
    loop = await steersman.loops.start(claude_loop(hasty, script, workspace, limits=limits, mode="batch", batch_size=3))

    waiting = await reaches(steersman, loop, "waiting_for_decision")
    await steersman.loops.set_limits(loop, iterations=5)
    await steersman.loops.resume(loop, "go on")
    result = await ended(steersman, loop)

    assert waiting.iteration == 3
    assert await executions(steersman, loop) >= 2
    assert (result.status, result.stop_reason, result.iterations) == ("exited", "iterations", 5)
    assert result.session_id == waiting.session_id is not None
    # The model has seen all that was said since the loop began.
    assert [script.requests[-1].saw(f"answer {number}") for number in (2, 4, 6, 8)] == [True] * 4
    assert script.requests[-1].saw("- go on")
    kept = await steersman.loops.checkpoints(loop)
    assert result.cost_usd == pytest.approx(sum(each.cost_usd for each in kept))
