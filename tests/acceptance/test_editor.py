"""`steer acp` with the official Python client as the editor, and the real Claude Code at work behind it."""

import asyncio
import base64
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.exceptions import RequestError
from acp.schema import McpServerStdio
from temporalio.service import RPCError

from steersman.client import Steersman
from tests.acceptance.editors import Editor, editor, environment, shown
from tests.acceptance.site import Site, claudes, gone, phase
from tests.scripted_model import Script, ScriptedModel, answer, fail, hold, say, tool
from tests.support.images import png
from tests.support.processes import until

IMAGE = base64.b64encode(png()).decode()
NONSENSE = (
    b"nonsense",
    b"\xff\xfe",
    b'{"jsonrpc": "2.0", "method": "session/prompt"}',
    b"[1, 2]",
    b"5",
    b"null",
    b'"text"',
    b"[" * 100_000,
    b"9" * 10_000,
    b'{"id": [1], "method": "x"}',
    b'{"id": {}, "result": 1}',
    b'{"id": 7, "error": "boom"}',
    b'{"id": 0, "method": 5}',
    b'{"id": 0, "method": "session/prompt", "params": [1]}',
    b'{"id": 0, "method": "session/prompt", "params": "x"}',
)
NO_ANSWERS: tuple[dict[str, Any], ...] = (
    {"result": 5},
    {"result": None},
    {"result": {}},
    {"result": {"outcome": {"outcome": "selected", "optionId": "zzz"}}},
    {"error": "boom"},
    {"error": {"code": "x"}},
    {},
)
UNSTEERED = """
import json, sys

def tell(**frame):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\\n")
    sys.stdout.flush()

def say(text):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    tell(method="session/update", params={"sessionId": "s", "update": update})

prompts = []
for line in sys.stdin:
    frame = json.loads(line)
    if frame["method"] == "initialize":
        tell(id=frame["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
    elif frame["method"] == "session/new":
        tell(id=frame["id"], result={"sessionId": "s"})
    elif frame["method"] == "session/prompt":
        prompts.append(frame["id"])
        say("done" if len(prompts) > 1 else "working")
        if len(prompts) > 1:
            tell(id=prompts[-1], result={"stopReason": "end_turn"})
    elif frame["method"] == "session/cancel":
        tell(id=prompts[-1], result={"stopReason": "cancelled"})
"""
THINKING = hold("thinking")
WORKING = hold("working")


@asynccontextmanager
async def session(site: Site, script: Script, mark: str, *arguments: str) -> AsyncIterator[tuple[Editor, str]]:
    """An editor with a new session."""
    async with editor(site, *arguments, env=environment(script, mark)) as opened:
        new = await opened.agent.new_session(cwd=str(site.workspace()))
        yield opened, new.session_id


async def is_told(steersman: Steersman, id: str) -> bool:
    """Whether its agent was given a message."""
    return any(each.state != "queued" for each in (await steersman.state(id)).messages)


async def is_cancelled(steersman: Steersman, id: str) -> bool:
    return (await steersman.state(id)).closed_as == "cancelled"


async def exists(steersman: Steersman, id: str) -> bool:
    with suppress(RPCError):
        await steersman.temporal.get_workflow_handle(id).describe()
        return True
    return False


async def denied_elsewhere(opened: Editor, id: str, steersman: Steersman) -> None:
    """The editor does not decide, and hears how others can: one does, and the run goes on."""
    prompt = asyncio.create_task(opened.prompt(id, "go"))
    await shown(opened.screen, "steer approve", "agent_thought_chunk")
    (waiting,) = (await steersman.state(id)).approvals
    await steersman.decide(id, waiting.id, "deny")
    assert (await prompt).stop_reason == "end_turn"


