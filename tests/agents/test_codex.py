"""The real Codex, driven by its app-server: answers, messages, permissions, failures, and workers that are replaced."""

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from activities.agents.codex import api_key
from activities.agents.codex.agent import CodexAgent
from activities.agents.codex.conversation import CodexConversation
from activities.agents.codex.transcript import CodexTranscript
from activities.ports.agent import ApprovalRequester, ExitFact
from activities.ports.runtime import Channel
from steersman.contracts.activities import ApprovalAsked, RunOutcome
from steersman.contracts.errors import AgentNotInstalled, ErrorType, InvalidRequest
from steersman.contracts.events import MAX_CALL_OUTPUT, MAX_TEXT
from steersman.contracts.request import parse_request
from tests.agents import mcp_server
from tests.agents.journals import Line
from tests.agents.kits import CodexKit
from tests.agents.stage import Stage, deliver, end, message, told, word
from tests.scripted_model import (
    Hold,
    Request,
    Say,
    Step,
    Tool,
    Usage,
    answer,
    cut,
    fail,
    hold,
    say,
    structured,
    think,
    tool,
)
from tests.support.processes import marked, until
from tests.support.programs import program

pytestmark = [pytest.mark.integration, pytest.mark.linux]

PATCH = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\nEOF"
ADDED = {"kind": {"type": "add"}, "diff": "hello\n"}
NAP = "python3 -c 'import time; time.sleep(600)'"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def shell(command: str, **more: Any) -> Any:
    return tool("exec_command", cmd=command, **more)


def napping() -> Any:
    """At work in a tool until something ends it."""
    return answer(Say("at work"), Tool("exec_command", {"cmd": f"touch napping; {NAP}", "yield_time_ms": 600_000}))


async def ended(task: "asyncio.Task[RunOutcome]") -> RunOutcome:
    async with asyncio.timeout(30):
        return await task


async def naps(stage: Stage) -> None:
    await until(lambda: Path(stage.request.workspace.path, "napping").exists())
    await stage.wait_for("tool_use")


async def said(stage: Stage, count: int) -> None:
    await until(lambda: len(stage.events) >= count)


async def no_tool_lives(stage: Stage) -> None:
    await until(lambda: not [line for line in marked(stage.mark).values() if "time.sleep" in line])


