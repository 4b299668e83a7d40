"""What a person sees of a run's events, and what of hostile text is left."""

import io
from typing import Any

import pytest
from rich.console import Console

from steersman.cli import request
from steersman.cli.formatting import clean, duration, flat, sessions_phrase, shortened, stop_phrase
from steersman.cli.terminal.renderer import Renderer
from steersman.contracts.events import (
    ErrorEvent,
    EventBase,
    FileChangeEvent,
    MessageEvent,
    PlanItem,
    PlanUpdateEvent,
    ProgressEvent,
    RateLimitEvent,
)
from steersman.contracts.run import Finalize, StopReport
from tests.client.fake_host import now, said, tool_output, tool_result, tool_use


def shown(*events: EventBase, width: int = 60, verbose: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, emoji=False, highlight=False, soft_wrap=True)
    renderer = Renderer(console, verbose=verbose)
    for event in events:
        renderer.show(event)
    renderer.end_line()
    return out.getvalue()


def delta(text: str, message_id: str | None = "m", **fields: Any) -> MessageEvent:
    return said(text, delta=True, message_id=message_id, **fields)


def whole(text: str, message_id: str | None = "m", **fields: Any) -> MessageEvent:
    return said(text, message_id=message_id, **fields)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([whole("one\n two")], "one\n two\n"),
        ([delta("on"), delta("e"), whole("one")], "one\n"),
        ([delta("one"), whole("one two")], "one two\n"),
        ([delta("xx"), whole("one two")], "xx\none two\n"),
        ([delta(" two"), whole("one two")], " two\n"),
        ([delta("cut", "m1"), delta("one", "m2"), whole("one", "m2")], "cutone\n"),
        ([delta("a", None), whole("a", None), delta("b", None), whole("b", None)], "a\nb\n"),
        ([delta("a"), delta("b", parent_tool_id="t"), delta("c"), whole("ac")], "a\n  ↳ b\nc\n"),
        ([delta("[red]"), whole("[red]")], "[red]\n"),
    ],
)
def test_a_message_is_printed_once(events: list[EventBase], text: str) -> None:
    assert shown(*events) == text


def test_a_line_is_a_line() -> None:
    text = shown(
        tool_use("Bash", command="echo 1\necho 2 " + "x" * 200),
        tool_result("Bash", "a\n\nb\nc\nd\ne" + "y" * 200),
        tool_result("Bash", "", is_error=True),
        FileChangeEvent(time=now(), path="src/" + "z" * 100, change="edited"),
        PlanUpdateEvent(time=now(), items=(PlanItem(text="look", status="completed"), PlanItem(text="do", status="?"))),
        ProgressEvent(time=now(), text="resumed\nsession"),
        RateLimitEvent(time=now(), status="rejected", limit="five_hour"),
    )
    lines = text.splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].startswith("▸ Bash echo 1⏎echo 2 xx")
    assert lines[1:6] == ["  │ a", "  │ b", "  │ c", "  │ d", "  │ … 1 more line"]
    assert lines[6] == "  │ failed"
    assert lines[8:] == ["✓ look", "○ do", "· resumed⏎session", "! rate limit five_hour rejected"]


BEGUN = "▸ Bash make\n"
CALL = (tool_use("Bash", command="make"), tool_output("Bash", "one\ntw"), tool_output("Bash", "o\nthree"))


class TestOutputOfAToolAtWork:
    """Where nothing can be drawn."""

    def test_it_is_not_printed_unasked(self) -> None:
        assert shown(*CALL) == BEGUN
        assert shown(*CALL, tool_result("Bash", "all")) == f"{BEGUN}  │ all\n"

    def test_it_is_printed_as_it_comes_and_once(self) -> None:
        told = f'{BEGUN}  │ {{\n  │   "command": "make"\n  │ }}\n'
        assert shown(*CALL, verbose=True) == f"{told}  │ one\n  │ two\n"
        whole = shown(*CALL, tool_result("Bash", "one\ntwo\nthree\n"), verbose=True)
        assert whole == f"{told}  │ one\n  │ two\n  │ three\n"
        failed = shown(*CALL, tool_result("Bash", "one\ntwo\nthree", is_error=True), verbose=True)
        assert failed == f"{told}  │ one\n  │ two\n  │ three\n  │ failed\n"

    def test_what_its_agent_has_left_out_of_the_beginning_comes_with_the_result(self) -> None:
        text = shown(*CALL, tool_result("Bash", "zero\none\ntwo\nthree\n"), verbose=True)
        lines = [line.removeprefix("  │ ") for line in text.splitlines()]
        assert lines[-5:] == ["one", "two", "three", "… and before that:", "zero"]

    def test_where_some_is_left_out_the_result_is_printed_whole(self) -> None:
        left_out = tool_output("Bash", "nine\n", omitted=True)
        text = shown(*CALL, left_out, tool_result("Bash", "one\ntwo\n...\nnine\n"), verbose=True)
        lines = [line.removeprefix("  │ ") for line in text.splitlines()]
        assert lines[-9:] == ["one", "two", "three", "…", "nine", "one", "two", "...", "nine"]

    def test_lines_of_two_calls_are_told_apart(self) -> None:
        other = (tool_use("Test"), tool_output("Test", "ok\n"))
        text = shown(*CALL, *other, tool_output("Bash", " four\n"), tool_output("Test", "ok\n"), verbose=True)
        lines = [line.removeprefix("  │ ") for line in text.splitlines() if line.startswith("  │")]
        assert lines[-6:] == ["two", "ok", "Bash:", "three four", "Test:", "ok"]

    def test_hostile_text_moves_nothing(self) -> None:
        hostile = tool_output("Bash", "\x1b[2J\x1b]0;t\x07\x1bc\u202e\x9b31m a\rb\n\x1b[")
        assert shown(hostile, verbose=True) == "  │ tool:\n  │ b\n"
        assert "\x1b" not in shown(hostile, tool_output("Bash", "31mx\n"), verbose=True)


