"""Any program as an agent: its output, its answer by a schema, the messages that it is given on its stdin."""

import asyncio
import base64
import contextlib
import errno
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from activities.agents.process.options import message_line, prompt_input
from activities.agents.process.transcript import MAX_RESULT, ProcessTranscript
from activities.ports.agent import MAX_SNAPSHOT, MAX_STRUCTURED, ExitFact
from activities.ports.runtime import Record
from activities.untrusted_json import parse_value
from steersman.contracts.activities import OutgoingMessage, Settlement
from steersman.contracts.errors import ErrorType, InvalidRequest, WorkspaceError
from steersman.contracts.events import MAX_TEXT
from steersman.contracts.request import parse_request
from tests.agents.journals import Line
from tests.agents.kits import ProcessKit
from tests.agents.stage import Stage, deliver, message
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

ECHO = """
import sys
print("at work")
for line in iter(sys.stdin.readline, ""):
    print("read", repr(line))
    if "bye" in line:
        break
print("the end")
"""
"""Says what it reads, line by line, until it reads "bye"."""
DEAF = """
import os, time
os.close(0)
print("at work")
while not os.path.exists("go"): time.sleep(0.01)
"""
"""Closes its stdin and works on until there is a file `go`."""
LINES: dict[str, Any] = {"options": {"messages": "lines"}}
JSON: dict[str, Any] = {"options": {"messages": "json"}}
GONE = "the program has closed its stdin, or has ended"
OBJECT = {"type": "object", "required": ["a"]}


async def say(session: Any, name: str, text: str) -> Settlement:
    (settled,) = (await deliver(session, message("steer", text, name))).messages
    return settled


def read(stage: Stage) -> list[str]:
    """What the program has read, as it says."""
    said = [event.text for event in stage.said("message", role="assistant")]
    return [text.removeprefix("read ") for text in said if text.startswith("read ")]


def connections() -> int:
    """How many to shims this process has open."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since, or without a peer
            if str(each.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(each.name))) as opened:
                    found += str(opened.getpeername()).endswith("shim.sock")
    return found


# ---- output


@pytest.mark.exhaustive
async def test_a_process_that_says_ten_thousand_things_costs_little_history(process: ProcessKit) -> None:
    async with process.run("for number in range(10_000): print(number)") as stage:
        outcome = await stage.play()
    assert outcome.text.endswith("9999")
    assert [event.text for event in stage.said("message")] == [str(number) for number in range(10_000)]
    assert len(stage.listener.progress) <= 4


async def test_what_a_process_says_on_stderr_is_told_between_what_it_says_on_stdout(process: ProcessKit) -> None:
    program = "import sys; print('one', flush=True); print('two', file=sys.stderr, flush=True); print('x' * 200_000)"
    async with process.run(program) as stage:
        outcome = await stage.play()
    assert [event.text for event in stage.said("progress") if event.data == {"stream": "stderr"}] == ["two"]
    assert outcome.text.endswith("x")
    assert "two" not in outcome.text


async def test_a_process_reads_its_prompt(process: ProcessKit) -> None:
    async with process.run("import sys; print(sys.stdin.read().upper())", prompt="ü\nzwei") as stage:
        assert (await stage.play()).text == "Ü\nZWEI"


async def test_a_process_that_fails_says_how(process: ProcessKit) -> None:
    code = "import sys; print('out'); print('boom', file=sys.stderr); sys.exit(3)"
    async with process.run(code) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_CRASHED)
    assert outcome.facts == {"exit_code": 3, "signal": None, "stderr": ["boom"]}
    assert "boom" in (outcome.message or "")
    assert [event.text for event in stage.said("message")] == ["out"]


async def test_a_line_of_five_megabytes_is_cut_where_it_is_shown(process: ProcessKit) -> None:
    async with process.run("print('x' * 5_000_000); print('and on')", output_schema={}) as stage:
        outcome = await stage.play()
    assert [(len(event.text), event.truncated) for event in stage.said("message")] == [(MAX_TEXT, True), (6, False)]
    assert len(outcome.text) == MAX_RESULT
    assert outcome.text.endswith("x\nand on")
    assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)


# ---- messages


async def test_messages_are_lines_of_its_stdin_and_it_ends_by_itself(process: ProcessKit) -> None:
    async with process.run(ECHO, prompt="go on", **LINES) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="read 'go on\\n'")
        first = await say(session, "m-1", "ünd")
        assert first == Settlement(id="m-1", state="delivered")
        assert await say(session, "m-1", "ünd") == first, "the same id is the same message"
        await until(lambda: len(read(stage)) == 2)
        await say(session, "m-2", "bye")
        outcome = await task
    assert (outcome.status, outcome.text.splitlines()[-1]) == ("succeeded", "the end")
    assert read(stage) == ["'go on\\n'", "'ünd\\n'", "'bye\\n'"]
    assert [event.text for event in stage.said("message", role="user")] == ["ünd", "bye"]
    how = "the program has ended, and says of no message whether it read it"
    assert outcome.messages == tuple(Settlement(id=each, state="unverified", how=how) for each in ("m-1", "m-2"))


async def test_a_process_that_lacks_descriptors_to_be_started_is_no_refusal(
    process: ProcessKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leads the run tries again: see run_failures."""

    async def lacking(*_: object) -> None:
        raise WorkspaceError("workspace: cannot be read") from OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("activities.running.controller.prepare_launch", lacking)
        async with process.run("print('done')") as stage:
            with pytest.raises(WorkspaceError):
                await stage.play()
            patched.undo()
            assert (await stage.play()).text == "done"


