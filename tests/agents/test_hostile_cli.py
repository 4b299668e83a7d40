"""A program in Claude Code's place that is confused or hostile: the run still ends, in order, with the right error."""

import json
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from activities.agents.claude.agent import ClaudeAgent
from activities.agents.claude.snapshot import MAX_ASKED
from steersman.contracts.errors import ErrorType
from tests.agents.stage import Stage, deliver, message, staged, word
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

SESSION = "0c0ffee0-0000-4000-8000-000000000002"
INIT = {"type": "system", "subtype": "init", "session_id": SESSION, "model": "m", "tools": []}
RUNNING = {"type": "system", "subtype": "session_state_changed", "state": "running"}
IDLE = {"type": "system", "subtype": "session_state_changed", "state": "idle"}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "the answer",
    "terminal_reason": "completed",
}

PROGRAM = """#!{python}
import json, os, sys, time
first = json.loads(sys.stdin.readline())
def tell(frame):
    sys.stdout.write((frame if isinstance(frame, str) else json.dumps(frame)) + "\\n")
    sys.stdout.flush()
for state in ("queued", "started"):
    tell({{"type": "command_lifecycle", "command_uuid": first["uuid"], "state": state}})
for line in open({script!r}, encoding="utf-8"):
    tell(line.rstrip("\\n"))
{then}
"""
ANSWER = """
def answer(line):
    frame = json.loads(line)
    if frame["type"] == "control_request":
        told = {"subtype": "success", "request_id": frame["request_id"], "response": {}}
        tell({"type": "control_response", "response": told})
    return frame
"""
FINISH = 'tell({"type": "command_lifecycle", "command_uuid": first["uuid"], "state": "completed"})\n'
STAY = f"{ANSWER}\nfor line in sys.stdin: answer(line)"
END = f"{FINISH}tell({json.dumps(IDLE)})\n{STAY}"
ANSWERED = f"""{ANSWER}
for line in sys.stdin:
    frame = answer(line)
    if frame["type"] == "control_response" and frame["response"]["request_id"] == "r-1":
        break
tell({{"type": "result", "is_error": False, "result": json.dumps(frame["response"]["response"])}})
"""


def cli(directory: Path, *frames: object, then: str = END, **fields: Any) -> AbstractAsyncContextManager[Stage]:
    """A program that says these frames (strings as they are) and goes on as `then` says."""
    script, program = directory / "frames", directory / "claude"
    lines = (frame if isinstance(frame, str) else json.dumps(frame) for frame in frames)
    script.write_text("".join(f"{each}\n" for each in lines), encoding="utf-8")
    program.write_text(PROGRAM.format(python=sys.executable, script=str(script), then=then))
    program.chmod(0o700)
    return staged(
        directory, ClaudeAgent({"IS_SANDBOX": "1"}, cli=str(program)), {}, {"agent": "claude", "prompt": "x", **fields}
    )


def asks(request_id: object = "r-1", **request: object) -> dict[str, Any]:
    """A request for permission."""
    body = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "t-1", **request}
    return {"type": "control_request", "request_id": request_id, "request": body}


MALFORMED: tuple[object, ...] = (
    {"type": "control_request"},
    {"type": "control_request", "request_id": None, "request": None},
    {"type": "control_request", "request_id": "x", "request": []},
    {"type": "control_request", "request_id": "x", "request": {"subtype": "telepathy"}},
    {"type": "control_request", "request_id": {"a": 1}, "request": {"subtype": "can_use_tool"}},
    {"type": "control_response"},
    {"type": "control_response", "response": None},
    {"type": "control_response", "response": {"request_id": "nobody", "subtype": "success"}},
    {"type": "control_cancel_request"},
    {"type": "control_cancel_request", "request_id": []},
    '{"type":"control_request"',
    '"control_request"',
    "\0\0\0",
)


async def test_the_stand_in_is_taken_for_claude(tmp_path: Path) -> None:
    async with cli(tmp_path, RUNNING, INIT, RESULT) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.text, outcome.session_id) == ("succeeded", "the answer", SESSION)


@pytest.mark.exhaustive
@pytest.mark.parametrize("frame", MALFORMED, ids=lambda frame: json.dumps(frame)[:60])
async def test_a_malformed_control_frame_does_not_deafen_the_session(tmp_path: Path, frame: object) -> None:
    """What comes after it is still heard: a question that is asked then is answered."""
    async with cli(
        tmp_path, RUNNING, INIT, frame, asks(), then=ANSWERED + END, permissions={"mode": "ask"}, limits={"idle_s": 15}
    ) as stage:
        session, task = stage.start()
        found = await until(lambda: [each for each in stage.listener.asks if each.approval.tool_id == "t-1"], 10)
        await deliver(session, word(found[0].approval.id, "allow", "Bash"))
        outcome = await task
    assert outcome.status == "succeeded", outcome.message
    assert json.loads(outcome.text)["behavior"] == "allow"