class TestAnswers:
    async def test_text_thoughts_deltas_and_tokens(self, codex: CodexKit) -> None:
        usage = Usage(input=11, output=7, cache_read=5)
        async with codex.run(answer(think("hm"), say("one two", chunks=2), usage=usage), model="mock-other") as stage:
            outcome = await stage.play()
            assert (outcome.status, outcome.text, outcome.turns) == ("succeeded", "one two", 1)
            (init,) = stage.said("init")
            assert (init.session_id, init.model) == (outcome.session_id, "mock-other")
            deltas = stage.said("message", delta=True)
            assert [each.text for each in deltas if each.kind == "text"] == ["one ", "two"]
            whole = stage.said("message", delta=False)
            assert [(each.kind, each.text) for each in whole] == [("thinking", "hm"), ("text", "one two")]
        used = outcome.usage
        assert (used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens) == (11, 7, 5, 0)
        assert codex.script.requests[0].model == "mock-other"

    async def test_commands_and_changed_files(self, codex: CodexKit) -> None:
        async with codex.run(shell("echo hi; exit 3"), shell(PATCH), say("done")) as stage:
            outcome = await stage.play()
            assert (stage.workspace / "new.txt").read_text() == "hello\n"
            assert [each.name for each in stage.said("tool_use")] == ["exec_command", "apply_patch"]
            first, second = stage.said("tool_result")
            assert (first.text, first.is_error, second.is_error) == ("hi\n", True, False)
            (change,) = stage.said("file_change")
            assert (change.path, change.change, change.tool_id) == (
                str(stage.workspace / "new.txt"),
                "created",
                second.id,
            )
        assert outcome.usage.input_tokens == 300
        assert outcome.turns == 3

    async def test_a_command_that_outlasts_its_turn_was_not_interrupted(self, codex: CodexKit) -> None:
        async with codex.run(shell(NAP, yield_time_ms=300), say("done")) as stage:
            assert (await stage.play()).text == "done"
            (result,) = stage.said("tool_result")
            assert not stage.alive()
        assert (result.text, result.is_error) == ("still at work when the turn ended", False)

    async def test_structured_output(self, codex: CodexKit) -> None:
        async with codex.run(structured({"answer": 42}), output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert outcome.structured == {"answer": 42}
        assert codex.script.requests[0].body["text"]["format"]["schema"] == SCHEMA

    async def test_instructions_of_the_request(self, codex: CodexKit) -> None:
        async with codex.run(say("yes"), system_prompt="speak low") as stage:
            await stage.play()
        assert "speak low" in json.dumps(codex.script.requests[0].body["input"])

    async def test_no_command_sees_a_key(self, codex: CodexKit) -> None:
        async with codex.run(shell("echo key=$MOCK_KEY token=$MY_TOKEN"), say("done")) as stage:
            stage.environment["MY_TOKEN"] = "secret"
            await stage.play()
            (result,) = stage.said("tool_result")
        assert result.text == "key= token=\n"


@pytest.mark.exhaustive
async def test_a_flood_is_told_in_part_and_alike_by_workers_that_follow_each_other(codex: CodexKit) -> None:
    flood = "sleep 1; seq 1000000; touch half; until [ -e go ]; do sleep 0.1; done; seq 1000000; echo the end"
    async with codex.run(shell(flood, yield_time_ms=600_000), say("done")) as stage:
        stage.start()
        await until(lambda: len(stage.said("tool_output")) > 5, 30)
        await stage.detach()
        stage.start()
        await until((stage.workspace / "half").exists, 60)
        await stage.detach()
        (stage.workspace / "go").touch()
        outcome = await stage.play()
        assert outcome.status == "succeeded"
        told, (result,) = stage.said("tool_output"), stage.said("tool_result")
        written = stage.directory.events.read_bytes()
        stage.directory.events.unlink()
        await stage.play()
        assert stage.directory.events.read_bytes() == written
    assert sum(len(event.text) for event in told) < MAX_CALL_OUTPUT
    assert any(event.omitted for event in told)
    assert (len(result.text) <= MAX_TEXT, result.text[:4], result.text[-8:]) == (True, "1\n2\n", "the end\n")
    assert len(written) < 3 * MAX_TEXT


class TestSteer:
    async def test_in_a_text(self, codex: CodexKit) -> None:
        async with codex.run(hold("a"), say("as you wish")) as stage:
            session, task = stage.start()
            await codex.script.wait_held()
            settled = await told(session, message("steer", "rather that"))
            outcome = await ended(task)
            assert (settled.state, settled.how) == ("acknowledged", "mid_turn")
            assert outcome.text == "as you wish"
            assert [each.text for each in stage.said("message", role="user")] == ["rather that"]
        assert codex.script.requests[1].saw("rather that")

    async def test_in_a_tool_it_is_read_when_the_tool_returns(self, codex: CodexKit) -> None:
        wait = "touch napping; while ! [ -e go ]; do sleep 0.02; done"
        async with codex.run(shell(wait, yield_time_ms=600_000), say("done")) as stage:
            session, task = stage.start()
            await naps(stage)
            assert (await told(session, message("steer", "also this"))).state == "delivered"
            (stage.workspace / "go").touch()
            outcome = await ended(task)
        assert outcome.text == "done"
        assert [(each.state, each.how) for each in outcome.messages] == [("acknowledged", "mid_turn")]
        assert codex.script.requests[1].saw("also this")


class TestInterrupt:
    async def test_in_a_text_the_session_goes_on(self, codex: CodexKit) -> None:
        async with codex.run(hold("a"), say("on")) as stage:
            session, task = stage.start()
            await codex.script.wait_held()
            settled = await told(session, message("interrupt"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            assert await codex.script.wait_outcome(codex.script.requests[0]) == "hung up"
            again = await told(session, message("interrupt", name="m-2"))
            assert (again.state, again.how) == ("acknowledged", "nothing was running")
            assert not task.done()
            await told(session, message("steer", "go on", "m-3"))
            outcome = await ended(task)
        assert (outcome.text, outcome.attempts) == ("on", 1)

    async def test_in_a_tool_nothing_of_it_is_left(self, codex: CodexKit) -> None:
        async with codex.run(napping(), say("on")) as stage:
            session, task = stage.start()
            await naps(stage)
            assert (await told(session, message("interrupt"))).how == "interrupted"
            await no_tool_lives(stage)
            await stage.wait_for("tool_result", text="interrupted", is_error=True)
            await told(session, message("steer", "go on", "m-2"))
            assert (await ended(task)).text == "on"

    async def test_with_a_text_that_is_read_at_once(self, codex: CodexKit) -> None:
        async with codex.run(napping(), say("instead")) as stage:
            session, task = stage.start()
            await naps(stage)
            settled = await told(session, message("interrupt", "do that"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            outcome = await ended(task)
            await no_tool_lives(stage)
        assert outcome.text == "instead"
        assert codex.script.requests[1].saw("do that")

    async def test_before_the_first_event(self, codex: CodexKit) -> None:
        def step(request: Request) -> Step:
            return say("on") if request.saw("rather that") else hold("a")

        async with codex.run(step) as stage:
            session, task = stage.start()
            settled = await told(session, message("interrupt", "rather that"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            assert (await ended(task)).text == "on"

    async def test_two_at_once(self, codex: CodexKit) -> None:
        async with codex.run(hold("a"), say("on")) as stage:
            session, task = stage.start()
            await codex.script.wait_held()
            both = await asyncio.gather(
                told(session, message("interrupt")), told(session, message("interrupt", name="m-2"))
            )
            assert {each.state for each in both} == {"acknowledged"}
            await told(session, message("steer", "go on", "m-3"))
            assert (await ended(task)).text == "on"

    @pytest.mark.parametrize("where", ["text", "tool"])
    async def test_one_that_ends_the_run(self, codex: CodexKit, where: str) -> None:
        async with codex.run(hold("a") if where == "text" else napping()) as stage:
            session, task = stage.start()
            await (codex.script.wait_held() if where == "text" else naps(stage))
            settled = await told(session, end())
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            outcome = await ended(task)
            assert (outcome.status, outcome.stop_reason, outcome.error) == ("succeeded", "interrupted", None)
            assert not stage.alive()

    async def test_one_that_ends_a_run_that_waits_for_a_person(self, codex: CodexKit) -> None:
        async with codex.run(hold("a")) as stage:
            session, task = stage.start()
            await codex.script.wait_held()
            await told(session, message("interrupt"))
            assert (await told(session, end())).how == "nothing was running"
            outcome = await ended(task)
            assert (outcome.status, outcome.stop_reason) == ("succeeded", "interrupted")


class TestSessions:
    async def test_a_killed_process_is_resumed_and_usage_adds_up(self, codex: CodexKit) -> None:
        async with codex.run(shell("echo one"), hold("b"), say("the end")) as stage:
            _, task = stage.start()
            await codex.script.wait_held()
            await stage.kill()
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "the end", 2)
        assert outcome.usage.input_tokens == 200
        assert codex.script.requests[2].saw("do it")
        assert codex.script.requests[2].saw("Your process ended unexpectedly")

    async def test_a_process_that_died_before_its_thread_was_saved_begins_anew(self, codex: CodexKit) -> None:
        killed: list[bool] = []
        async with codex.run(lambda _request: say("fine") if killed else hold("x")) as stage:
            _, task = stage.start()
            await stage.wait_for("init")
            await stage.kill()
            killed.append(True)
            outcome = await ended(task)
        assert (outcome.status, outcome.text) == ("succeeded", "fine")
        assert outcome.attempts in (2, 3)

    async def test_a_session_is_gone_on_with_and_forked(self, codex: CodexKit) -> None:
        async with codex.run(say("first")) as stage:
            session = (await stage.play()).session_id
            assert session
            assert CodexAgent(stage.environment, "codex").keeps(session, stage.workspace)
            assert not CodexAgent(stage.environment, "codex").keeps(session, stage.workspace.parent)
        async with codex.run(say("second"), session=session) as stage:
            outcome = await stage.play()
        assert (outcome.text, outcome.session_id, outcome.usage.input_tokens) == ("second", session, 100)
        assert codex.script.requests[0].saw("first")
        async with codex.run(say("third"), session=session, fork_session=True) as stage:
            outcome = await stage.play()
        assert (outcome.text, outcome.usage.input_tokens) == ("third", 100)
        assert outcome.session_id not in (None, session)
        assert codex.script.requests[0].saw("second")

    async def test_a_session_that_is_not_there(self, codex: CodexKit) -> None:
        async with codex.run(session="01a20fad-fe45-7da3-aa51-1b2bb9c0dc99") as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.INVALID_REQUEST, 1)
        assert "no rollout found" in (outcome.message or "")


class TestSubagents:
    async def test_their_tokens_and_turns_count(self, codex: CodexKit) -> None:
        dear = answer(say("the secret word"), usage=Usage(input=1000, output=50))
        async with codex.run(delegated(dear)) as stage:
            outcome = await stage.play()
            session, thread = outcome.session_id, agent_id(codex.script.requests[-1])
        assert (outcome.text, outcome.turns) == ("it has looked", 4)
        assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (1300, 110)

        def again(request: Request) -> Step:
            calls = (
                Tool("resume_agent", {"id": thread}, "on-0"),
                Tool("send_input", {"target": thread, "message": "look again"}, "on-1"),
                Tool("wait_agent", {"targets": [thread], "timeout_ms": 20_000}, "on-2"),
            )
            done = sum("on-" in str(item.get("call_id")) for item in request.body["input"]) // 2
            if not request.saw("once more"):
                return dear
            return answer(calls[done]) if done < len(calls) else say("it has looked")

        async with codex.run(again, session=session, prompt="once more") as stage:
            outcome = await stage.play()
        assert (outcome.usage.input_tokens, outcome.turns) == (1400, 5)

    async def test_what_they_do_is_told_and_what_they_ask_is_shown(self, codex: CodexKit) -> None:
        steps = delegated(shell(PATCH), say("the secret word"))
        async with codex.run(steps, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            asked = (await until(lambda: stage.listener.asks, 20))[-1].approval
            assert asked.tool == "apply_patch"
            assert asked.input == {"changes": [{"path": str(stage.workspace / "new.txt"), **ADDED}]}
            await deliver(session, word(asked.id, "allow", "apply_patch"))
            assert (await ended(task)).text == "it has looked"
            begun, waiting, patch = stage.said("tool_use")
            assert (begun.name, begun.input, begun.parent_tool_id) == ("spawn_agent", {"prompt": "look around"}, None)
            assert (waiting.name, patch.name, patch.parent_tool_id) == ("wait_agent", "apply_patch", begun.id)
            assert stage.said("tool_result", id=waiting.id)[0].text == "the secret word"
            assert [each.tool_id for each in stage.said("file_change")] == [patch.id]
            texts = [(each.text, each.parent_tool_id) for each in stage.said("message", delta=False)]
            assert texts == [("the secret word", begun.id), ("it has looked", None)]

    async def test_a_run_ends_once_they_have_done_their_work(self, codex: CodexKit) -> None:
        work = "touch napping; until [ -e go ]; do sleep 0.02; done; touch made"
        async with codex.run(left_alone(shell(work, yield_time_ms=600_000), say("made"))) as stage:
            _, task = stage.start()
            await stage.wait_for("message", text="I have somebody do it", delta=False)
            await until((stage.workspace / "napping").exists)
            assert not task.done()
            (stage.workspace / "go").touch()
            assert (await ended(task)).text == "I have somebody do it"
            assert (stage.workspace / "made").exists()

    @pytest.mark.parametrize("first", ["call", "turn"])
    def test_one_whose_first_turn_is_not_told_yet_is_waited_for(self, first: str) -> None:
        """Codex tells in any order that the call has ended and that the turn has begun."""
        mine, other = "01a20fad-fe45-7da3-aa51-1b2bb9c0dc99", "01a20fad-fe45-7da3-aa51-1b2bb9c0dc98"
        spawned = {"type": "collabAgentToolCall", "id": "c", "tool": "spawnAgent", "status": "completed"}
        frames: dict[str, dict[str, Any]] = {
            "session": {"id": "session", "result": {"thread": {"id": mine}}},
            "begun": turn_frame("turn/started", mine, "t-1"),
            "call": item_frame(mine, {**spawned, "receiverThreadIds": [other]}),
            "turn": turn_frame("turn/started", other, "t-2"),
            "answered": turn_frame("turn/completed", mine, "t-1"),
            "done": turn_frame("turn/completed", other, "t-2"),
        }
        found = CodexTranscript(None)
        order = ("call", "answered", "turn", "done") if first == "call" else ("turn", "call", "answered", "done")
        for number, name in enumerate(("session", "begun", *order)):
            assert not found.finished
            found.feed(Line(number, 1, "out", json.dumps(frames[name]).encode()))
        assert found.finished

    async def test_an_interrupt_ends_them_where_they_alone_are_at_work(self, codex: CodexKit) -> None:
        async with codex.run(left_alone(napping())) as stage:
            session, task = stage.start()
            await stage.wait_for("message", text="I have somebody do it", delta=False)
            await until((stage.workspace / "napping").exists)
            settled = await told(session, message("interrupt"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            await no_tool_lives(stage)
            assert not task.done()
            settled = await told(session, message("interrupt", "something else", "m-2"))
            assert settled.state == "acknowledged"
            assert (await ended(task)).text == "as you wish"
            assert len(stage.said("progress", text="the turn was interrupted")) == 1

    async def test_an_interrupt_ends_them_and_their_commands(self, codex: CodexKit) -> None:
        async with codex.run(delegated(napping())) as stage:
            session, task = stage.start()
            await until((stage.workspace / "napping").exists)
            settled = await told(session, message("interrupt"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            await no_tool_lives(stage)
            await told(session, message("steer", "something else", "m-2"))
            assert (await ended(task)).text == "as you wish"

    async def test_an_interrupt_that_a_dead_worker_wrote_ends_them(self, codex: CodexKit) -> None:
        async with codex.run(delegated(napping())) as stage:
            session, _ = stage.start()
            await until((stage.workspace / "napping").exists)
            saying = asyncio.create_task(told(session, message("interrupt")))
            await until(lambda: b"turn/interrupt" in _journal(stage))
            await stage.detach()
            saying.cancel()
            session, task = stage.start()
            assert (await told(session, message("interrupt"))).state == "acknowledged"
            await no_tool_lives(stage)
            await told(session, message("steer", "something else", "m-2"))
            assert (await ended(task)).text == "as you wish"

    async def test_an_interrupt_that_ends_the_run_waits_for_none(self, codex: CodexKit) -> None:
        async with codex.run(delegated(napping())) as stage:
            session, task = stage.start()
            await until((stage.workspace / "napping").exists)
            assert (await told(session, end())).state == "acknowledged"
            outcome = await ended(task)
            assert (outcome.status, outcome.stop_reason) == ("succeeded", "interrupted")
            assert not stage.alive()

    async def test_an_interrupt_withdraws_what_they_ask(self, codex: CodexKit) -> None:
        async with codex.run(delegated(shell("touch made")), permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            await until(lambda: stage.listener.asks, 20)
            await told(session, message("interrupt", "something else"))
            assert (await ended(task)).text == "as you wish"
            assert stage.listener.asks[-1].withdrawn
            assert [each.state for each in stage.said("permission")] == ["asked", "withdrawn"]
            assert not (stage.workspace / "made").exists()


def turn_frame(method: str, thread: str, turn: str) -> dict[str, Any]:
    """What Codex tells of a turn."""
    return {"method": method, "params": {"threadId": thread, "turn": {"id": turn, "status": "completed"}}}


def item_frame(thread: str, item: dict[str, Any]) -> dict[str, Any]:
    """What Codex tells of an item that is complete."""
    return {"method": "item/completed", "params": {"threadId": thread, "item": item}}


def delegated(*answers: Any) -> Any:
    """A turn that begins a sub-agent and waits for it; the last of the sub-agent's answers has the secret word."""
    left = list(answers)

    def answered(request: Request) -> Any:
        if not request.saw("do it"):
            return left.pop(0)
        if request.saw("something else"):
            return say("as you wish")
        if not any('"agent_id"' in text for text in request.texts):
            return tool("spawn_agent", message="look around")
        if not request.saw("the secret word"):
            return tool("wait_agent", targets=[agent_id(request)], timeout_ms=60_000)
        return say("it has looked")

    return answered


def left_alone(*answers: Any) -> Any:
    """A turn that begins a sub-agent and does not wait for it, which gives these answers."""
    played = delegated(*answers)

    def answered(request: Request) -> Any:
        step = played(request)
        waits = any(isinstance(each, Tool) and each.name == "wait_agent" for each in getattr(step, "parts", ()))
        return say("I have somebody do it") if waits else step

    return answered


def agent_id(request: Request) -> str:
    """The thread of the sub-agent that was begun."""
    told = next(text for text in request.texts if '"agent_id"' in text)
    return str(json.loads(told)["agent_id"])


class TestHooks:
    @pytest.mark.parametrize("what", ["prompt", "message"])
    async def test_what_one_blocks_was_not_read(self, codex: CodexKit, what: str) -> None:
        given = "not this" if what == "prompt" else "do it"
        async with codex.run(hold("a"), prompt=given) as stage:
            await block_prompts(codex, stage, "not this")
            session, task = stage.start()
            if what == "message":
                await codex.script.wait_held()
                settled = await told(session, message("steer", "not this either"))
                assert (settled.state, "not here" in (settled.how or "")) == ("rejected", True)
            outcome = await ended(task)
            assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_FAILED, 1)
            assert outcome.message == "a hook (userPromptSubmit) blocked: not here"
            assert len(stage.said("progress", text=outcome.message)) == 1
        assert len(codex.script.requests) == (0 if what == "prompt" else 1)


async def block_prompts(codex: CodexKit, stage: Stage, text: str) -> None:
    """Give Codex's user a hook that blocks prompts with this text, and the trust that Codex asks for."""
    home = codex.home / ".codex"
    answer = json.dumps({"decision": "block", "reason": "not here"})
    command = f"if grep -q '{text}'; then echo '{answer}'; fi"
    hooks = {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": command}]}]}
    (home / "hooks.json").write_text(json.dumps({"hooks": hooks}))
    capabilities = {"experimentalApi": True}
    client = {"clientInfo": {"name": "test", "version": "1"}, "capabilities": capabilities}
    asked = [{"id": 1, "method": "initialize", "params": client}, {"method": "initialized"}]
    asked.append({"id": 2, "method": "hooks/list", "params": {"cwds": [str(stage.workspace)]}})
    lister = await asyncio.create_subprocess_exec(
        program("codex"), "app-server", stdin=-1, stdout=-1, stderr=-3, env=stage.environment, limit=1 << 20
    )
    assert lister.stdin
    assert lister.stdout
    lister.stdin.writelines(json.dumps(each).encode() + b"\n" for each in asked)
    while (frame := json.loads(await lister.stdout.readline())).get("id") != 2:
        pass
    lister.stdin.close()
    await lister.wait()
    ((hook,),) = [each["hooks"] for each in frame["result"]["data"]]
    with (home / "config.toml").open("a") as file:
        file.write(f'\n[hooks.state."{hook["key"]}"]\ntrusted_hash = "{hook["currentHash"]}"\n')


class TestGoals:
    async def test_a_run_goes_on_until_its_goal_is_reached_or_a_person_interrupts(self, codex: CodexKit) -> None:
        """Codex begins turns by itself, some 20 ms after each, as long as the thread has a goal."""
        steps = (tool("create_goal", objective="the docs"), say("one"), hold("two"), say("three"))
        async with codex.run(*steps, tool("update_goal", status="complete"), say("all of it")) as stage:
            session, task = stage.start()
            await codex.script.wait_held()
            assert (await told(session, message("interrupt"))).how == "interrupted"
            assert not task.done()
            assert (await told(session, message("steer", "go on", "m-2"))).state == "acknowledged"
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.turns) == ("succeeded", "all of it", 5)


class TestCompaction:
    async def test_it_counts_as_one_call_and_what_an_earlier_run_has_used_does_not(self, codex: CodexKit) -> None:
        """Codex tells the thread's total before each compaction, and again after it."""
        async with codex.run(answer(say("first"), usage=Usage(input=5000))) as stage:
            session = (await stage.play()).session_id
        async with codex.run(say("second"), session=session) as stage:
            with (codex.home / ".codex" / "config.toml").open("r+") as file:
                text = file.read()
                file.seek(0)
                file.write(f"model_auto_compact_token_limit = 4000\nmodel_context_window = 100000\n{text}")
            outcome = await stage.play()
            assert len(stage.said("progress", text="the conversation was compacted")) == 1
        assert len(codex.script.side_requests) == 1
        assert (outcome.text, outcome.turns, outcome.usage.input_tokens) == ("second", 2, 200)


class TestPermissions:
    async def asked(self, stage: Stage) -> ApprovalAsked:
        return (await until(lambda: stage.listener.asks, 20))[-1]

    @pytest.mark.parametrize("decision", ["allow", "deny"])
    async def test_a_person_is_asked(self, codex: CodexKit, decision: str) -> None:
        async with codex.run(shell("touch made"), say("done"), permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            asked = await self.asked(stage)
            assert asked.approval.tool == "exec_command"
            assert "touch made" in str(asked.approval.input["command"])
            await deliver(session, word(asked.approval.id, decision, "exec_command"))
            outcome = await ended(task)
            assert outcome.text == "done"
            assert (stage.workspace / "made").exists() == (decision == "allow")
            states = [each.state for each in stage.said("permission")]
            assert states == ["asked", "allowed" if decision == "allow" else "denied"]

    async def test_the_words_of_a_denial_reach_the_model(self, codex: CodexKit) -> None:
        async with codex.run(shell("touch made"), say("as you wish"), permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            asked = await self.asked(stage)
            await deliver(session, word(asked.approval.id, "deny", "exec_command", message="use the other file"))
            assert (await ended(task)).text == "as you wish"
            assert not (stage.workspace / "made").exists()
            assert len(stage.said("permission", state="denied")) == 1
        assert codex.script.requests[1].saw("use the other file")
        assert len(codex.script.requests) == 2

    async def test_a_remembered_word_counts_for_the_tool(self, codex: CodexKit) -> None:
        steps = shell("touch one"), shell("touch two"), say("done")
        async with codex.run(*steps, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            asked = await self.asked(stage)
            await deliver(session, word(asked.approval.id, "allow", "exec_command", remember=True))
            assert (await ended(task)).text == "done"
            assert (stage.workspace / "two").exists()
            assert len(stage.listener.asks) == 1

    async def test_another_worker_asks_again_and_a_person_answers_it(self, codex: CodexKit) -> None:
        async with codex.run(shell("touch made"), say("done"), permissions={"mode": "ask"}) as stage:
            stage.start()
            first = await self.asked(stage)
            await stage.detach()
            session, task = stage.start()
            await until(lambda: len(stage.listener.asks) == 2)
            assert stage.listener.asks[1].approval.id == first.approval.id
            await deliver(session, word(first.approval.id, "allow", "exec_command"))
            assert (await ended(task)).text == "done"
            assert (stage.workspace / "made").exists()
            assert len(stage.said("permission", state="asked")) == 1

    async def test_an_interrupt_withdraws_it(self, codex: CodexKit) -> None:
        async with codex.run(shell("touch made"), say("on"), permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            await self.asked(stage)
            await told(session, message("interrupt", "never mind"))
            assert (await ended(task)).text == "on"
            assert stage.listener.asks[-1].withdrawn
            assert not (stage.workspace / "made").exists()

    @pytest.mark.parametrize("decision", ["allow", "deny"])
    async def test_a_tool_of_an_mcp_server_waits_for_a_word(
        self, codex: CodexKit, tmp_path: Path, decision: str
    ) -> None:
        change = tool("change_it", what="this")
        async with codex.run(change, change, say("done"), permissions={"mode": "ask"}) as stage:
            serve_mcp(codex, tmp_path / "called")
            stage.start()
            first = await self.asked(stage)
            await stage.detach()
            session, task = stage.start()
            await until(lambda: len(stage.listener.asks) == 2)
            asked = stage.listener.asks[1].approval
            assert (asked.tool, asked.input) == ("mcp__things__change_it", {"what": "this"})
            assert (asked.id, asked.tool_id) == (first.approval.id, stage.said("tool_use")[0].id)
            more = {} if decision == "allow" else {"message": "not that"}
            await deliver(session, word(asked.id, decision, asked.tool, remember=True, **more))
            assert (await ended(task)).text == "done"
            done = "allowed" if decision == "allow" else "denied"
            assert [each.state for each in stage.said("permission")] == ["asked", done] * 2
            assert [each.is_error for each in stage.said("tool_result")] == [decision == "deny"] * 2
        assert (tmp_path / "called").exists() == (decision == "allow")
        assert codex.script.requests[1].saw("not that") == (decision == "deny")

    async def test_what_an_mcp_server_asks_its_user_is_declined_at_once(self, codex: CodexKit, tmp_path: Path) -> None:
        async with codex.run(tool("ask_back"), say("done"), permissions={"mode": "ask"}) as stage:
            serve_mcp(codex, tmp_path / "called")
            assert (await stage.play()).text == "done"
            (result,) = stage.said("tool_result")
            assert "decline" in result.text
            assert not stage.said("permission")

    @pytest.mark.parametrize(("mode", "writes"), [("read_only", False), ("accept_edits", True), ("full", True)])
    async def test_the_sandbox_of_a_mode(self, codex: CodexKit, mode: str, *, writes: bool) -> None:
        async with codex.run(shell("touch made"), say("done"), permissions={"mode": mode}) as stage:
            assert (await stage.play()).text == "done"
            assert (stage.workspace / "made").exists() == writes

    async def test_rules_are_refused(self, codex: CodexKit) -> None:
        with pytest.raises(InvalidRequest, match=r"permissions\.allow"):
            async with codex.run(say("never"), permissions={"mode": "full", "allow": ["Bash"]}):
                pass


def serve_mcp(codex: CodexKit, called: Path) -> None:
    """Give Codex an MCP server by its user's config.toml."""
    arguments = json.dumps([mcp_server.__file__, str(called)])
    with (codex.home / ".codex" / "config.toml").open("a") as file:
        file.write(f"\n[mcp_servers.things]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n")


async def test_an_mcp_server_that_is_not_there_is_told(codex: CodexKit) -> None:
    async with codex.run(hold("at work")) as stage:
        with (codex.home / ".codex" / "config.toml").open("a") as file:
            file.write('\n[mcp_servers.gone]\ncommand = "/nonexistent"\n')
        _, task = stage.start()
        await stage.wait_for("progress", text="MCP servers: gone failed")
        await codex.script.wait_held()
        await codex.script.release()
        assert (await ended(task)).status == "succeeded"
        assert len(stage.said("progress")) == 1


class TestUntrusted:
    async def test_no_project_configuration_of_an_untrusted_workspace_counts(self, codex: CodexKit) -> None:
        for trusted in (False, True):
            async with codex.run(say("done")) as stage:
                project = stage.workspace / ".codex"
                project.mkdir(exist_ok=True)
                (project / "config.toml").write_text('developer_instructions = "of the project"\n')
                skill = stage.workspace / ".agents" / "skills" / "theirs" / "SKILL.md"
                skill.parent.mkdir(parents=True, exist_ok=True)
                skill.write_text("---\nname: theirs\ndescription: of the skill\n---\ntext")
                (stage.workspace / "AGENTS.md").write_text("of AGENTS.md")
                stage.trusted = trusted
                assert (await stage.play()).text == "done"
                before = (codex.home / ".codex" / "config.toml").read_text()
                assert "trust" not in before, "what a run is told is not kept"
            body = json.dumps(codex.script.requests[0].body["input"])
            assert ("of the project" in body) == trusted
            assert ("of the skill" in body) == trusted
            assert "of AGENTS.md" in body
            assert ("Nobody has vouched" in body) != trusted

    def test_codexs_own_record_of_trust(self, tmp_path: Path) -> None:
        agent = CodexAgent({"CODEX_HOME": str(tmp_path)}, "codex")
        assert not agent.trusts(Path("/a.b/c"))
        (tmp_path / "config.toml").write_text('[projects."/a.b/c"]\ntrust_level = "trusted"\n')
        assert agent.trusts(Path("/a.b/c"))
        assert not agent.trusts(Path("/a.b"))
        (tmp_path / "config.toml").write_bytes(b"\xff = [")
        assert not agent.trusts(Path("/a.b/c"))


class TestCodeMode:
    """Codex's newer models have one tool, a script that calls the others."""

    async def test_commands_and_changes_are_seen_and_asked_about(self, codex: CodexKit) -> None:
        steps = (script("cat .profile; echo hi"), script(PATCH), say("done"))
        async with codex.run(*steps, model=NEWER, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()

            async def allow(number: int, named: str) -> None:
                await until(lambda: len(stage.listener.asks) > number or task.done())
                asked = stage.listener.asks[number].approval
                assert asked.tool == named
                await deliver(session, word(asked.id, "allow", asked.tool))

            await allow(0, "exec_command")
            await allow(1, "apply_patch")
            outcome = await ended(task)
            assert (stage.workspace / "new.txt").read_text() == "hello\n"
            assert [each.name for each in stage.said("tool_result")] == ["exec_command", "apply_patch"]
            assert [each.change for each in stage.said("file_change")] == ["created"]
        assert (outcome.status, outcome.text) == ("succeeded", "done")

    async def test_an_interrupt_ends_a_command(self, codex: CodexKit) -> None:
        async with codex.run(script(f"touch napping; {NAP}"), say("instead"), model=NEWER) as stage:
            session, task = stage.start()
            await naps(stage)
            settled = await told(session, message("interrupt", "do that"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            await no_tool_lives(stage)
            assert (await ended(task)).text == "instead"
        assert codex.script.requests[1].saw("do that")


NEWER = "gpt-6.1-sol"


def script(command: str) -> Any:
    """The newer models' tool, with a script that runs this command."""
    call = f"const said = await tools.exec_command({{cmd: {json.dumps(command)}, yield_time_ms: 600000}});"
    return tool("exec", input=f"{call}\ntext(said.output);")


class TestKeys:
    """Codex's app-server takes no key of its environment by itself."""

    @pytest.mark.parametrize("keys", [("OPENAI_API_KEY",), ("CODEX_API_KEY", "OPENAI_API_KEY")])
    async def test_one_of_the_environment_is_taken(
        self, codex: CodexKit, tmp_path: Path, keys: tuple[str, ...]
    ) -> None:
        async with codex.run(say("done")) as stage:
            bare(stage, tmp_path, codex, keys)
            outcome = await stage.play()
        assert (outcome.status, outcome.text) == ("succeeded", "done")
        assert authorization(codex) == f"Bearer sk-{keys[0]}"

    async def test_a_login_goes_before_it(self, codex: CodexKit, tmp_path: Path) -> None:
        async with codex.run(say("done")) as stage:
            home = bare(stage, tmp_path, codex, ("OPENAI_API_KEY",))
            (home / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-login"}))
            (home / "config.toml").write_text(f'openai_base_url = "{codex.script.url}/v1"\n')
            outcome = await stage.play()
        assert outcome.status == "succeeded"
        assert authorization(codex) == "Bearer sk-login"

    @pytest.mark.parametrize(
        ("config", "given"),
        [
            (None, True),
            ('model = "m"\n# model_provider = "x"\n', True),
            ('model_provider = "x"\n', False),
            ('cli_auth_credentials_store = "keyring"\n', False),
        ],
    )
    def test_what_its_user_has_set_up_is_left_as_it_is(
        self, tmp_path: Path, config: str | None, *, given: bool
    ) -> None:
        program = tmp_path / "codex"
        program.write_text('#!/bin/sh\necho "$@"\n')
        program.chmod(0o755)
        if config is not None:
            (tmp_path / "config.toml").write_text(config)
        hostile = {"OPENAI_API_KEY": "sk-x", "OPENAI_BASE_URL": "http://h/'$(touch pwned)'\"\n"}
        argv = api_key.command([str(program), "app-server", "-c", "a=b"], hostile)
        environment = {"PATH": os.environ["PATH"], "CODEX_HOME": str(tmp_path)}
        done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("app-server -c a=b")
        assert ('env_key="OPENAI_API_KEY"' in done.stdout) == given
        assert not (tmp_path / "pwned").exists()
        assert "sk-x" not in str(argv)

    async def test_so_does_a_provider_of_its_users_choice(self, codex: CodexKit) -> None:
        async with codex.run(say("done")) as stage:
            stage.environment["OPENAI_API_KEY"] = "sk-other"
            outcome = await stage.play()
        assert (outcome.status, outcome.text) == ("succeeded", "done")
        assert authorization(codex) == "Bearer mock"


def bare(stage: Stage, directory: Path, codex: CodexKit, keys: tuple[str, ...]) -> Path:
    """Codex's own directory, with nothing in it, and these keys in the environment."""
    (home := directory / "bare").mkdir()
    del stage.environment["MOCK_KEY"]
    stage.environment |= {"CODEX_HOME": str(home), "OPENAI_BASE_URL": f"{codex.script.url}/v1"}
    stage.environment |= {key: f"sk-{key}" for key in keys}
    return home


def authorization(codex: CodexKit) -> str | None:
    return {name.lower(): value for name, value in codex.script.requests[0].headers.items()}.get("authorization")


class TestFailures:
    async def test_a_refused_key(self, codex: CodexKit) -> None:
        async with codex.run(fail(401, "no such key")) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AUTHENTICATION_FAILED)
        assert "no such key" in (outcome.message or "")

    @pytest.mark.parametrize("step", [fail(429, "slow"), fail(500), cut("ha")], ids=["429", "500", "cut"])
    async def test_a_service_that_fails(self, codex: CodexKit, step: Any) -> None:
        async with codex.run(step) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_FAILED, 1)

    async def test_a_server_that_is_not_there(self, codex: CodexKit) -> None:
        async with codex.run() as stage:
            config = codex.home / ".codex" / "config.toml"
            text = config.read_text().replace(codex.script.url, "http://127.0.0.1:9/x")
            config.write_text(text.replace("features.unbounded_connection_retries = false\n", ""))
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_FAILED, 1)

    def test_a_host_without_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        request = parse_request({"agent": "codex", "prompt": "go", "workspace": {"path": str(tmp_path)}})
        with pytest.raises(AgentNotInstalled, match="pip install openai-codex-cli-bin"):
            CodexAgent({"PATH": str(tmp_path)}).check(request)
        program = tmp_path / "codex"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert CodexAgent({"PATH": str(tmp_path)}).program() == str(program)


class TestWorkers:
    async def test_one_that_is_replaced_after_each_record_loses_and_doubles_nothing(self, codex: CodexKit) -> None:
        """A new worker after each event: whatever was due is written once, by whoever comes next."""
        async with codex.run(shell("echo once >> made"), answer(Say("half"), Hold(), Say(" done"))) as stage:
            for count in (0, 0, 1, 2, 3, 4):
                _, task = stage.start()
                await said(stage, count)
                await stage.detach()
            _, task = stage.start()
            await codex.script.wait_held()
            await stage.detach()
            _, task = stage.start()
            await codex.script.release()
            outcome = await ended(task)
            assert (outcome.text, outcome.attempts) == ("half done", 1)
            assert (stage.workspace / "made").read_text() == "once\n"
            assert len({event.model_dump_json(exclude={"seq"}) for event in stage.events}) == len(stage.events)
        assert len(codex.script.requests) == 2

    async def test_an_interrupt_that_a_dead_worker_wrote_is_carried_through(self, codex: CodexKit) -> None:
        async with codex.run(napping(), say("instead")) as stage:
            session, _ = stage.start()
            await naps(stage)
            saying = asyncio.create_task(told(session, message("interrupt", "do that")))
            await until(lambda: b"turn/interrupt" in _journal(stage))
            await stage.detach()
            saying.cancel()
            session, task = stage.start()
            assert (await told(session, message("interrupt", "do that"))).state == "acknowledged"
            assert (await ended(task)).text == "instead"
            await no_tool_lives(stage)
        assert len([t for t in codex.script.requests[1].texts if t == "do that"]) == 1

    async def test_whoever_takes_over_at_any_record_writes_what_the_first_worker_wrote(self, codex: CodexKit) -> None:
        async with codex.run(napping(), shell("touch made"), say("done"), permissions={"mode": "full"}) as stage:
            session, task = stage.start()
            await naps(stage)
            await told(session, message("interrupt", "do that"))
            await ended(task)
            channel = await stage.runtime.open(stage.key, 1, 100, None)
            records = [each async for batch in channel.records() for each in batch]
            await channel.close()
        journal = {each.id: each.data.strip() for each in records if each.stream == "in"}
        assert {"prompt", "interrupt-m-1", "message-m-1"} < journal.keys()
        assert any(each.startswith("clean-") for each in journal)
        due: set[str] = set()
        for count in range(len(records) + 1):
            found = CodexTranscript(("prompt", "do it"))
            for each in records[:count]:
                found.feed(each)
            written = Written()
            await CodexConversation(
                stage.request, cast("Channel", written), found, cast("ApprovalRequester", None)
            ).open()
            for command, data in written.lines.items():
                assert data.strip().encode() == journal[command]
            due |= written.lines.keys()
        assert due == {"prompt", *(each for each in journal if each.startswith("clean-"))}

    async def test_what_nobody_can_answer_is_refused_at_once(self, tmp_path: Path) -> None:
        request = parse_request({"agent": "codex", "prompt": "go", "workspace": {"path": str(tmp_path)}})
        found, written = CodexTranscript(None), Written()
        for ident, method in ((3, "item/tool/requestUserInput"), (4, "item/commandExecution/requestApproval")):
            frame = {"id": ident, "method": method, "params": {"itemId": "i", "command": "rm -rf /"}}
            found.feed(Line(ident, 1, "out", json.dumps(frame).encode()))
        await CodexConversation(request, cast("Channel", written), found, cast("ApprovalRequester", None)).open()
        answers = {command: json.loads(data) for command, data in written.lines.items()}
        assert answers["answer-3"]["error"]["message"] == "nobody can answer this here"
        assert answers["answer-4"] == {"id": 4, "result": {"decision": "decline"}}

    async def test_a_snapshot_goes_on_as_the_transcript_it_was_taken_of(self, codex: CodexKit) -> None:
        async with codex.run(
            shell(PATCH), answer(say("done"), usage=Usage(cache_read=9)), output_schema=SCHEMA
        ) as stage:
            await stage.play()
            channel = await stage.runtime.open(stage.key, 1, 100, None)
            records = [each async for batch in channel.records() for each in batch]
            await channel.close()
        whole = CodexTranscript(("prompt", "do it"), structured=True)
        expected = [whole.feed(each) for each in records]
        for cut_at in range(len(records)):
            first = CodexTranscript(("prompt", "do it"), structured=True)
            for each in records[:cut_at]:
                first.feed(each)
            second = CodexTranscript(("prompt", "do it"), structured=True)
            snapshot = first.snapshot()
            assert snapshot
            second.restore(snapshot)
            assert [second.feed(each) for each in records[cut_at:]] == expected[cut_at:]
            assert second.state == whole.state

    async def test_damaged_frames_break_nothing(self, codex: CodexKit) -> None:
        async with codex.run(shell(PATCH), say("done")) as stage:
            await stage.play()
            channel = await stage.runtime.open(stage.key, 1, 100, None)
            records = [each async for batch in channel.records() for each in batch]
            await channel.close()
        chance = random.Random(7)
        for _ in range(150):
            found = CodexTranscript(("prompt", "do it"), structured=True)
            for each in records:
                frame = json.loads(each.data) if each.stream in ("in", "out") else None
                data = json.dumps(damaged(frame, chance)).encode() if frame else each.data
                found.feed(Line(each.seq, each.time_ms, each.stream, data, each.id))
                assert isinstance(found.working, bool)
                assert isinstance(found.finished, bool)
            if (snapshot := found.snapshot()) is not None:
                CodexTranscript(None).restore(snapshot)
            found.verdict(ExitFact(code=0))

    @pytest.mark.parametrize("forged", [b"", b"[]", b"{}", b'{"progress": 1}', b'{"pending": {"1": {"id": 2}}}'])
    def test_a_forged_snapshot_is_refused(self, forged: bytes) -> None:
        if forged == b"{}":  # the state of a transcript that was fed nothing
            CodexTranscript(None).restore(forged)
            return
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
            CodexTranscript(None).restore(forged)


class Written:
    """A channel that keeps what is written to it."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}

    async def write(self, command: str, data: str) -> bool:
        self.lines.setdefault(command, data)
        return True


def damaged(value: Any, chance: random.Random) -> Any:
    """The value with one in twelve of its parts another than the program would write."""
    if chance.random() < 1 / 12:
        return chance.choice([None, 1, -1, 1e400, "x" * 300, [], {}, [{}], {"id": 1}, True])
    if isinstance(value, dict):
        return {key: damaged(each, chance) for key, each in value.items()}
    return [damaged(each, chance) for each in value] if isinstance(value, list) else value


def _journal(stage: Stage) -> bytes:
    return b"".join(
        path.read_bytes()
        for root, _, names in os.walk(stage.directory.path)
        for path in (Path(root, name) for name in names)
        if path.is_file()
    )