async def test_who_is_silent_and_has_no_prompt_hears_a_message_all_the_same(process: ProcessKit) -> None:
    quiet = ECHO.replace('print("at work")\n', "")
    async with process.run(quiet, prompt=None, **LINES) as stage:
        session, task = stage.start()
        async with asyncio.timeout(20):
            assert (await say(session, "m-1", "bye")).state == "delivered"
            outcome = await task
    assert (outcome.status, read(stage)) == ("succeeded", ["'bye\\n'"])


@pytest.mark.parametrize("step_s", [3600, -3600])
async def test_a_clock_that_is_set_is_no_silence(
    process: ProcessKit, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    async with process.run(ECHO, limits={"idle_s": 60}, **LINES) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work")
        set_before = time.time
        monkeypatch.setattr(time, "time", lambda: set_before() + step_s)
        done, _ = await asyncio.wait([task], timeout=3)  # it is looked at once a second
        assert not done
        await say(session, "m-1", "bye")
        assert (await task).status == "succeeded"


async def test_a_clock_that_is_set_back_makes_no_silence_shorter(
    process: ProcessKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process.run(ECHO, limits={"idle_s": 3}, **LINES) as stage:
        _session, task = stage.start()
        await stage.wait_for("message", text="at work")
        set_before = time.time
        monkeypatch.setattr(time, "time", lambda: set_before() - 3600)
        async with asyncio.timeout(20):
            assert (await task).message == "limits.idle_s: the agent said nothing for 3 s"


async def test_a_message_of_several_lines_is_one_line_of_json_or_refused(process: ProcessKit) -> None:
    text = "one\ntwo\r\u2028three"
    async with process.run(ECHO, prompt="a\nb", **JSON) as stage:
        session, task = stage.start()
        assert (await say(session, "m-1", text)).state == "delivered"
        await say(session, "m-2", "bye")
        await task
    found = [json.loads(eval(line)) for line in read(stage)]
    assert found == [
        {"type": "prompt", "text": "a\nb"},
        {"type": "message", "id": "m-1", "text": text},
        {"type": "message", "id": "m-2", "text": "bye"},
    ]
    assert [event.text for event in stage.said("message", role="user")] == [text, "bye"]

    async with process.run(ECHO, **LINES) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work")
        for end in ("one\ntwo", "one\rtwo", "one\n"):
            refused = await say(session, "m-1", end)
            assert (refused.state, "line end" in (refused.how or "")) == ("rejected", True)
        await say(session, "m-3", "bye")
        await task
    assert read(stage) == ["'bye\\n'"]


async def test_a_worker_that_takes_over_writes_no_message_twice(process: ProcessKit) -> None:
    async with process.run(ECHO, **LINES) as stage:
        older, _ = stage.start()
        await stage.wait_for("message", text="at work")
        assert (await say(older, "m-1", "first")).state == "delivered"
        await stage.detach()
        newer, task = stage.start()
        assert (await say(newer, "m-1", "first")).state == "delivered"
        assert (await say(newer, "m-2", "bye")).state == "delivered"
        outcome = await task
        assert (outcome.status, outcome.attempts) == ("succeeded", 1)
        assert read(stage) == ["'first\\n'", "'bye\\n'"]
        written = stage.directory.events.read_bytes()
        stage.directory.events.unlink()
        again = await stage.play()
        assert stage.directory.events.read_bytes() == written, "every worker that reads it makes the same of it"
        assert again.messages == outcome.messages


async def test_a_worker_that_is_cut_off_at_any_moment_leaves_no_connection(process: ProcessKit) -> None:
    async with process.run(ECHO, **LINES) as stage:
        stage.start()
        await stage.wait_for("message", text="at work")
        await stage.detach()
        before = connections()
        for moment in range(60):
            stage.start()
            await asyncio.sleep(moment / 4000)
            await stage.detach()
            await until(lambda: connections() <= before)
        session, task = stage.start()
        await say(session, "m-1", "bye")
        assert (await task).status == "succeeded"


async def test_a_message_that_was_written_by_a_worker_that_was_cut_off_is_known(process: ProcessKit) -> None:
    """Its journal has the message, though nobody was there to hear that."""
    async with process.run(ECHO, **LINES) as stage:
        stage.start()
        await stage.wait_for("message", text="at work")
        await stage.detach()
        channel = await stage.runtime.open(stage.key, 1, 7, None)
        assert await channel.write("message-m-1", "first\n")
        await channel.close()
        stage._epoch = 10  # noqa: SLF001 - newer than that worker
        newer, task = stage.start()
        assert (await say(newer, "m-1", "first")).state == "delivered"
        await say(newer, "m-2", "bye")
        await task
    assert read(stage) == ["'first\\n'", "'bye\\n'"]


async def test_a_program_that_has_closed_its_stdin_is_told_nothing(process: ProcessKit) -> None:
    async with process.run(DEAF, **LINES) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work")
        # That it has closed it shows by writing to it.
        assert await say(session, "m-1", "hello") == Settlement(id="m-1", state="delivered")
        assert await say(session, "m-2", "hello") == Settlement(id="m-2", state="too_late", how=GONE)
        await stage.detach()
        newer, task = stage.start()
        assert await say(newer, "m-3", "hello") == Settlement(id="m-3", state="too_late", how=GONE)
        await process.go_on(stage)
        outcome = await task
    assert outcome.status == "succeeded"
    assert [(each.id, each.state) for each in outcome.messages] == [
        ("m-1", "unverified"),
        ("m-3", "too_late"),
    ], "m-2 was settled with the worker before"


async def test_an_interrupt_is_refused_and_never_faked(process: ProcessKit) -> None:
    async with process.run(ECHO, **LINES) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work")
        (settled,) = (await deliver(session, message("interrupt", "turn round"))).messages
        assert settled.state == "rejected"
        assert settled.how == 'agent "process" cannot interrupt: stop the run, or wait for its end'
        await say(session, "m-2", "bye")
        await task
    assert read(stage) == ["'bye\\n'"]


async def test_a_program_that_waits_for_messages_is_silent_by_its_own_turn(process: ProcessKit) -> None:
    async with process.run(ECHO, limits={"idle_s": 0.5}, **LINES) as stage:
        outcome = await stage.play()
    assert outcome.message == "limits.idle_s: the agent said nothing for 0.5 s"


async def test_a_stop_ends_a_program_that_waits_for_messages(process: ProcessKit) -> None:
    async with process.run(ECHO, **LINES) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work")
        report = await session.stop("cancelled")
        assert (report.outcome, (await task).status) == ("stopped", "stopped")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"messages": "words"}, "options.messages: must be 'lines' or 'json'"),
        ({"messages": True}, "options.messages"),
        ({"messages": "lines", "colour": "red"}, "options.colour"),
    ],
)
async def test_options_that_are_wrong_are_refused_by_name(
    process: ProcessKit, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told):
        async with process.run(ECHO, options=options):
            pass


