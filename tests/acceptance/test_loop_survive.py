"""Loops go on, whole and once, whatever they were at when the worker died or was replaced."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.loop_state import LoopResult, LoopState
from tests.acceptance.loops import (
    PLAN_ACCOUNT,
    claude_loop,
    ended,
    in_tool,
    process_loop,
    project,
    reaches,
    refs,
    tick,
    told,
    used_up,
)
from tests.acceptance.site import Site, answered, phase
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import marked, until

UNTIL_GO = "until test -e ../{}.go; do sleep 0.05; done"
BOTH = tick("one", "two")


@dataclass
class Stage:
    """What each loop is given. `struck`: the worker is dead; `mended`: another is there."""

    site: Site
    steersman: Steersman
    model: ScriptedModel
    mark: str
    barrier: asyncio.Barrier
    replace: Callable[[], Awaitable[None]]

    async def meet_it(self, while_gone: Callable[[], Awaitable[object]] | None = None) -> None:
        """The worker goes, something is said to Temporal perhaps, and another worker comes."""
        if await self.barrier.wait() == 0:
            await self.replace()
        await self.barrier.wait()
        if while_gone:
            await while_gone()
        if await self.barrier.wait() == 0:
            await self.site.worker(**PLAN_ACCOUNT).ready()
        await self.barrier.wait()

    def go(self, name: str) -> None:
        """Let what waits for it go on."""
        (self.site.root / f"{name}.go").touch()

    async def start(self, request: dict[str, Any]) -> str:
        return await self.steersman.loops.start(request)

    async def came_through(
        self, loop: str, workspace: Path, iterations: int, extra: tuple[str, ...] = ()
    ) -> LoopResult:
        """It is done; each iteration was one, its runs took one process each, each checkpoint is there once."""
        result = await ended(self.steersman, loop)
        assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", iterations)
        kept = await self.steersman.loops.checkpoints(loop)
        assert sorted(each.kind for each in kept) == sorted(["baseline", *["iteration"] * iterations, *extra])
        assert [each.number for each in kept] == list(range(len(kept)))
        assert refs(workspace, loop) == {each.number: each.commit for each in kept}
        state = await self.steersman.loops.state(loop)
        assert (state.iteration, state.failures, state.last_error) == (iterations, 0, None)
        for number in range(1, iterations + 1):
            assert (await self.steersman.result(f"{loop}-{number}")).attempts == 1
        return result


async def running(stage: Stage) -> None:
    """Claude is in the middle of an answer, then of a tool; somebody gives feedback while no worker is there."""
    workspace = project(stage.site)
    wait = tool("Bash", command=f"{UNTIL_GO.format('tool')}; {tick('one')}")
    script = stage.model.script(
        "running", hold("first half, ", "second half"), wait, say("one"), tool("Bash", command=tick("two")), say("two")
    )
    loop = await stage.start(claude_loop(stage.site, script, workspace))
    await script.wait_held()
    await phase(stage.steersman, f"{loop}-1", "running")

    async def feedback() -> None:
        said = ("--workflow-id", loop, "--name", "feedback", "--input", '{"text": "use tabs"}')
        await stage.site.temporal("workflow", "signal", *said)

    await stage.meet_it(feedback)
    await script.release()
    await script.wait_requests(2)
    stage.go("tool")
    result = await stage.came_through(loop, workspace, 3)
    assert len(script.requests) == 5
    assert (await stage.steersman.result(f"{loop}-1")).text == "first half, second half"
    assert told(script.requests[1]).count("use tabs") == 1
    assert result.session_id is not None


async def in_a_tool(stage: Stage) -> None:
    """Claude waits for its tool; then somebody pauses now, while no worker is there."""
    workspace, mark = project(stage.site), f"{stage.mark}-tool"
    script = stage.model.script(
        "tool",
        tool("Bash", command="python3 -c 'import time; time.sleep(600)'"),
        tool("Bash", command=BOTH),
        say("two"),
    )
    loop = await stage.start(claude_loop(stage.site, script, workspace, mark))
    await in_tool(mark)
    await phase(stage.steersman, f"{loop}-1", "running")

    async def pause() -> None:
        said = ("--workflow-id", loop, "--name", "pause", "--input", '{"now": true, "reason": "lunch"}')
        await stage.site.temporal("workflow", "signal", *said)
        assert marked(mark)

    await stage.meet_it(pause)
    paused = await reaches(stage.steersman, loop, "paused")
    assert paused.waits_for == "lunch"
    assert not marked(mark)
    await stage.steersman.loops.resume(loop)
    result = await ended(stage.steersman, loop)
    assert (result.status, result.iterations, len(script.requests)) == ("completed", 1, 3)
    assert script.requests[1].saw("Work on the plan below")


async def verifying(stage: Stage) -> None:
    workspace, mark = project(stage.site), f"{stage.mark}-verify"
    count = workspace.parent / "verified"
    verify = {"command": f"echo x >> ../verified; {UNTIL_GO.format('verify')}"}
    request = process_loop(stage.site, BOTH, workspace, mark, done={"verify": verify})
    loop = await stage.start(request)
    await reaches(stage.steersman, loop, "verifying")
    await until(count.exists)
    await stage.meet_it()
    assert (await answered(partial(stage.steersman.loops.state, loop))).status == "verifying"
    stage.go("verify")
    await stage.came_through(loop, workspace, 1)
    assert count.read_text() == "x\n"
    assert (await stage.steersman.result(f"{loop}-1-verify")).attempts == 1


async def paused(stage: Stage) -> None:
    workspace, mark = project(stage.site), f"{stage.mark}-paused"
    script = stage.model.script("paused", hold("on it"), tool("Bash", command=BOTH), say("done"))
    loop = await stage.start(claude_loop(stage.site, script, workspace, mark))
    await script.wait_held()
    await stage.steersman.loops.pause(loop, now=True)
    before = await reaches(stage.steersman, loop, "paused")
    await stage.meet_it()
    assert _but_time(await answered(partial(stage.steersman.loops.state, loop))) == _but_time(before)
    assert not marked(mark)
    await stage.steersman.loops.resume(loop)
    result = await ended(stage.steersman, loop)
    assert (result.iterations, result.session_id) == (1, before.session_id)


async def waiting_for_decision(stage: Stage) -> None:
    workspace = project(stage.site)
    command = f"if test -e one; then {BOTH}; else touch one; fi"
    loop = await stage.start(process_loop(stage.site, command, workspace, mode="checkpoint"))
    before = await reaches(stage.steersman, loop, "waiting_for_decision")
    await stage.meet_it()
    assert _but_time(await answered(partial(stage.steersman.loops.state, loop))) == _but_time(before)
    await stage.steersman.loops.resume(loop)
    await stage.came_through(loop, workspace, 2)


async def between_iterations(stage: Stage) -> None:
    """Its pause ends while no worker is there."""
    workspace = project(stage.site)
    command = f"if test -e one; then {BOTH}; else touch one; fi"
    loop = await stage.start(process_loop(stage.site, command, workspace, pause_between_s=3600))
    before = await reaches(stage.steersman, loop, lambda now: now.wakes_at)

    async def skip() -> None:
        await stage.site.temporal("workflow", "signal", "--workflow-id", loop, "--name", "skip_wait")

    await stage.meet_it(skip)
    assert before.iteration == 1
    await stage.came_through(loop, workspace, 2)


async def looking_at_the_workspace(stage: Stage) -> None:
    """The program that prints the items is at work."""
    workspace, mark = project(stage.site), f"{stage.mark}-items"
    prints = f"test -e one && {UNTIL_GO.format('items')}; cat PLAN.md"
    done = {"items": {"kind": "command", "command": prints}}
    command = f"if test -e one; then {BOTH}; else touch one; fi"
    loop = await stage.start(process_loop(stage.site, command, workspace, mark, done=done))
    await until(lambda: any("items.go" in line for line in marked(mark).values()), 60)
    await stage.meet_it()
    stage.go("items")
    await stage.came_through(loop, workspace, 2)
    assert not marked(mark)


async def waiting_rate_limit(stage: Stage) -> None:
    workspace = project(stage.site)
    resets = int(time.time()) + 3600
    script = stage.model.script("limited", used_up(resets), tool("Bash", command=BOTH), say("done"))
    loop = await stage.start(claude_loop(stage.site, script, workspace))
    before = await reaches(stage.steersman, loop, "waiting_rate_limit")
    assert before.wakes_at is not None
    assert 0 < before.wakes_at.timestamp() - resets < 5
    await stage.meet_it()
    after = await answered(partial(stage.steersman.loops.state, loop))
    assert (after.status, after.wakes_at) == ("waiting_rate_limit", before.wakes_at)
    await stage.steersman.loops.skip_wait(loop)
    result = await ended(stage.steersman, loop)
    assert (result.status, result.iterations, len(script.requests)) == ("completed", 1, 3)


def _but_time(state: LoopState) -> LoopState:
    return state.model_copy(update={"totals": state.totals.model_copy(update={"active_s": 0.0})})


LOOPS = (
    running,
    in_a_tool,
    verifying,
    paused,
    waiting_for_decision,
    between_iterations,
    looking_at_the_workspace,
    waiting_rate_limit,
)


WITHOUT_CLAUDE = (verifying, waiting_for_decision, between_iterations, looking_at_the_workspace)
WAYS = {"killed": LOOPS, "deployed": WITHOUT_CLAUDE}


@pytest.mark.parametrize("how", ["killed", pytest.param("deployed", marks=pytest.mark.exhaustive)])
async def test_loops_survive(site: Site, model: ScriptedModel, mark: str, how: str) -> None:
    worker = site.worker(**PLAN_ACCOUNT)
    steersman = await site.steersman()
    await worker.ready()

    async def replace() -> None:
        if how == "killed":
            worker.kill()
        else:
            assert await worker.terminate() == 0

    stage = Stage(site, steersman, model, mark, asyncio.Barrier(len(WAYS[how])), replace)
    async with asyncio.TaskGroup() as group:
        for loop in WAYS[how]:
            group.create_task(loop(stage), name=str(loop))
    assert not marked(mark)
