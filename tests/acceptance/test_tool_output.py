"""What a tool of the real Codex puts out while it works, as clients and editors are told it through Temporal."""

import asyncio
import os
from pathlib import Path

import acp
import pytest

from tests.acceptance.editors import editor
from tests.acceptance.site import Site, following, gone, in_order
from tests.scripted_model import Script, ScriptedModel, say, tool
from tests.support.processes import until
from tests.support.programs import program
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.exhaustive

WORKING = "sleep 1; until [ -e {0} ]; do echo until {0}; sleep 0.2; done"


def script_of(model: ScriptedModel) -> Script:
    """A tool that works until there is a file `first`, and then until there is a file `second`."""
    command = f"{WORKING.format('first')}; {WORKING.format('second')}; echo over"
    return model.script("a", tool("exec_command", cmd=command, yield_time_ms=600_000), say("done"))


async def worker_of(site: Site, script: Script) -> WorkerProcess:
    environment = {**script.codex_env(site.root / "codex"), "HOME": str(site.root / "home")}
    environment["PATH"] = f"{Path(program('codex')).parent}{os.pathsep}{os.environ['PATH']}"
    worker = site.worker("--allow-env", "MOCK_KEY", **environment)
    await worker.ready()
    return worker


async def test_it_goes_on_with_another_worker(site: Site, model: ScriptedModel, mark: str) -> None:
    script = script_of(model)
    worker = await worker_of(site, script)
    workspace, steersman = site.workspace(), await site.steersman()
    env = {"MOCK_KEY": {"from_env": "MOCK_KEY"}, "RUN_MARK": mark}
    request = {"agent": "codex", "prompt": "go", "workspace": {"path": str(workspace)}, "env": env}
    run = await steersman.start({**request, "permissions": {"mode": "full"}})
    async with following(steersman, run) as events:

        def told(text: str) -> list[str]:
            return [each.text for each in events.events if each.type == "tool_output" and text in each.text]

        await until(lambda: told("until first"))
        worker.kill()
        (workspace / "first").touch()
        await worker_of(site, script)
        await until(lambda: told("until second"), 60)
        last = (await steersman.state(run)).last_event
        assert last is None or last.type != "tool_output", "the state says what the agent does, not each line of it"
        (workspace / "second").touch()
        all_events = await events.end()
    assert in_order(all_events)
    (result,) = (each for each in all_events if each.type == "tool_result")
    assert result.text.endswith("over\n")
    assert "".join(told("")) in result.text, "nothing of it is told twice, and nothing is missing in between"
    await gone(mark)


async def test_an_editor_is_told_it(site: Site, model: ScriptedModel, mark: str) -> None:
    await worker_of(site, script_of(model))
    env = {"MOCK_KEY": "from_env:MOCK_KEY", "RUN_MARK": mark}
    workspace = site.workspace()
    async with editor(site, "codex", "--mode", "full", env=env) as opened:
        session = (await opened.agent.new_session(cwd=str(workspace))).session_id
        prompt = asyncio.create_task(opened.agent.prompt(session, [acp.text_block("go")]))

        def contents() -> list[tuple[str, str]]:
            updates = [each for each in opened.screen.updates if each.session_update == "tool_call_update"]
            return [(each.status, each.content[0].content.text) for each in updates if each.content]

        await until(lambda: any("until first\nuntil first" in text for _, text in contents()), 40)
        for name in ("first", "second"):
            (workspace / name).touch()
        assert (await prompt).stop_reason == "end_turn"
        states, texts = zip(*contents(), strict=True)
    assert set(states[:-1]) == {"in_progress"}
    assert (states[-1], texts[-1].endswith("over\n")) == ("completed", True)
    await gone(mark)