@pytest.mark.parametrize(
    ("options", "prompt", "found"),
    [
        ({}, "p", "p"),
        ({"messages": None}, "p", "p"),
        ({"messages": "lines"}, "p", "p\n"),
        ({"messages": "lines"}, "p\n", "p\n"),
        ({"messages": "lines"}, "", ""),
        ({"messages": "json"}, "p\nq", '{"type": "prompt", "text": "p\\nq"}\n'),
        ({"messages": "json"}, "", ""),
    ],
)
def test_the_prompt_is_whole_lines_where_messages_follow(options: dict[str, Any], prompt: str, found: str) -> None:
    request = {"agent": "process", "command": ["true"], "workspace": {"path": "/w"}}
    assert prompt_input(parse_request({**request, "options": options, "prompt": prompt})) == found


# ---- the answer


def printing(*lines: str) -> str:
    return "".join(f"print({line!r})\n" for line in lines)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (("working", '{"a": [1, "ü", null]}'), {"a": [1, "ü", None]}),
        (('{"a": 1}', "", "  ", "\t"), {"a": 1}),
        (('  {"a": "\\ud800"}',), {"a": "\N{REPLACEMENT CHARACTER}"}),
    ],
)
async def test_its_answer_is_the_last_line(process: ProcessKit, lines: tuple[str, ...], answer: Any) -> None:
    async with process.run(printing(*lines), output_schema=OBJECT) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.structured, outcome.error) == ("succeeded", answer, None)
    async with process.run(printing(*lines)) as stage:
        assert (await stage.play()).structured is None, "nobody asked for one"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (printing('{"a": 1}', "done"), "is no JSON (Expecting value: line 1 column 1 (char 0)): 'done'"),
        (printing('{"a": NaN}'), "is no JSON (NaN is no number of JSON): '{\"a\": NaN}'"),
        (printing('{"a": 1e999}'), "it has a number that is too large"),
        (printing("[" * 101 + "]" * 101), "it is nested too deeply"),
        ("print('[' * 100_000)", "it is nested too deeply"),
        ("print('x' * 1000)", f"'{'x' * 200}…'"),
        (f"print('\"' + 'x' * {MAX_STRUCTURED} + '\"')", f"has more than {MAX_STRUCTURED} bytes: '\"xxx"),
        ("print('x' * 20_000_000)", f"has more than {MAX_STRUCTURED} bytes"),
        (printing("[1]"), "the answer does not fit: [1] is not of type 'object'"),
        (printing("{}"), "the answer does not fit: 'a' is a required property"),
        (printing("null"), "the agent gave no structured answer"),
        ("pass", "the agent gave no structured answer"),
    ],
    ids=range(12),
)
async def test_what_is_no_answer_fails_the_run(process: ProcessKit, code: str, told: str) -> None:
    async with process.run(code, output_schema=OBJECT) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
    assert (outcome.message or "").startswith("output_schema: ")
    assert told in (outcome.message or "")
    assert len(outcome.message or "") < 1000


