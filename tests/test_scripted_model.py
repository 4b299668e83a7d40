"""The scripted model against the real Claude Code CLI: what other tests rely on when they use it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    Message,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ThinkingBlock,
)

from tests.scripted_model import (
    Request,
    Script,
    ScriptedModel,
    ScriptError,
    Step,
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

pytestmark = pytest.mark.integration


@asynccontextmanager
async def claude(script: Script, path: Path, **options: Any) -> AsyncIterator[ClaudeSDKClient]:
    workspace = path / "workspace"
    workspace.mkdir(exist_ok=True)
    env = {**script.env(path / "config"), "CLAUDE_CODE_MAX_RETRIES": "1"}
    settings = {"permission_mode": "bypassPermissions", "setting_sources": [], "env": env, **options}
    async with ClaudeSDKClient(ClaudeAgentOptions(cwd=workspace, **settings)) as client:
        yield client


async def turn(client: ClaudeSDKClient, prompt: str) -> tuple[ResultMessage, list[Message]]:
    await client.query(prompt)
    messages = [message async for message in client.receive_response()]
    assert isinstance(messages[-1], ResultMessage)
    return messages[-1], messages


def text_of(messages: list[Message]) -> str:
    blocks = [block for m in messages if isinstance(m, AssistantMessage) for block in m.content]
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def deltas(messages: list[Message]) -> list[str]:
    events = [m.event for m in messages if isinstance(m, StreamEvent)]
    return [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]


async def test_says_thinks_and_reports_the_usage_of_the_script(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script(
            "a", answer(think("hm"), say("hello"), usage=Usage(input=11, output=7, cache_read=5, cache_write=3))
        )
        async with claude(script, tmp_path) as client:
            result, messages = await turn(client, "greet me")
        assert result.result == "hello"
        assert any(isinstance(b, ThinkingBlock) for m in messages if isinstance(m, AssistantMessage) for b in m.content)
        assert result.usage
        assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (11, 7)
        assert (result.usage["cache_read_input_tokens"], result.usage["cache_creation_input_tokens"]) == (5, 3)
        assert result.total_cost_usd
        assert script.requests[0].saw("greet me")
        assert script.requests[0].outcome == "answered"
        assert script.remaining == 0


async def test_streams_text_in_as_many_chunks_as_asked(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", say("one two three", chunks=4, delay_s=0.01))
        async with claude(script, tmp_path, include_partial_messages=True) as client:
            _, messages = await turn(client, "count")
        assert len(deltas(messages)) == 4
        assert "".join(deltas(messages)) == "one two three" == text_of(messages)


async def test_runs_several_tools_of_one_answer_and_sees_their_results(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script(
            "a",
            answer(say("two tools"), tool("Bash", command="echo $((20+3))"), tool("Bash", command="echo $((40+5))")),
            say("done"),
        )
        async with claude(script, tmp_path) as client:
            result, _ = await turn(client, "add")
        assert result.result == "done"
        assert "Bash" in script.requests[0].tools
        assert script.requests[1].saw("23")
        assert script.requests[1].saw("45")


async def test_holds_a_stream_until_it_is_released(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", hold("before", " after"))
        async with claude(script, tmp_path) as client:
            answering = asyncio.create_task(turn(client, "go"))
            await script.wait_held()
            assert not answering.done()
            await script.release()
            result, _ = await answering
        assert result.result == "before after"
        assert not script.holding


async def test_notices_that_an_interrupted_agent_hung_up_and_keeps_its_next_step(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", hold("before"), say("and on"))
        async with claude(script, tmp_path) as client:
            answering = asyncio.create_task(turn(client, "go"))
            await script.wait_held()
            await client.interrupt()
            interrupted, _ = await answering
            assert interrupted.is_error
            assert await script.wait_outcome(script.requests[0]) == "hung up"
            result, _ = await turn(client, "go on")
        assert result.result == "and on"
        assert script.requests[1].saw("[Request interrupted by user]")


@pytest.mark.exhaustive
@pytest.mark.parametrize("status", [429, 500, 529])
async def test_a_refusal_that_may_pass_is_tried_again_with_the_next_step(tmp_path: Path, status: int) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", fail(status, retry_after_s=0), say("at last"))
        async with claude(script, tmp_path) as client:
            result, _ = await turn(client, "go")
        assert result.result == "at last"
        assert [r.outcome for r in script.requests] == ["failed", "answered"]


async def test_a_refused_key_ends_the_turn(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", fail(401, "invalid x-api-key"), repeat=True)
        async with claude(script, tmp_path) as client:
            result, _ = await turn(client, "go")
        assert result.is_error
        assert result.api_error_status == 401


async def test_a_cut_stream_is_asked_for_again(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", cut("ha"), say("whole"))
        async with claude(script, tmp_path, include_partial_messages=True) as client:
            result, messages = await turn(client, "go")
        assert result.result == "whole"
        # What had come before the cut may go with the connection, unread.
        assert deltas(messages) in (["ha", "whole"], ["whole"])
        assert len(script.requests) == 2
        assert script.requests[0].outcome == "cut"


async def test_gives_structured_output(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    async with ScriptedModel() as model:
        script = model.script("a", structured({"answer": 42}))
        async with claude(script, tmp_path, output_format={"type": "json_schema", "schema": schema}) as client:
            result, _ = await turn(client, "answer")
        assert result.structured_output == {"answer": 42}


async def test_a_script_that_has_run_out_fails_the_agent_and_the_test(tmp_path: Path) -> None:
    model = ScriptedModel()
    await model.start()
    script = model.script("a", say("only this"))
    async with claude(script, tmp_path) as client:
        await turn(client, "go")
        result, _ = await turn(client, "and more")
    assert result.is_error
    assert "has run out at request 2" in (result.result or "")
    with pytest.raises(ScriptError, match=r"script 'a' ran out at request 2.*and more"):
        await model.close()


async def test_the_tests_own_failure_is_not_hidden_by_the_scripts() -> None:
    async def fails() -> None:
        async with ScriptedModel() as model:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(_post, f"{model.url}/nowhere/v1/messages", {})
            raise KeyError("the test's own")

    with pytest.raises(KeyError) as caught:
        await fails()
    assert "unknown script: POST /nowhere/v1/messages" in caught.value.__notes__[0]


@pytest.mark.exhaustive
async def test_serves_several_scripts_at_once_and_one_over_and_over(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        rounds = model.script("rounds", say("one"), say("two"), repeat=True)
        single = model.script("single", say("alone"))
        (tmp_path / "r").mkdir()
        (tmp_path / "s").mkdir()
        async with claude(rounds, tmp_path / "r") as first, claude(single, tmp_path / "s") as second:
            said = [(await turn(first, "next"))[0].result for _ in range(3)]
            alone, _ = await turn(second, "hello")
        assert said == ["one", "two", "one"]
        assert alone.result == "alone"
        assert not any(r.saw("hello") for r in rounds.requests)


async def test_a_function_answers_until_it_returns_none(tmp_path: Path) -> None:
    def loop(request: Request) -> Step | None:
        return tool("Bash", command=f"echo round{request.number}") if request.number <= 3 else None

    async with ScriptedModel() as model:
        script = model.script("loop", loop, say("enough"), keep=2)
        async with claude(script, tmp_path) as client:
            result, _ = await turn(client, "loop")
        assert result.result == "enough"
        assert [r.number for r in script.requests] == [3, 4]
        assert script.requests[-1].saw("round3")


async def test_side_requests_take_no_step_of_the_script() -> None:
    tools = [{"name": "Bash", "input_schema": {"type": "object"}}]
    search = [{"name": "web_search", "type": "web_search_20250305"}]
    titles = {"max_tokens": 500, "messages": [{"role": "user", "content": "title?"}]}
    async with ScriptedModel() as model:
        script = model.script("a", say("the step"))
        ask = f"{script.url}/v1/messages"
        quota = await asyncio.to_thread(_post, ask, {"max_tokens": 1, "messages": [], "tools": tools})
        title = await asyncio.to_thread(_post, ask, titles)
        await asyncio.to_thread(_post, ask, {"max_tokens": 500, "messages": [], "tools": search})
        count = await asyncio.to_thread(_post, f"{ask}/count_tokens", {})
        own = await asyncio.to_thread(_post, ask, {"max_tokens": 500, "messages": [], "tools": tools})
        assert quota["type"] == title["type"] == "message"
        assert count == {"input_tokens": 100}
        assert own["content"] == [{"type": "text", "text": "the step"}]
        assert len(script.side_requests) == 3
        assert len(script.requests) == 1


async def test_the_conversation_of_an_agent_without_tools_takes_its_steps(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", say("no tools"))
        async with claude(script, tmp_path, tools=[]) as client:
            result, _ = await turn(client, "go")
        assert result.result == "no tools"
        assert script.requests[0].tools == []


def test_as_a_process_it_is_controlled_over_http(tmp_path: Path) -> None:
    steps = [{"hold": "a", "after": "b"}, {"say": "c", "times": 2}]
    body = {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "T", "input_schema": {}}],
    }
    with served(tmp_path, {"demo": {"steps": steps, "repeat": True}}) as (url, process):
        assert _post(f"{url}/demo/_release", {}) == {"holding": False}
        held = _post(f"{url}/demo/v1/messages", body)
        assert [block["text"] for block in held["content"]] == ["ab"]
        said = [_post(f"{url}/demo/v1/messages", body)["content"][0]["text"] for _ in range(2)]
        assert said == ["c", "c"]
        seen = json.loads(_open(f"{url}/demo/_requests"))
        assert [r["body"]["messages"][0]["content"] for r in seen["requests"]] == ["hi"] * 3
        assert seen["remaining"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_as_a_process_it_exits_with_1_when_a_script_ran_out(tmp_path: Path) -> None:
    with served(tmp_path, {"demo": []}) as (url, process):
        with pytest.raises(urllib.error.HTTPError, match="501"):
            _post(f"{url}/demo/v1/messages", {"max_tokens": 9, "tools": [{"name": "T", "input_schema": {}}]})
        process.send_signal(signal.SIGTERM)
        _, complaint = process.communicate(timeout=10)
        assert process.returncode == 1
        assert "script 'demo' ran out at request 1" in complaint


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([{"shout": "x"}], "script 'demo', step 0: exactly one of"),
        ([{"say": "x"}, {"say": "x", "loud": True}], "script 'demo', step 1: .*loud"),
        ([{"answer": [{"fail": 500}]}], "an answer cannot hold a failure"),
        ({"repeat": True}, "script 'demo': a list of steps"),
    ],
)
def test_a_wrong_script_file_is_refused_by_name(tmp_path: Path, steps: object, complaint: str) -> None:
    with served(tmp_path, {"demo": steps}) as (_, process):
        _, errors = process.communicate(timeout=10)
        assert process.returncode == 1
        assert re.search(complaint, errors)


@contextmanager
def served(path: Path, scripts: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    file = path / "scripts.json"
    file.write_text(json.dumps(scripts))
    command = [sys.executable, "-m", "tests.scripted_model", "--port", "0", "--script", str(file)]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def _post(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.loads(_open(request))


def _open(request: urllib.request.Request | str) -> str:
    with urllib.request.urlopen(request, timeout=10) as response:
        body: bytes = response.read()
        return body.decode()