class TestPrompt:
    async def test_is_a_durable_run(self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
        script = model.script("one", tool("Bash", command="echo made > file"), say("It is made"), say("Again"))
        async with session(shared, script, mark, "--mode", "full") as (opened, id):
            response = await opened.prompt(id, "make it")

            assert response.stop_reason == "end_turn"
            assert response.usage.total_tokens > 0
            assert opened.screen.told("agent_message_chunk") == "It is made"
            assert opened.screen.tools()["Bash echo made > file"] == ["in_progress", "completed"]
            assert (await steersman.result(id)).text == "It is made"

            assert (await opened.prompt(id, "once more")).stop_reason == "end_turn"
            assert script.requests[-1].saw("make it")
            assert script.requests[-1].saw("once more")
            assert await opened.close() == ""

    async def test_takes_links_files_and_images(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        script = model.script("files", say("Read"))
        file = acp.resource_block(acp.embedded_text_resource("file:///src/a.py", "x = 41"))
        link = acp.resource_link_block("b.py", "file:///src/b.py")
        async with session(shared, script, mark) as (opened, id):
            assert opened.about.agent_capabilities.prompt_capabilities.image
            with pytest.raises(RequestError, match="neither an image"):
                await opened.agent.prompt(id, [acp.text_block("Look"), acp.image_block("/w==", "image/png")])
            with pytest.raises(RequestError) as refused:
                await opened.agent.prompt(id, [acp.audio_block("aGk=", "audio/wav")])
            assert "no audio" in str(refused.value.data)
            shown = acp.image_block(IMAGE, "image/png", uri="file:///src/red%20one.png")
            await opened.agent.prompt(id, [acp.text_block("Look at "), file, link, shown])
        for part in ("Look at", "file:///src/a.py", "x = 41", "file:///src/b.py", "[Images: red one.png]"):
            assert script.requests[-1].saw(part)
        assert IMAGE in json.dumps(script.requests[-1].body)

    async def test_that_fails_says_why(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        async with session(shared, model.script("refused", *[fail(401, "no such key")] * 12, repeat=True), mark) as (
            opened,
            id,
        ):
            with pytest.raises(RequestError) as raised:
                await opened.prompt(id, "go")
        assert isinstance(raised.value.data, dict)
        assert raised.value.data["type"] == "AuthenticationFailed"

    async def test_while_one_is_at_work_is_heard_by_it(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        script = model.script("steered", answer(*WORKING.parts, *tool("Bash", command="true").parts), say("Both"))
        async with session(shared, script, mark, "--mode", "full") as (opened, id):
            first = asyncio.create_task(opened.prompt(id, "do this"))
            await script.wait_held()
            second = asyncio.create_task(opened.prompt(id, "and that"))
            await until(lambda: is_told(steersman, id))
            await script.release()
            assert [(await each).stop_reason for each in (first, second)] == ["end_turn", "end_turn"]
        assert script.requests[-1].saw("and that")

    async def test_while_one_is_at_work_that_takes_no_messages_is_in_its_place(
        self, shared: Site, mark: str, tmp_path: Path
    ) -> None:
        """Agents of ACP can be steered or not: that one cannot is known once it is asked."""
        program = tmp_path / "program.py"
        program.write_text(UNSTEERED, encoding="utf-8")
        async with editor(shared, "acp", env={"RUN_MARK": mark}, command=[sys.executable, str(program)]) as opened:
            id = (await opened.agent.new_session(cwd=str(shared.workspace()))).session_id
            first = asyncio.create_task(opened.prompt(id, "do this"))
            await shown(opened.screen, "working")
            async with asyncio.timeout(30):
                second = await opened.prompt(id, "do that")
                assert (second.stop_reason, (await first).stop_reason) == ("end_turn", "end_turn")
            assert opened.screen.told("agent_message_chunk") == "workingdone"

    async def test_two_at_once_are_one_run_told_once(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        asks = tool("Bash", command="echo made > file")
        script = model.script("two", answer(*WORKING.parts, *asks.parts), say("Both"))
        async with session(shared, script, mark, "--mode", "ask") as (opened, id):
            opened.screen.answer = _allowed
            both = [asyncio.create_task(opened.prompt(id, text)) for text in ("first", "second")]
            await script.wait_held()
            await until(lambda: is_told(steersman, id))
            await script.release()
            assert [(await each).stop_reason for each in both] == ["end_turn", "end_turn"]
            assert len(opened.screen.cursors) == len(set(opened.screen.cursors))
            assert len(opened.screen.asked) == 1
            assert opened.screen.told("user_message_chunk") == ""
            assert [run.prompt for run in await (await steersman.resume_thread(id)).runs()] == ["first"]
        assert script.requests[-1].saw("second")

    async def test_that_is_too_long_to_be_said_is_the_next_runs(
        self, shared: Site, model: ScriptedModel, mark: str
    ) -> None:
        long = "x" * 200_000
        script = model.script("long", WORKING, say("Next"))
        async with session(shared, script, mark) as (opened, id):
            first = asyncio.create_task(opened.prompt(id, "go"))
            await script.wait_held()
            second = asyncio.create_task(opened.prompt(id, long))
            await asyncio.sleep(0.5)
            await script.release()
            assert [(await each).stop_reason for each in (first, second)] == ["end_turn", "end_turn"]
            assert opened.screen.told("agent_message_chunk").endswith("Next")
        assert script.requests[-1].saw(long)

    async def test_that_nobody_could_bring_before_the_end_is_the_next_runs(
        self, site: Site, model: ScriptedModel, mark: str
    ) -> None:
        """The agent ends while there is no worker."""
        worker = site.worker()
        await worker.ready()
        script = model.script("unbrought", WORKING, say("Next"))
        async with session(site, script, mark) as (opened, id):
            first = asyncio.create_task(opened.prompt(id, "go"))
            await script.wait_held()
            worker.kill()
            second = asyncio.create_task(opened.prompt(id, "and that"))
            await until(lambda: _was_signalled(site, id))
            await script.release()
            journals = site.root.glob("state/runs/*/*/attempts/*/journal")
            (journal,) = await asyncio.to_thread(list, journals)
            await until(lambda: b'"type":"result"' in journal.read_bytes())
            await site.worker().ready()
            assert [(await each).stop_reason for each in (first, second)] == ["end_turn", "end_turn"]
            assert opened.screen.told("agent_message_chunk") == "workingNext"
        assert script.requests[-1].saw("and that")

    async def test_of_an_image_alone(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        script = model.script("image", say("Seen"))
        async with session(shared, script, mark) as (opened, id):
            await opened.agent.prompt(id, [acp.image_block(IMAGE, "image/png")])
        assert IMAGE in json.dumps(script.requests[-1].body)


async def _was_signalled(site: Site, id: str) -> bool:
    history = await (await site.steersman()).temporal.get_workflow_handle(id).fetch_history()
    signals = [each.workflow_execution_signaled_event_attributes.signal_name for each in history.events]
    return "steer" in signals


async def _allowed() -> str:
    return "allow"


class TestCancel:
    async def test_stops_the_run_and_keeps_the_session(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        script = model.script("cancelled", THINKING, say("here I am"))
        async with session(shared, script, mark) as (opened, id):
            await opened.agent.cancel(id)  # nothing to cancel yet
            prompt = asyncio.create_task(opened.prompt(id, "the first"))
            await script.wait_held()
            await opened.agent.cancel(id)
            assert (await prompt).stop_reason == "cancelled"
            await until(lambda: not claudes(mark))
            await until(lambda: is_cancelled(steersman, id))

            assert (await opened.prompt(id, "the second")).stop_reason == "end_turn"
            assert script.requests[-1].saw("the first")

    async def test_leaves_no_call_at_work_on_the_screen(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        script = model.script("call", tool("Bash", command="tail -f /dev/null"))
        async with session(shared, script, mark, "--mode", "full") as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await until(opened.screen.tools)
            await opened.agent.cancel(id)
            assert (await prompt).stop_reason == "cancelled"
            told = {"Bash tail -f /dev/null": ["in_progress", "failed"]}
            assert opened.screen.tools() == told
            opened.screen.updates.clear()
            await opened.agent.load_session(cwd="/", session_id=id)
            await until(lambda: opened.screen.tools() == told)  # the run may not have closed yet, and is followed then

    async def test_at_once(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        async with session(shared, model.script("at-once", THINKING), mark) as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await asyncio.sleep(0)
            await opened.agent.cancel(id)
            assert (await asyncio.wait_for(prompt, 40)).stop_reason == "cancelled"
        await gone(mark)

    async def test_again_and_again(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        """What is asked for right after a cancel is not stopped by it; each answer is of its own prompt."""
        script = model.script("again", lambda request: say("here I am") if request.saw("xyzzy") else THINKING)
        async with editor(shared, env=environment(script, mark)) as opened:
            for delay in (0.0, 0.3, 0.6, 1.0):
                id = (await opened.agent.new_session(cwd=str(shared.workspace()))).session_id
                first = asyncio.create_task(opened.prompt(id, "go"))
                await asyncio.sleep(delay)
                cancels = [asyncio.create_task(opened.agent.cancel(id)) for _ in range(2)]
                await asyncio.gather(*cancels)
                second = asyncio.create_task(opened.prompt(id, "xyzzy"))
                assert (await first).stop_reason == "cancelled"
                assert (await second).stop_reason == "end_turn"
        await gone(mark)


class TestApproval:
    @pytest.mark.parametrize(("option", "outcome"), [("allow", "completed"), ("deny", "failed")])
    async def test_is_the_editors_to_give(
        self, shared: Site, model: ScriptedModel, mark: str, option: str, outcome: str
    ) -> None:
        script = model.script("asks", tool("Bash", command="echo made > file"), say("done"))
        async with session(shared, script, mark, "--mode", "ask") as (opened, id):

            async def answered() -> str:
                return option

            opened.screen.answer = answered
            assert (await opened.prompt(id, "go")).stop_reason == "end_turn"
            assert [each.title for each in opened.screen.asked] == ["Bash echo made > file"]
            assert opened.screen.tools()["Bash echo made > file"] == ["in_progress", outcome]

    async def test_may_be_given_elsewhere(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        script = model.script("elsewhere", tool("Bash", command="echo made > file"), say("done"))
        async with session(shared, script, mark, "--mode", "ask") as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await until(lambda: opened.screen.asked)
            (waiting,) = (await steersman.state(id)).approvals
            await steersman.decide(id, waiting.id, "allow")
            assert (await prompt).stop_reason == "end_turn"

    async def test_is_asked_for_again_by_the_next_editor(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        script = model.script("asked-again", tool("Bash", command="echo made > file"), say("done"))
        async with session(shared, script, mark, "--mode", "ask") as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await until(lambda: opened.screen.asked)
            await opened.close()
            prompt.cancel()
        async with editor(shared) as opened:

            async def allow() -> str:
                return "allow"

            opened.screen.answer = allow
            await opened.agent.load_session(cwd="/", session_id=id)
            await shown(opened.screen, "done")
            assert len(opened.screen.asked) == 1

    async def test_mode_is_the_editors_to_change(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        command = tool("Bash", command="echo made > file")
        script = model.script("modes", command, say("done"))
        async with editor(shared, "--mode", "ask", env=environment(script, mark)) as opened:
            new = await opened.agent.new_session(cwd=str(shared.workspace()))
            assert new.modes.current_mode_id == "ask"
            await opened.agent.set_session_mode(session_id=new.session_id, mode_id="full")
            assert (await opened.prompt(new.session_id, "go")).stop_reason == "end_turn"
            assert opened.screen.asked == []
            with pytest.raises(RequestError):
                await opened.agent.set_session_mode(session_id=new.session_id, mode_id="anything")


class TestLeaving:
    async def test_leaves_the_agent_at_work_and_another_joins(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        script = model.script("left", say("one"), answer(*say("two, ").parts, *WORKING.parts), say("three"))
        async with session(shared, script, mark) as (opened, id):
            await opened.prompt(id, "the first")
            prompt = asyncio.create_task(opened.prompt(id, "the second"))
            await script.wait_held()
            await opened.close()
            prompt.cancel()
        assert claudes(mark)
        await phase(steersman, id, "running")

        async with editor(shared) as opened:
            await opened.agent.load_session(cwd="/", session_id=id)
            await shown(opened.screen, "the firstthe second", "user_message_chunk")
            await script.release()
            joined = await opened.prompt(id, "and more")
            assert joined.stop_reason == "end_turn"
            told = opened.screen.told("agent_message_chunk")
            assert told.startswith("onetwo, working")
        await gone(mark)

    async def test_while_the_run_is_being_started(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        async with session(shared, model.script("starting", say("done")), mark) as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await until(lambda: exists(steersman, id))
            await opened.close()
            prompt.cancel()
        assert (await steersman.result(id)).text == "done"

    async def test_by_a_signal_while_the_run_is_being_started(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        async with session(shared, model.script("starting", say("done")), mark) as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await asyncio.sleep(0)
            await asyncio.sleep(0.005)
            opened.process.send_signal(signal.SIGTERM)
            assert await opened.process.wait() == 143
            prompt.cancel()
        assert (await steersman.result(id)).text == "done"

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    async def test_by_a_signal(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, number: signal.Signals
    ) -> None:
        script = model.script("killed", THINKING)
        async with session(shared, script, mark) as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await script.wait_held()
            opened.process.send_signal(number)
            code = await opened.process.wait()
            assert code == {signal.SIGINT: 130, signal.SIGKILL: -9}.get(number, 143)
            prompt.cancel()
        assert claudes(mark)
        await script.release()
        assert (await steersman.result(id)).text == "thinking"


class TestLoading:
    async def test_goes_on_from_a_cursor(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        script = model.script("cursor", say("one"), say("two"), say("three"))
        async with session(shared, script, mark) as (opened, id):
            await opened.prompt(id, "first")
            cursor = opened.screen.cursors[-1]
            await opened.prompt(id, "second")
            await opened.prompt(id, "third")

        async with editor(shared) as opened:
            await opened.agent.load_session(cwd="/", session_id=id)
            assert opened.screen.told("user_message_chunk") == "firstsecondthird"
            assert opened.screen.told("agent_message_chunk") == "onetwothree"
            opened.screen.updates.clear()
            await opened.agent.load_session(cwd="/", session_id=id, steersman={"cursor": cursor})
            assert opened.screen.told("user_message_chunk") == "secondthird"
            assert opened.screen.told("agent_message_chunk") == "twothree"
            opened.screen.updates.clear()
            await opened.agent.resume_session(cwd="/", session_id=id)
            assert opened.screen.updates == []
            with pytest.raises(RequestError):
                await opened.agent.load_session(cwd="/", session_id=id, steersman={"cursor": "x"})

    async def test_one_that_is_at_work_here(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        script = model.script("here", THINKING)
        async with session(shared, script, mark) as (opened, id):
            prompt = asyncio.create_task(opened.prompt(id, "go"))
            await script.wait_held()
            await opened.agent.load_session(cwd="/", session_id=id)
            with pytest.raises(RequestError, match="loaded anew"):
                await prompt
            await opened.agent.cancel(id)
            await shown(opened.screen, "was cancelled: cancelled in the editor", "agent_thought_chunk")

    async def test_one_that_is_not_there(self, shared: Site) -> None:
        async with editor(shared) as opened:
            with pytest.raises(RequestError) as raised:
                await opened.agent.load_session(cwd="/", session_id="thread-none")
            assert raised.value.code == -32002
            with pytest.raises(RequestError):
                await opened.prompt("thread-none", "go")

    async def test_those_that_can_be_are_listed(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        other = await steersman.start(shared.process("true"))
        await steersman.result(other)
        async with session(shared, model.script("listed", say("one")), mark) as (opened, id):
            await opened.prompt(id, "go")

            async def listed(**given: str) -> bool:
                return id in [each.session_id for each in (await opened.agent.list_sessions(**given)).sessions]

            await until(listed)
            assert other not in [each.session_id for each in (await opened.agent.list_sessions()).sessions]
            place = (await steersman.state(id)).workspace
            assert await listed(cwd=f"{place}")
            assert await listed(cwd=f"{place}/")
            assert (await opened.agent.list_sessions(cwd="/nowhere")).sessions == []


class TestWhatIsRefused:
    async def test_an_editor_that_says_nonsense(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        async with session(shared, model.script("nonsense", say("one")), mark) as (opened, id):
            for line in NONSENSE:
                opened.process.stdin.write(line + b"\n")
            with pytest.raises(RequestError):
                await opened.prompt(id, "x" * 2_000_000)
            wrong = {"id": "wrong", "method": "session/prompt", "params": {"sessionId": id, "prompt": 5}}
            opened.process.stdin.write(json.dumps(wrong).encode() + b"\n")
            await until(lambda: "wrong" in opened.screen.errors)
            assert opened.screen.errors["wrong"]["data"]["errors"][0]["field"] == "prompt"
            assert "pydantic" not in str(opened.screen.errors)
            # The protocol's own field, which clients may fill with anything.
            meta = {"self": 1, "session_id": "x", "prompt": 2, "steersman": 3}
            asked = {"sessionId": id, "prompt": [{"type": "text", "text": "go"}], "_meta": meta}
            frame = {"jsonrpc": "2.0", "id": "own", "method": "session/prompt", "params": asked}
            opened.process.stdin.write(json.dumps(frame).encode() + b"\n")
            await until(lambda: opened.screen.told("agent_message_chunk") == "one")
            assert (await opened.close()).count("Traceback") == 1  # of the one that names a method

    @pytest.mark.parametrize("answer", NO_ANSWERS, ids=str)
    async def test_an_answer_that_is_none(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, answer: Any
    ) -> None:
        """It decides nothing, and who gave it hears of that."""
        script = model.script("none", tool("Bash", command="echo made > file"), say("done"))
        async with session(shared, script, mark, "--mode", "ask") as (opened, id):
            opened.screen.raw_answer = answer
            await denied_elsewhere(opened, id, steersman)

    async def test_an_approval_that_no_editor_answers(
        self, shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
    ) -> None:
        script = model.script("unanswered", tool("Bash", command="echo made > file"), say("done"))
        async with session(shared, script, mark, "--mode", "ask") as (opened, id):

            async def broken() -> str:
                raise RequestError.internal_error()

            opened.screen.answer = broken
            await denied_elsewhere(opened, id, steersman)

    async def test_at_a_new_session(self, shared: Site) -> None:
        async with editor(shared) as opened:
            with pytest.raises(RequestError, match=r"workspace\.path"):
                await opened.agent.new_session(cwd="not/absolute")
            with pytest.raises(RequestError):
                await opened.agent.new_session(cwd="/", additional_directories=["/tmp"])
            with pytest.raises(RequestError):
                await opened.agent.fork_session(cwd="/", session_id="x")

    async def test_mcp_servers_are_told_of(self, shared: Site, model: ScriptedModel, mark: str) -> None:
        script = model.script("mcp", say("one"))
        server = McpServerStdio(name="files", command="/bin/true", args=[], env=[])
        async with editor(shared, env=environment(script, mark)) as opened:
            new = await opened.agent.new_session(cwd=str(shared.workspace()), mcp_servers=[server])
            await opened.prompt(new.session_id, "go")
            assert "files" in opened.screen.told("agent_thought_chunk")

    async def test_an_agent_that_can_have_no_thread(self, shared: Site) -> None:
        async with editor(shared, "process", "--", "true") as opened:
            with pytest.raises(RequestError, match="cannot resume a session"):
                await opened.agent.new_session(cwd="/")