async def test_bytes_that_are_no_text_are_no_answer(process: ProcessKit) -> None:
    code = "import sys; sys.stdout.buffer.write(b'\"\\xff\"\\n')"
    async with process.run(code, output_schema={}) as stage:
        outcome = await stage.play()
    assert "is no JSON ('utf-8' codec can't decode byte 0xff" in (outcome.message or "")


async def test_a_program_that_fails_has_no_answer(process: ProcessKit) -> None:
    async with process.run("print('{\"a\": 1}'); raise SystemExit(1)", output_schema=OBJECT) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_CRASHED)


def test_numbers_of_any_length_that_json_has_are_read() -> None:
    assert parse_value(b"1" * 4000) == int("1" * 4000)
    with pytest.raises(ValueError, match="digits"):
        parse_value(b"1" * 5000)


# ---- snapshots

JOURNAL: list[Record] = [
    Line(1, 1000, "in", b"the prompt\n", "prompt"),
    Line(2, 1001, "out", b"at work"),
    Line(3, 1002, "in", b"first\n", "message-m-1"),
    Line(4, 1003, "err", b"oh"),
    Line(5, 1004, "in", b'{"type": "message", "id": "m-2", "text": "sec\\nond"}\n', "message-m-2"),
    Line(6, 1005, "in", b"again\n", "message-m-1"),
    Line(7, 1006, "out", b"\xff\xfe"),
    Line(8, 1007, "out", b'{"a": 1}'),
    Line(9, 1008, "out", b"  "),
    Line(10, 1009, "eof", b"", "-"),
    Line(11, 1010, "exit", b"{}"),
]


def fed(records: list[Record], found: ProcessTranscript) -> list[Any]:
    return [event for record in records for event in found.feed(record)]