@pytest.mark.parametrize(
    "code",
    [
        *(*range(9), *range(11, 32), *range(0x7F, 0xA0)),
        *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029, 0x202E, 0x2066),
        *(0x00AD, 0x034F, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0x2064, 0xFEFF, 0x1D173),
        *(0x115F, 0x1160, 0x17B4, 0x180B, 0x2800, 0x3164, 0xFFA0, 0x1D159),
        *(0xFE00, 0xFFF9, 0xFFFE, 0xE0041, 0xE0100, 0xE01EF),
        *(0xE000, 0xF8FF, 0xF0000, 0x10FFFD, 0xD800),
    ],
)
def test_no_control_or_invisible_character_is_left(code: int) -> None:
    assert chr(code) not in clean(f"a{chr(code)}b")
    assert chr(code) not in flat(f"a{chr(code)}b")


def test_honest_text_stays_as_it_is() -> None:
    honest = "naïve, 日本語 עברית 👩‍💻 ❤️‍🔥 می‌خواهم क्‍ष [bold] \\x1b[31m\n\tnext"
    assert clean(honest) == honest
    assert clean("a\r\nb") == "a\nb"
    assert shortened("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (None, "cancelled"),
        (
            StopReport(outcome="stopped", phase="running", how="killed", processes=1, took_ms=9),
            "1 process killed, 9 ms",
        ),
        (StopReport(outcome="stopped", phase="queued", how="exited"), "no process was running"),
        (StopReport(outcome="unverified", phase="running"), "nobody could look"),
        (StopReport(outcome="unverified", phase="running", left=(7, 8)), "look at process 7, 8"),
    ],
)
def test_a_stop_in_words(report: StopReport | None, text: str) -> None:
    assert text in stop_phrase(report)


@pytest.mark.parametrize(
    ("finalize", "text"),
    [
        (Finalize(status="none"), None),
        (Finalize(status="none", sessions={"a": "b"}), "the session as the run left it is b (was a)"),
        (Finalize(status="none", session_error="no\x1b[31m"), "the agent's session stays where it worked: no"),
    ],
)
def test_what_became_of_sessions_in_words(finalize: Finalize, text: str | None) -> None:
    told = sessions_phrase(finalize)
    assert (told is None) == (text is None)
    assert (text or "") in (told or "")
    assert "\x1b" not in (told or "")


def test_durations() -> None:
    assert [duration(each) for each in (-1, 1.26, 65, 3 * 3600 + 61)] == ["0.0 s", "1.3 s", "1 min 05 s", "3 h 01 min"]


def test_a_file_is_completed_by_words() -> None:
    base = {"agent": "claude", "limits": {"turns": 1}, "env": {"A": "1"}}
    said = {"prompt": "x", "limits": {"cost_usd": 2.0}, "env": {}}
    assert request.merged(base, said) == {
        "agent": "claude",
        "prompt": "x",
        "limits": {"turns": 1, "cost_usd": 2.0},
        "env": {"A": "1"},
    }
    assert request.merged(["no", "object"], said) == ["no", "object"]


def test_a_line_in_one_style_is_colored() -> None:
    out = io.StringIO()
    renderer = Renderer(Console(file=out, force_terminal=True, color_system="standard"))
    renderer.note("note", "red")
    renderer.show(ErrorEvent(time=now(), message="lost"))
    renderer.show(delta("thought", kind="thinking"))
    renderer.end_line()
    assert out.getvalue() == "\x1b[31mnote\x1b[0m\n\x1b[31m! lost\x1b[0m\n\x1b[2;3mthought\x1b[0m\n"


def test_whole_messages_look_as_streamed_ones_do() -> None:
    """At a terminal, by blocks."""
    texts = [
        "plain",
        "*strong*",
        "one\n\ntwo",
        " ",
        "x" * 5000,
        "",
        "日本 " * 40,
        "- a\n- b\n\n```\ncode\n```\n",
        "\x1b[1m\r",
    ]

    def printed(*events: MessageEvent) -> str:
        out = io.StringIO()
        renderer = Renderer(Console(file=out, width=60, color_system=None), live=lambda _: None)
        for event in events:
            renderer.show(event)
        renderer.end_line()
        return out.getvalue()

    for text in texts:
        for kind in ("text", "thinking"):
            for parent in (None, "t"):
                about = {"kind": kind, "parent_tool_id": parent}
                assert printed(whole(text, **about)) == printed(delta(text, **about), whole(text, **about))


def test_what_nothing_follows_is_seen_at_once() -> None:
    class Pipe(io.StringIO):
        seen = ""

        def flush(self) -> None:
            self.seen = self.getvalue()

    out = Pipe()
    renderer = Renderer(Console(file=out))
    renderer.show(said("one"), more=True)
    assert out.seen == ""
    renderer.show(said("two"))
    assert out.seen == "one\ntwo\n"
    renderer.show(said("three"), more=True)
    renderer.note("note")
    assert out.seen == "one\ntwo\nthree\nnote\n"