async def test_the_next_process_may_use_the_ids_of_the_last_one(tmp_path: Path) -> None:
    """It dies with its answer, is resumed, and asks again: that is another question, and no older word answers it."""
    dies = f"{ANSWERED}\nif not os.path.exists('died'): open('died', 'w'); sys.exit(3)\n"
    mode = {"permissions": {"mode": "ask"}}
    async with cli(tmp_path, RUNNING, INIT, asks(), then=dies + END, **mode) as stage:
        session, task = stage.start()
        (first,) = await until(lambda: stage.listener.asks, 10)
        await deliver(session, word(first.approval.id, "allow", "Bash"))
        _, second = await until(lambda: stage.listener.asks if stage.listener.asks[1:] else None, 20)
        assert second.approval.tool_id == first.approval.tool_id == "t-1"
        assert second.approval.id != first.approval.id
        await deliver(session, word(first.approval.id, "allow", "Bash"))
        await deliver(session, word(second.approval.id, "deny", "Bash"))
        outcome = await task
    assert (outcome.status, outcome.attempts) == ("succeeded", 2), outcome.message
    assert json.loads(outcome.text)["behavior"] == "deny"
    states = [(event.id, event.state) for event in stage.said("permission")]
    one, other = first.approval.id, second.approval.id
    assert states == [(one, "asked"), (one, "allowed"), (other, "asked"), (other, "denied")]


async def test_more_questions_than_anybody_is_asked_are_a_failure_and_no_wait(tmp_path: Path) -> None:
    """A worker that takes over in the middle knows nothing of the one that is too many."""
    many = [asks(f"q-{number}", tool_use_id="call_0") for number in range(MAX_ASKED + 1)]
    async with cli(tmp_path, RUNNING, INIT, *many, then=STAY, permissions={"mode": "ask"}) as stage:
        outcome = await stage.play()
    assert outcome.status == "failed"
    assert f"more than {MAX_ASKED} things at once" in (outcome.message or "")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("frame", MALFORMED[:5], ids=lambda frame: json.dumps(frame)[:60])
async def test_a_request_that_nobody_can_answer_is_no_wait_for_a_person(tmp_path: Path, frame: object) -> None:
    """The agent is silent and no approval is open: limits.idle_s ends it."""
    async with cli(tmp_path, RUNNING, INIT, frame, then=STAY, limits={"idle_s": 1.5}) as stage:
        outcome = await stage.play()
    assert outcome.error == ErrorType.RUN_TIMED_OUT, outcome.message


@pytest.mark.parametrize("mode", ["accept_edits", "full"])
async def test_a_question_of_any_shape_gets_an_answer(tmp_path: Path, mode: str) -> None:
    frame = asks(tool_name="", input={}, tool_use_id="")
    async with cli(tmp_path, RUNNING, INIT, frame, then=ANSWERED + END, permissions={"mode": mode}) as stage:
        outcome = await stage.play()
    assert json.loads(outcome.text)["behavior"] == ("allow" if mode == "full" else "deny")


async def test_two_results_and_frames_after_the_end(tmp_path: Path) -> None:
    again = {**RESULT, "result": "another answer"}
    async with cli(tmp_path, RUNNING, INIT, RESULT, again, IDLE, RUNNING, again, IDLE) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.text) == ("succeeded", "another answer")
    numbers = [event.seq for event in stage.events]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_it_ends_without_a_word(tmp_path: Path) -> None:
    async with cli(tmp_path, then="sys.exit(0)") as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_CRASHED)
    assert (outcome.facts["exit_code"], outcome.facts["signal"]) == (0, None)


async def test_it_ends_with_garbage_and_an_exit_code(tmp_path: Path) -> None:
    then = "print('no idea', file=sys.stderr)\nprint('what to do', file=sys.stderr)\nsys.exit(3)"
    async with cli(tmp_path, "garbage", "\x07\x1b[31m", "{}", "[]", then=then) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_CRASHED)
    assert outcome.facts["exit_code"] == 3
    assert outcome.facts["stderr"] == ["no idea", "what to do"]
    assert "what to do" in (outcome.message or "")


@pytest.mark.exhaustive
async def test_it_will_not_leave_when_it_is_done(tmp_path: Path) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    then = f"{deaf}{END}\ntime.sleep(600)"
    async with cli(tmp_path, RUNNING, INIT, RESULT, then=then) as stage:
        outcome = await stage.play()
        assert not stage.alive()
    assert (outcome.status, outcome.text) == ("succeeded", "the answer")


async def test_it_never_acknowledges_a_message(tmp_path: Path) -> None:
    async with cli(tmp_path, RUNNING, INIT, then=STAY) as stage:
        session, task = stage.start()
        await stage.wait_for("init")
        parcel = message("steer", "hello").model_copy(update={"patience_s": 0.2})
        delivered = await deliver(session, parcel)
        assert [each.state for each in delivered.messages] in ([], ["delivered"])
        await session.stop("cancelled")
        assert (await task).status == "stopped"


@pytest.mark.exhaustive
async def test_a_flood_is_read_in_order(tmp_path: Path) -> None:
    flood = [
        {"type": "assistant", "message": {"id": str(n), "content": [{"type": "text", "text": str(n)}]}}
        for n in range(5000)
    ]
    long = {"type": "assistant", "message": {"id": "long", "content": [{"type": "text", "text": "x" * 3_000_000}]}}
    async with cli(tmp_path, RUNNING, INIT, *flood, long, RESULT) as stage:
        outcome = await stage.play()
    assert outcome.status == "succeeded"
    texts = [event.text for event in stage.said("message")]
    assert texts[:5000] == [str(n) for n in range(5000)]
    assert [(len(event.text), event.truncated) for event in stage.said("message")[5000:5001]] == [(256 * 1024, True)]
    assert len(stage.listener.progress) <= 4
