"""The scripted model against the programs that speak other dialects than Claude Code's, each the real one."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_model import (
    Answer,
    Script,
    ScriptedModel,
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
from tests.support.programs import program

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Program:
    """A program, its command line without the prompt, its environment, and how it writes a file."""

    name: str
    arguments: tuple[str, ...]
    env: Callable[[Script, Path], dict[str, str]]
    writes: Callable[[Path], Answer]

    async def run(self, script: Script, path: Path, prompt: str) -> tuple[int, str]:
        """Exit code and stdout, in the workspace `path/work`."""
        work = path / "work"
        work.mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], **self.env(script, path / "home")}
        command = [program(self.name), *self.arguments, prompt]
        null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, env=env, cwd=work, stdin=null, stdout=pipe, stderr=null
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), 90)
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode or 0, out.decode()


CODEX = Program(
    "codex",
    ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    lambda script, home: script.codex_env(home),
    lambda file: tool("exec_command", cmd=f"echo hi > {file}; echo wrote"),
)
GEMINI = Program(
    "gemini",
    ("-m", "gemini-2.5-flash", "--skip-trust", "--yolo", "-o", "stream-json", "-p"),
    lambda script, home: script.gemini_env(home),
    lambda file: tool("write_file", file_path=str(file), content="hi"),
)
OPENCODE = Program(
    "opencode",
    ("run", "--format", "json"),
    lambda script, home: script.opencode_env(home),
    lambda file: tool("write", filePath=str(file), content="hi"),
)
PROGRAMS = pytest.mark.parametrize("given", [CODEX, GEMINI, OPENCODE], ids=lambda given: given.name)


@PROGRAMS
async def test_a_tool_call_writes_a_file_and_usage_is_the_scripts(given: Program, tmp_path: Path) -> None:
    file = tmp_path / "work" / "made"
    async with ScriptedModel() as model:
        script = model.script(
            "a",
            answer(think("hm"), say("first"), given.writes(file), usage=Usage(input=100, output=20)),
            answer(say("it is done", chunks=3), usage=Usage(input=11, output=7, cache_read=5)),
        )
        code, out = await given.run(script, tmp_path, "make a file")
        assert code == 0
        assert file.read_text().strip() == "hi"
        assert [r.outcome for r in script.requests] == ["answered", "answered"]
        assert script.requests[0].saw("make a file")
        assert script.requests[1].saw("rote")  # wrote, or Wrote file successfully
    counted = [event for event in map(json.loads, out.splitlines()) if isinstance(event, dict)]
    assert _tokens(counted) == (116, 27)


def _tokens(events: list[dict[str, Any]]) -> tuple[int, int]:
    """Input (the cache's included) and output, as the program's own last word has them."""
    if usage := [e["usage"] for e in events if e.get("type") == "turn.completed"]:
        return usage[-1]["input_tokens"], usage[-1]["output_tokens"]
    if stats := [e["stats"] for e in events if e.get("type") == "result"]:
        return stats[-1]["input_tokens"], stats[-1]["output_tokens"]
    steps = [e["part"]["tokens"] for e in events if e.get("type") == "step_finish"]
    return sum(t["input"] + t["cache"]["read"] for t in steps), sum(t["output"] for t in steps)


@pytest.mark.exhaustive
@PROGRAMS
async def test_a_held_stream_goes_on_when_it_is_released(given: Program, tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", hold("before", " after"))
        running = asyncio.create_task(given.run(script, tmp_path, "go"))
        await script.wait_held()
        assert not running.done()
        await script.release()
        code, out = await running
        assert code == 0
        assert "after" in out


@pytest.mark.exhaustive
@PROGRAMS
async def test_a_refused_key_ends_the_run(given: Program, tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", fail(401, "no such key"))
        code, _ = await given.run(script, tmp_path, "go")
        assert code != 0
        assert [r.outcome for r in script.requests] == ["failed"]


@pytest.mark.exhaustive
@PROGRAMS
async def test_no_program_asks_again_once_the_script_has_run_out(given: Program, tmp_path: Path) -> None:
    program(given.name)  # or the test is skipped, before there is a server to close
    model = ScriptedModel()
    await model.start()
    script = model.script("a")
    code, _ = await given.run(script, tmp_path, "go")
    assert code != 0
    assert len(script.unexpected) == 1
    with pytest.raises(AssertionError, match=r"ran out at request 1, which ended with: .*go"):
        await model.close()


@pytest.mark.exhaustive
async def test_a_cut_stream_is_asked_for_again_by_opencode(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", cut("ha"), say("whole"))
        code, out = await OPENCODE.run(script, tmp_path, "go")
        assert code == 0
        assert "whole" in out
        assert [r.outcome for r in script.requests] == ["cut", "answered"]


@pytest.mark.exhaustive
async def test_titles_of_opencode_take_no_step(tmp_path: Path) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", say("the step"))
        code, _ = await OPENCODE.run(script, tmp_path, "go")
        assert code == 0
        assert [r.model for r in script.side_requests] == ["mock-small"]
        assert len(script.requests) == 1


async def test_classifiers_and_web_searches_of_gemini_take_no_step(tmp_path: Path) -> None:
    auto = Program("gemini", GEMINI.arguments[2:], GEMINI.env, GEMINI.writes)  # without -m it has a model choose one
    async with ScriptedModel() as model:
        script = model.script("a", tool("google_web_search", query="cats"), say("found"))
        code, _ = await auto.run(script, tmp_path, "search")
        assert code == 0
        assert len(script.requests) == 2
        assert any(r.saw("cats") for r in script.side_requests)
        assert any(r.saw("search") for r in script.side_requests)


async def test_structured_output_of_codex_is_its_last_text(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    asks = Program("codex", (*CODEX.arguments, "--output-schema", str(file)), CODEX.env, CODEX.writes)
    async with ScriptedModel() as model:
        script = model.script("a", structured({"answer": 42}))
        code, out = await asks.run(script, tmp_path, "answer")
        assert code == 0
        assert script.requests[0].body["text"]["format"]["schema"] == schema
    assert json.dumps({"answer": 42}) in [
        e["item"].get("text") for e in map(json.loads, out.splitlines()) if "item" in e
    ]


OFFERS: dict[str, dict[str, Any]] = {
    "v1/messages": {"max_tokens": 9, "tools": [{"name": "T", "input_schema": {}}]},
    "v1/chat/completions": {"tools": [{"type": "function", "function": {"name": "T"}}]},
    "v1/responses": {"tools": [{"type": "function", "name": "T"}]},
    "v1beta/models/m:generateContent": {"tools": [{"functionDeclarations": [{"name": "T"}]}]},
}


@pytest.mark.parametrize("path", OFFERS)
async def test_each_dialect_answers_whole_where_nothing_is_streamed(path: str) -> None:
    async with ScriptedModel() as model:
        script = model.script("a", answer(think("hm"), say("yes", chunks=2), tool("T", x="y")), fail(429, "slow down"))
        whole = await asyncio.to_thread(_post, f"{script.url}/{path}", OFFERS[path])
        assert all(text in json.dumps(whole) for text in ("hm", "yes", "T", "y"))
        assert script.requests[0].tools == ["T"]
        with pytest.raises(urllib.error.HTTPError, match="429") as caught:
            await asyncio.to_thread(_post, f"{script.url}/{path}", OFFERS[path])
        assert json.loads(caught.value.read())["error"]["message"] == "slow down"


async def test_tokens_are_counted_for_gemini_without_a_step() -> None:
    async with ScriptedModel() as model:
        script = model.script("a")
        counted = await asyncio.to_thread(_post, f"{script.url}/v1beta/models/m:countTokens", {"contents": []})
        assert counted == {"totalTokens": 100}


def _post(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())