def facts(found: ProcessTranscript) -> dict[str, Any]:
    error = found.verdict(ExitFact(code=0)).error
    return {
        "progress": vars(found.progress),
        "settlements": (found.settlements(), found.last_words()),
        "closed": found.stdin_closed,
        "wrote": [found.wrote(each) for each in ("m-1", "m-2", "m-3")],
        "error": error and error.message,
    }


@pytest.mark.parametrize("journal", [JOURNAL, JOURNAL[:7] + JOURNAL[8:]], ids=["answered", "no answer"])
def test_restored_after_any_record_all_that_follows_is_the_same(journal: list[Record]) -> None:
    for cut in range(len(journal)):
        plain, restored = (ProcessTranscript("x", structured=True) for _ in range(2))
        fed(journal[:cut], plain)
        restored.restore(plain.snapshot() or b"")
        assert facts(restored) == facts(plain), cut
        assert fed(journal[cut:], restored) == fed(journal[cut:], plain), cut
        assert facts(restored) == facts(plain), cut
        assert restored.progress.structured == ({"a": 1} if journal is JOURNAL else None)


def test_the_largest_state_has_a_snapshot() -> None:
    found = ProcessTranscript("x", structured=True)
    for number in range(5000):
        fed([Line(1, 0, "in", b"m\n", f"message-{number:0100}"), Line(2, 0, "in", b"", "message-no id")], found)
    fed([Line(3, 0, "out", ("\N{PILE OF POO}" * MAX_RESULT).encode()), Line(4, 0, "out", b"\xff" * 5_000_000)], found)
    snapshot = found.snapshot()
    assert snapshot is None or len(snapshot) <= MAX_SNAPSHOT
    fed([Line(5, 0, "out", b"x" * MAX_STRUCTURED)], found)
    again = ProcessTranscript("x", structured=True)
    again.restore(found.snapshot() or b"")
    assert facts(again) == facts(found)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"version": 3},
        {"begun": 1},
        {"text": 5},
        {"text": "x" * (MAX_RESULT + 1)},
        {"last_line": base64.b64encode(b"x" * (MAX_STRUCTURED + 2)).decode()},
        {"last_line": "no base 64"},
        {"last_line": "ü"},
        {"last_line": None},
        {"written": ["no id"]},
        {"written": [str(number) for number in range(4001)]},
        {"written": "m-1"},
        {"stdin_closed": "yes"},
        {"more": 1},
    ],
    ids=range(14),
)
def test_a_forged_snapshot_is_refused(change: dict[str, Any]) -> None:
    found = ProcessTranscript("x")
    fed(JOURNAL[:-1], found)
    taken = json.loads(found.snapshot() or b"")
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        ProcessTranscript("x").restore(json.dumps({**taken, **change}).encode())


def test_a_snapshot_of_before_is_refused_so_that_the_journal_is_read_anew() -> None:
    with pytest.raises(ValueError, match="ProcessSnapshot"):
        ProcessTranscript("x").restore(json.dumps([True, "text"]).encode())


async def test_a_worker_goes_on_from_a_snapshot_of_a_real_process(process: ProcessKit) -> None:
    """After megabytes, the messages and the last line among them."""
    code = ECHO.replace('print("the end")', "print('y' * 5_000_000)\nsys.stdin.readline()\nprint('{\"a\": 1}')")
    async with process.run(code, output_schema=OBJECT, **LINES) as stage:
        older, _ = stage.start()
        await stage.wait_for("message", text="at work")
        await say(older, "m-1", "bye")
        await until(lambda: len(stage.said("message")) >= 4)
        await stage.detach()
        await until(lambda: Path(stage.directory.snapshot(1)).exists())
        newer, task = stage.start()
        assert (await say(newer, "m-1", "bye")).state == "delivered"
        await say(newer, "m-2", "on")
        outcome = await task
    assert (outcome.status, outcome.structured) == ("succeeded", {"a": 1})
    assert [event.text for event in stage.said("message", role="user")] == ["bye", "on"]


def test_a_message_is_one_line_whatever_its_text() -> None:
    for text in ("", "\\", "\u2028\u0085", '"', "\n"):
        line = message_line("json", OutgoingMessage(id="m", kind="steer", text=text))
        assert len(line.splitlines()) == 1
        assert json.loads(line)["text"] == text
