"""Runs go on, whole and once, whatever happens to the worker or to Temporal in the middle of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError

from steersman.client import Steersman
from steersman.contracts.run import Handle, RunResult
from tests.acceptance import calamities
from tests.acceptance.calamities import Calamity
from tests.acceptance.programs import python
from tests.acceptance.site import Following, Site, answered, following, in_order, settled
from tests.scripted_model import Request, ScriptedModel, hold, say, tool
from tests.support.processes import lives, until

WAIT_FOR_GO = """
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("went on")
"""
COUNTING = """
import pathlib, time
number = 0
while not pathlib.Path("go").exists():
    number += 1
    print("line", number)
    time.sleep(0.01)
print("last", number)
"""


@dataclass
class Stage:
    """What each run is given."""

    site: Site
    steersman: Steersman
    model: ScriptedModel
    calamity: Calamity

    def workspace(self) -> Path:
        """With a program that a tool can run until the file `go` is there."""
        path = self.site.workspace()
        (path / "wait.py").write_text(WAIT_FOR_GO)
        return path

    async def start(self, request: dict[str, Any]) -> "Run":
        return Run(self, await self.steersman.start(request))


@dataclass
class Run:
    """One run, followed from its start to its end."""

    stage: Stage
    id: str

    async def handle(self) -> Handle:
        async def known() -> Handle | None:
            return (await answered(partial(self.stage.steersman.state, self.id))).handle

        return await until(known)

    @asynccontextmanager
    async def calamity(self) -> AsyncIterator[None]:
        """It happens, and the same process works on through it and afterwards."""
        before = await self.handle()
        async with self.stage.calamity():
            assert lives(before.pid)
            yield
        after = await self.handle()
        assert (after.pid, after.start_time, after.boot_id) == (before.pid, before.start_time, before.boot_id)
        assert lives(before.pid)

    async def meets_calamity(self) -> None:
        async with self.calamity():
            pass

    async def went_on(self, attached: Following) -> RunResult:
        """Its result; its one process and its events are whole, for who followed and for who comes later."""
        result = await asyncio.wait_for(self.stage.steersman.result(self.id), 60)
        events = await attached.end()
        assert in_order(events)
        assert events[-1].type == "done"
        assert events == await self.stage.steersman.events(self.id)
        assert (result.status, result.attempts) == ("succeeded", 1)
        return result


def times_said(request: Request, text: str) -> int:
    """How often the conversation holds a text."""
    return sum(each.count(text) for each in request.texts)


async def streaming(stage: Stage) -> None:
    """Claude is in the middle of an answer."""
    script = stage.model.script("streaming", hold("first half, ", after="second half"))
    run = await stage.start(stage.site.claude(script, prompt="say it in two halves"))
    async with following(stage.steersman, run.id) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and "first half" in e.text)
        await run.meets_calamity()
        await script.release()
        result = await run.went_on(attached)
    assert result.text == "first half, second half"
    assert len(script.requests) == 1
    assert times_said(script.requests[0], "say it in two halves") == 1


async def in_a_tool(stage: Stage) -> None:
    """Claude waits for its tool."""
    workspace = stage.workspace()
    script = stage.model.script("tool", tool("Bash", command="python3 wait.py"), say("it went on"))
    run = await stage.start(stage.site.claude(script, workspace=workspace, permissions={"mode": "full"}))
    async with following(stage.steersman, run.id) as attached:
        await attached.until(lambda e: e.type == "tool_use")
        await run.meets_calamity()
        (workspace / "go").touch()
        result = await run.went_on(attached)
    assert [e.type for e in attached.events].count("tool_result") == 1
    assert result.text == "it went on"
    assert script.requests[-1].saw("went on")


async def asking(stage: Stage) -> None:
    """Claude waits for a person's word."""
    script = stage.model.script("asking", tool("Bash", command="touch allowed"), say("thank you"))
    run = await stage.start(stage.site.claude(script, permissions={"mode": "ask"}))

    async def asked() -> tuple[str, ...]:
        return tuple(each.id for each in (await answered(partial(stage.steersman.state, run.id))).approvals)

    async with following(stage.steersman, run.id) as attached:
        await attached.until(lambda e: e.type == "permission")
        before = await until(asked)
        await run.meets_calamity()
        assert await until(asked) == before
        await stage.steersman.decide(run.id, before[0], "allow")
        result = await run.went_on(attached)
    assert [e.state for e in attached.events if e.type == "permission"] == ["asked", "allowed"]
    assert result.text == "thank you"


