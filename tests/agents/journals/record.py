"""Record journals of the real CLI against the scripted model: `python -m tests.agents.journals.record [NAME...]`.

With `--events` the events alone are derived anew from the journals that are there, when a change of them is meant.
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from activities.shim import client as shim
from steersman.contracts.activities import RunOutcome
from tests.agents.journals import HERE, Line, as_lines, journals, load, save, told
from tests.agents.kits import ClaudeKit, Staged
from tests.agents.stage import Stage, deliver, message, word
from tests.scripted_model import Hold, Say, ScriptedModel, Think, Tool, answer, fail, hold, say, structured, tool
from tests.support.processes import until

Act = Callable[[ClaudeKit, Stage, Any, "asyncio.Task[RunOutcome]"], Awaitable[None]]
NAP = "python3 -c 'import time; time.sleep(600)'"
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


async def nothing(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    """Only look on."""


async def steer(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    await kit.script.wait_held()
    await deliver(session, message("steer", "use tabs"))
    await kit.script.release()


async def interrupt_stream(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    await kit.script.wait_held()
    await deliver(session, message("interrupt", "make it short"))


async def interrupt_tool(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    await stage.wait_for("tool_use")
    await until(lambda: [line for line in stage.alive().values() if "time.sleep(600)" in line])
    await deliver(session, message("interrupt", "enough"))


async def interrupt_question(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    await until(lambda: stage.listener.asks)
    await deliver(session, message("interrupt", "leave it"))


async def end_in_tool(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    """A steer waits behind the tool when the run is ended."""
    await stage.wait_for("tool_use")
    await until(lambda: [line for line in stage.alive().values() if "time.sleep(600)" in line])
    await deliver(session, message("steer", "use tabs"))
    parcel = message("interrupt", name="m-2")
    ends = tuple(each.model_copy(update={"end": True}) for each in parcel.messages)
    await deliver(session, parcel.model_copy(update={"messages": ends}))


async def allow(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    (asked,) = await until(lambda: stage.listener.asks)
    await deliver(session, word(asked.approval.id, "allow", asked.approval.tool))


async def kill(kit: ClaudeKit, stage: Stage, session: Any, task: Any) -> None:
    await kit.script.wait_requests(2)
    await stage.wait_for("tool_result")
    await kit.script.wait_held()
    await stage.kill()


def scenarios(kit: ClaudeKit, workspace: Path) -> dict[str, tuple[Callable[[], Staged], Act]]:
    """Name -> what is staged and what happens then."""
    run, ask = kit.run, {"mode": "ask"}
    touch = tool("Bash", command="touch made-it")
    path = str(workspace / "file.txt")
    tools = answer(
        Think("hm"), Say("ü"), Tool("Write", {"file_path": path, "content": "a\n"}), Tool("Bash", {"command": "ls"})
    )
    edit = tool("Edit", file_path=path, old_string="a", new_string="b")
    todo = {"CLAUDE_CODE_ENABLE_TODO_TOOLS": "1", "CLAUDE_CODE_ENABLE_TASKS": "0"}
    plan = tool("TodoWrite", todos=[{"content": "one", "status": "in_progress", "activeForm": "doing"}])
    few = {"CLAUDE_CODE_MAX_RETRIES": "1"}
    plan_account = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-test"}
    used_up = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": "2000000000",
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    return {
        "simple": (lambda: run(say("hello", chunks=3)), nothing),
        "tools": (lambda: run(tools, edit, tool("Bash", command="exit 3"), say("done")), nothing),
        "plan": (lambda: run(plan, say("done"), env=todo), nothing),
        "steer_mid_turn": (lambda: run(answer(Say("a"), Hold(), Tool("Bash", {"command": "true"})), say("b")), steer),
        "steer_after_last_boundary": (lambda: run(hold("a", "b"), say("c")), steer),
        "interrupt_in_stream": (lambda: run(hold("long"), say("short")), interrupt_stream),
        "interrupt_in_tool": (lambda: run(tool("Bash", command=NAP, timeout=600_000), say("ok")), interrupt_tool),
        "interrupt_with_question": (lambda: run(touch, say("ok"), permissions=ask), interrupt_question),
        "ended_in_tool": (
            lambda: run(answer(Say("hm"), Tool("Bash", {"command": NAP, "timeout": 600_000}))),
            end_in_tool,
        ),
        "permission_allowed": (lambda: run(touch, say("ok"), permissions=ask), allow),
        "error_401": (lambda: run(*[fail(401, "no")] * 3), nothing),
        "error_500": (lambda: run(*[fail(500, "no")] * 3, env=few), nothing),
        "rate_limited": (lambda: run(fail(429, "no", headers=used_up), env=plan_account), nothing),
        "retries_too_long": (lambda: run(fail(429, "no", retry_after_s=45)), nothing),
        "structured": (lambda: run(structured({"answer": 42}), output_schema=SCHEMA), nothing),
        "killed": (lambda: run(tool("Bash", command="true"), hold("x"), say("y")), kill),
        "unknown_session": (lambda: run(session="00000000-0000-4000-8000-000000000000"), nothing),
    }


async def main(wanted: list[str]) -> None:
    """Record what is wanted, or every scenario."""
    for name in wanted or NAMES:
        with tempfile.TemporaryDirectory() as directory:
            async with ScriptedModel() as model:
                kit = ClaudeKit(Path(directory), model)
                staged, act = scenarios(kit, Path(directory, "workspace"))[name]
                async with staged() as stage:
                    session, task = stage.start()
                    await act(kit, stage, session, task)
                    outcome = await task
                    journal = stage.directory.attempt(1) / "journal"
                    records = shim.RecordParser().feed(journal.read_bytes())
        save(HERE / f"{name}.jsonl", [_anonymous(record, directory) for record in records])
        sys.stdout.write(f"{name}: {outcome.status}, {len(records)} records\n")


def _anonymous(record: Any, directory: str) -> Line:
    """Without the places of the machine on which it was recorded."""
    data: bytes = record.data
    for place, name in ((directory, b"/run"), (sys.prefix, b"/venv"), (str(Path.home()), b"/home/user")):
        for spelling in (place, place.replace("/", "-"), place.replace("/", "-").replace("_", "-")):
            data = data.replace(spelling.encode(), name if "/" in spelling else name.replace(b"/", b"-"))
    data = _slim(data)
    data = re.sub(rb"127\.0\.0\.1:\d+", b"127.0.0.1:1", data)
    return replace(Line(record.seq, record.time_ms, record.stream, b"", record.id), data=data)


def _slim(data: bytes) -> bytes:
    """Without the long lists of commands and models in the answer to initialize, of which nothing is read."""
    if b'"control_response"' not in data or b'"commands"' not in data:
        return data
    frame = json.loads(data)
    answer: dict[str, Any] = frame["response"]["response"]
    answer.update({name: [] for name, value in answer.items() if isinstance(value, list)})
    return json.dumps(frame).encode()


NAMES = (
    "simple",
    "tools",
    "plan",
    "steer_mid_turn",
    "steer_after_last_boundary",
    "interrupt_in_stream",
    "interrupt_in_tool",
    "interrupt_with_question",
    "ended_in_tool",
    "permission_allowed",
    "error_401",
    "error_500",
    "rate_limited",
    "retries_too_long",
    "structured",
    "killed",
    "unknown_session",
)

if __name__ == "__main__":
    if "--events" not in sys.argv[1:]:
        asyncio.run(main(sys.argv[1:]))
    for path in journals():
        path.with_suffix(".events.jsonl").write_text(as_lines(told(load(path))), encoding="utf-8")
