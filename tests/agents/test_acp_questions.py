"""What a person is asked by an agent that speaks ACP, whatever the agent makes of the protocol: all of it, and once."""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from activities.agents.acp.agent import AcpAgent
from activities.agents.acp.snapshot import MAX_ASKED
from tests.agents.stage import Stage, deliver, message, staged, word
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

OFTEN = "def offered(): return [option('allow_once'), option('reject_once')]\n"
PROGRAM = """
import json, sys

def tell(frame):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\\n")
    sys.stdout.flush()

def option(kind):
    return {"optionId": kind, "name": kind, "kind": kind}

def ask(ident, call="c", **fields):
    params = {"sessionId": "s", "toolCall": {"toolCallId": call, **fields}, "options": offered()}
    tell({"id": ident, "method": "session/request_permission", "params": params})

def update(what, **fields):
    tell({"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": what, **fields}}})

def say(text):
    update("agent_message_chunk", content={"type": "text", "text": text})

def end():
    tell({"id": prompts[-1], "result": {"stopReason": "end_turn"}})

answers, prompts = [], []
for line in sys.stdin:
    frame = json.loads(line)
    method = frame.get("method")
    if method == "initialize":
        tell({"id": frame["id"], "result": {"protocolVersion": 1, "agentCapabilities": {}}})
    elif method == "session/new":
        tell({"id": frame["id"], "result": {"sessionId": "s"}})
    elif method == "session/prompt":
        prompts.append(frame["id"])
        if len(prompts) == 1:
            begin()
        else:
            say("told: " + frame["params"]["prompt"][-1]["text"])
            end()
    elif method == "session/cancel":
        tell({"id": prompts[-1], "result": {"stopReason": "cancelled"}})
    elif method is None:
        answers.append(frame["result"]["outcome"])
        answered(answers[-1])
"""


def acp(directory: Path, behaviour: str, offered: str = OFTEN, **fields: Any) -> AbstractAsyncContextManager[Stage]:
    """An agent that does `begin()` at its prompt, and `answered(outcome)` at each answer."""
    program = directory / "program.py"
    program.write_text(offered + behaviour + PROGRAM, encoding="utf-8")
    request = {
        "agent": "acp",
        "command": [sys.executable, str(program)],
        "prompt": "x",
        "permissions": {"mode": "ask"},
        **fields,
    }
    return staged(directory, AcpAgent(), {}, request)


SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "the content of a file alone": (
        (
            "ask(0, kind='edit', title='Writing to a.sh', status='pending',"
            " content=[{'type': 'diff', 'path': '/w/a.sh', 'oldText': '', 'newText': 'rm -r ~'}])"
        ),
        {"title": "Writing to a.sh", "changes": [{"path": "/w/a.sh", "old": "", "new": "rm -r ~"}]},
    ),
    "a description and places": (
        (
            "ask(0, kind='execute', content=[{'type': 'content', 'content': {'type': 'text', 'text': 'rm -r ~'}}],"
            " locations=[{'path': '/w/a'}])"
        ),
        {"paths": ["/w/a"], "content": "rm -r ~"},
    ),
    "an input that has the whole change": (
        (
            "ask(0, kind='edit', rawInput={'path': 'a', 'text': 'rm -r ~'},"
            " content=[{'type': 'diff', 'path': 'a', 'newText': 'rm -r ~'}])"
        ),
        {"path": "a", "text": "rm -r ~"},
    ),
    "what was told before": (
        (
            "update('tool_call', toolCallId='c', kind='execute', title='Shell', rawInput={'command': 'rm -r ~'},"
            " status='in_progress'); ask(0)"
        ),
        {"title": "Shell", "command": "rm -r ~"},
    ),
}


@pytest.mark.parametrize(("asks", "shown"), SHOWN.values(), ids=SHOWN)
async def test_a_person_sees_what_is_to_be_done(tmp_path: Path, asks: str, shown: dict[str, Any]) -> None:
    async with acp(tmp_path, f"def begin(): {asks}\ndef answered(outcome): end()\n") as stage:
        session, task = stage.start()
        (asked,) = await until(lambda: stage.listener.asks)
        assert asked.approval.input == shown
        assert asked.approval.tool in ("edit", "execute")
        await deliver(session, word(asked.approval.id, "deny", asked.approval.tool))
        await task
        (event,) = stage.said("permission", state="asked")
        assert (event.input, event.tool) == (shown, asked.approval.tool)


async def test_what_a_call_puts_out_is_not_its_input(tmp_path: Path) -> None:
    put_out = "[{'type': 'content', 'content': {'type': 'text', 'text': 'output'}}]"
    begin = f"""
def begin():
    update('tool_call_update', toolCallId='c', kind='execute', status='completed', content={put_out})
    end()
"""
    async with acp(tmp_path, begin) as stage:
        await stage.play()
        (used,), (result,) = stage.said("tool_use"), stage.said("tool_result")
    assert (used.input, result.text) == ({}, "output")


async def test_more_questions_than_anybody_is_asked_are_a_failure_and_no_wait(tmp_path: Path) -> None:
    begin = f"def begin():\n    for number in range({MAX_ASKED + 1}): ask(number, call=str(number), kind='execute')\n"
    async with acp(tmp_path, f"{begin}def answered(outcome): pass\n") as stage:
        outcome = await stage.play()
    assert outcome.status == "failed"
    assert f"more than {MAX_ASKED} things" in (outcome.message or "")