async def steered(stage: Stage) -> None:
    """A steer has been delivered and Claude, in a tool, has not read it."""
    workspace = stage.workspace()
    script = stage.model.script("steered", tool("Bash", command="python3 wait.py"), say("I have read it"))
    run = await stage.start(stage.site.claude(script, workspace=workspace, permissions={"mode": "full"}))
    async with following(stage.steersman, run.id) as attached:
        await attached.until(lambda e: e.type == "tool_use")
        receipt = await stage.steersman.steer(run.id, "look left, then right")
        await settled(stage.steersman, run.id, receipt.id, "delivered")
        await run.meets_calamity()
        (workspace / "go").touch()
        result = await run.went_on(attached)
    assert times_said(script.requests[-1], "look left, then right") == 1
    assert result.messages_delivered == 1
    (message,) = (await stage.steersman.state(run.id)).messages
    assert (message.id, message.state) == (receipt.id, "acknowledged")


async def steered_meanwhile(stage: Stage) -> None:
    """Five steers are said in the middle of it; they wait for whoever can deliver them."""
    workspace = stage.workspace()
    script = stage.model.script("meanwhile", tool("Bash", command="python3 wait.py"), say("all five"))
    run = await stage.start(stage.site.claude(script, workspace=workspace, permissions={"mode": "full"}))
    workflow = stage.steersman.temporal.get_workflow_handle(run.id)
    texts = [f"word number {number}" for number in range(5)]

    async def say_them() -> None:
        for number, text in enumerate(texts):
            await until(partial(signalled, {"id": f"said-{number}", "text": text}), 60)

    async def signalled(message: dict[str, str]) -> bool:
        try:
            await workflow.signal("steer", message)
        except RPCError:
            return False
        return True

    async def read() -> bool:
        messages = (await answered(partial(stage.steersman.state, run.id))).messages
        return len(messages) == 5 and all(each.state in ("delivered", "acknowledged") for each in messages)

    async with following(stage.steersman, run.id) as attached:
        await attached.until(lambda e: e.type == "tool_use")
        async with run.calamity():
            saying = asyncio.create_task(say_them())
            if stage.calamity.server_there:
                await saying
        await saying
        await until(read, 40)
        (workspace / "go").touch()
        await run.went_on(attached)
    conversation = "\n".join(script.requests[-1].texts)
    assert [conversation.count(text) for text in texts] == [1] * 5
    assert sorted(texts, key=conversation.index) == texts


async def parked(stage: Stage) -> None:
    """The turn was interrupted without a text, and the session waits for one."""
    script = stage.model.script("parked", hold("on the wrong way"), say("on the right way"))
    run = await stage.start(stage.site.claude(script))

    async def waits() -> bool:
        state = await answered(lambda: stage.steersman.state(run.id))
        return (state.phase, state.awaits_message) == ("waiting", True)

    async with following(stage.steersman, run.id) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message")
        await stage.steersman.interrupt(run.id)
        await until(waits, 40)
        await run.meets_calamity()
        await until(waits, 40)
        await stage.steersman.steer(run.id, "the other way")
        result = await run.went_on(attached)
    assert result.text == "on the right way"
    assert times_said(script.requests[-1], "the other way") == 1
    assert not (await stage.steersman.state(run.id)).awaits_message


async def talking(stage: Stage) -> None:
    """A program says something a hundred times a second, all through it."""
    workspace = stage.site.workspace()
    run = await stage.start(stage.site.process(*python(COUNTING), workspace=workspace))
    async with following(stage.steersman, run.id) as attached:
        await attached.until(lambda e: e.type == "message")
        await run.meets_calamity()
        (workspace / "go").touch()
        await run.went_on(attached)
    lines = [e.text for e in attached.events if e.type == "message"]
    assert lines == [*(f"line {number}" for number in range(1, len(lines))), f"last {len(lines) - 1}"]


RUNS = (streaming, in_a_tool, asking, steered, steered_meanwhile, parked, talking)


@pytest.mark.parametrize(
    "kind",
    [
        calamities.WorkerKilled,
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in (calamities.WorkerDeployed, calamities.WorkerFrozen, calamities.ServerKilled)
        ),
    ],
)
async def test_runs_survive(site_with_server: Site, model: ScriptedModel, kind: type[Calamity]) -> None:
    site = site_with_server
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    stage = Stage(site, steersman, model, kind(site, steersman, len(RUNS)))
    async with asyncio.TaskGroup() as group:
        for run in RUNS:
            group.create_task(run(stage), name=run.__name__)
