"""Sessions that an agent of the protocol goes on with: what it tells again of them is of the past."""

import sys
from pathlib import Path

import pytest

from activities.agents.acp.agent import AcpAgent
from activities.agents.prompts import told_again
from activities.shim.client.journal import RecordParser
from tests.agents.stage import deliver, message, staged

pytestmark = [pytest.mark.integration, pytest.mark.linux]

PROGRAM = """
import json, sys, time

def tell(**frame):
    print(json.dumps({"jsonrpc": "2.0", **frame}), flush=True)

def say(text):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    tell(method="session/update", params={"sessionId": "s", "update": update})

loaded, refuses = False, len(sys.argv) > 1
for line in sys.stdin:
    frame = json.loads(line)
    method, ident = frame["method"], frame.get("id")
    if method == "initialize":
        tell(id=ident, result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
    elif method == "session/new":
        tell(id=ident, result={"sessionId": "s"})
    elif method == "session/load":
        if refuses:
            tell(id=ident, error={"code": -32603, "message": "no such session"})
            continue
        loaded = True
        tell(id=ident, result={})
        for part in range(5):
            time.sleep(0.02)
            say(f"of old {part}")
    elif method == "session/cancel":
        tell(id=prompt, result={"stopReason": "cancelled"})
    elif method == "session/prompt":
        prompt, told = ident, " ".join(each["text"] for each in frame["params"]["prompt"])
        say("told: " + told)
        holds = "was lost" not in told if "holds" in sys.argv else ident == "prompt"
        if loaded or refuses and not holds:
            tell(id=prompt, result={"stopReason": "end_turn"})
"""


def program(directory: Path, *arguments: str) -> list[str]:
    """The command of the agent."""
    path = directory / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return [sys.executable, str(path), *arguments]


async def test_what_is_told_again_while_the_agent_waits_for_a_person_is_of_no_turn(tmp_path: Path) -> None:
    """It was killed as it waited, and is told something as soon as it is back."""
    request = {"agent": "acp", "command": program(tmp_path), "prompt": "x"}
    async with staged(tmp_path, AcpAgent(), {}, request) as stage:
        session, task = stage.start()
        await stage.wait_for("message", role="assistant", text="told: x", delta=True)
        await deliver(session, message("interrupt"))
        await stage.kill()
        await stage.pid(2)
        await deliver(session, message("steer", "go on", "m-2"))
        outcome = await task
        said = [each.text for each in stage.said("message", role="assistant", delta=False)]
    assert (outcome.text, outcome.attempts) == ("told: go on", 2)
    assert said == ["told: x", "told: go on"]


async def test_a_process_that_lost_the_session_is_told_nothing(tmp_path: Path) -> None:
    """It is being stopped. What is said meanwhile is for the one that follows."""
    command = program(tmp_path, "refuses")
    request = {"agent": "acp", "command": command, "prompt": "x", "system_prompt": "be brief"}
    async with staged(tmp_path, AcpAgent(), {}, request) as stage:
        session, task = stage.start()
        await stage.wait_for("message", role="assistant", text="told: be brief x", delta=True)
        await deliver(session, message("interrupt"))
        await stage.kill()
        await stage.pid(2)
        await deliver(session, message("interrupt", "go on", "m-2"))
        outcome = await task
        written = RecordParser().feed((stage.directory.attempt(2) / "journal").read_bytes())
    assert [each.id for each in written if each.stream == "in"] == ["initialize", "session"]
    assert outcome.text == f"told: be brief {told_again(['x'])} go on"  # it waited, as the person had wished
    assert outcome.attempts == 3
    assert {each.id: each.state for each in outcome.messages}["m-2"] == "acknowledged"


async def test_one_that_lost_the_session_at_work_is_told_what_was_said_and_done(tmp_path: Path) -> None:
    """A message that the agent had is not lost with its session, and what was done need not be done again."""
    command = program(tmp_path, "refuses", "holds")
    async with staged(tmp_path, AcpAgent(), {}, {"agent": "acp", "command": command, "prompt": "build it"}) as stage:
        session, task = stage.start()
        await stage.wait_for("message", role="assistant", text="told: build it", delta=True)
        await deliver(session, message("interrupt", "with nails", "m-1"))
        await stage.wait_for("message", role="assistant", text="told: with nails", delta=True)
        await stage.kill()
        outcome = await task
        prompts = [each.text for each in stage.said("message", role="user")]
    assert outcome.attempts == 3
    assert prompts[:2] == ["build it", "with nails"]
    last = prompts[2]
    assert last.startswith("Your process ended unexpectedly, and the conversation was lost with it.")
    assert "in this order:\n- with nails\n" in last
    assert "The last words before:\ntold: build it\n" in last
    assert last.endswith("What you are asked:\n\nbuild it")