async def test_a_request_may_have_the_id_of_one_that_was_answered(tmp_path: Path) -> None:
    behaviour = """
def begin(): ask(7, call="c1", kind="execute", title="ls")
def answered(outcome):
    if len(answers) == 1: ask(7, call="c2", kind="execute", title="rm")
    else: say(outcome["optionId"]); end()
"""
    async with acp(tmp_path, behaviour) as stage:
        session, task = stage.start()
        (first,) = await until(lambda: stage.listener.asks)
        await deliver(session, word(first.approval.id, "allow", "execute"))
        second = (await until(lambda: stage.listener.asks[1:]))[0]
        await stage.detach()
        session, task = stage.start()
        again = (await until(lambda: stage.listener.asks[2:]))[0]
        assert again.approval.id == second.approval.id != first.approval.id
        await deliver(session, word(first.approval.id, "allow", "execute"))
        await deliver(session, word(second.approval.id, "deny", "execute"))
        assert (await task).text == "reject_once"


async def test_a_question_about_a_call_that_is_over_is_taken_back(tmp_path: Path) -> None:
    behaviour = """
def begin():
    ask(0, kind="execute", title="ls")
    update("tool_call_update", toolCallId="c", status="failed")
def answered(outcome): say(outcome["outcome"]); end()
"""
    async with acp(tmp_path, behaviour) as stage:
        outcome = await stage.play()
        assert [event.state for event in stage.said("permission")] == ["asked", "withdrawn"]
        assert [each.withdrawn for each in stage.listener.asks] in ([], [False, True])
    assert outcome.text == "cancelled"


async def test_a_word_on_the_tool_answers_all_that_wait_and_nobody_is_asked_any_more(tmp_path: Path) -> None:
    behaviour = """
def begin():
    for number in range(3): ask(number, call=str(number), kind="execute")
def answered(outcome):
    if len(answers) == 3: end()
"""
    async with acp(tmp_path, behaviour) as stage:
        session, task = stage.start()
        asks = await until(lambda: stage.listener.asks if len(stage.listener.asks) == 3 else None)
        ids = [each.approval.id for each in asks]
        await deliver(session, word(ids[0], "allow", "execute", remember=True))
        await task
        assert [event.state for event in stage.said("permission")][3:] == ["allowed"] * 3
        told = [each.approval.id for each in stage.listener.asks if each.withdrawn]
    assert told == ids[1:]


async def test_what_goes_with_a_denial_is_told(tmp_path: Path) -> None:
    behaviour = """
def begin(): ask(0, kind="execute")
def answered(outcome): say(outcome["optionId"]); end()
"""
    async with acp(tmp_path, behaviour) as stage:
        session, task = stage.start()
        (asked,) = await until(lambda: stage.listener.asks)
        await deliver(session, word(asked.approval.id, "deny", "execute", message="use the other file"))
        outcome = await task
        assert stage.said("message", role="user", text="use the other file")
    assert outcome.text == "told: use the other file"


async def test_words_of_a_denial_hold_up_no_other_answer(tmp_path: Path) -> None:
    """The agent goes on once all that it asks is answered, and reads the words then."""
    behaviour = """
def begin():
    for number in range(3): ask(number, call=str(number), kind="execute")
def answered(outcome):
    if len(answers) == 3: say("on it"); end()
"""
    async with acp(tmp_path, behaviour) as stage:
        session, task = stage.start()
        asks = await until(lambda: stage.listener.asks if len(stage.listener.asks) == 3 else None)
        async with asyncio.timeout(10):
            for number, each in enumerate(asks):
                await deliver(session, word(each.approval.id, "deny", "execute", message=f"use file {number}"))
            await task
        told = [event.text for event in stage.said("message", role="user")]
    assert told == ["x", "use file 0", "use file 1", "use file 2"]


async def test_an_interrupt_makes_words_of_a_denial_pointless(tmp_path: Path) -> None:
    behaviour = """
def begin(): ask(0, kind="execute")
def answered(outcome): pass
"""
    async with acp(tmp_path, behaviour) as stage:
        session, _task = stage.start()
        (asked,) = await until(lambda: stage.listener.asks)
        async with asyncio.timeout(10):
            await deliver(session, word(asked.approval.id, "deny", "execute", message="use the other file"))
            await deliver(session, message("interrupt"))
            await until(lambda: stage.said("progress", text="the turn was interrupted"))
            await deliver(session, message("interrupt", "what now?", "m-2"))
            await until(lambda: stage.said("message", role="user", text="what now?"))
        assert not stage.said("message", role="user", text="use the other file")


async def test_a_check_of_the_answer_that_fails_ends_the_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent says nothing more: nothing else would show it."""

    async def no_process(*_: object) -> None:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr("activities.running.controller.mismatch", no_process)
    begin = "def begin(): say('{}'); end()\ndef answered(outcome): pass\n"
    async with acp(tmp_path, begin, output_schema={"type": "object"}) as stage:
        _session, task = stage.start()
        with pytest.raises(OSError, match="temporarily"):
            async with asyncio.timeout(20):
                await task


@pytest.mark.parametrize(("remember", "chosen"), [(False, "cancelled"), (True, "selected")])
async def test_once_is_not_for_good(tmp_path: Path, remember: bool, chosen: str) -> None:  # noqa: FBT001
    """An agent that asks no more after a yes gets one where that was meant."""
    behaviour = """
def begin(): ask(0, kind="execute")
def answered(outcome): say(outcome["outcome"]); end()
"""
    offered = "def offered(): return [option('allow_always'), option('reject_once')]\n"
    async with acp(tmp_path, behaviour, offered) as stage:
        session, task = stage.start()
        (asked,) = await until(lambda: stage.listener.asks)
        await deliver(session, word(asked.approval.id, "allow", "execute", remember=remember))
        assert (await task).text == chosen
