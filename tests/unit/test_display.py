"""The texts that the Temporal Web UI shows."""

from datetime import UTC, datetime

import pytest
from markdown_it import MarkdownIt

from steersman._client.start_metadata import loop_metadata, run_metadata
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import LoopState
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Approval, Handle, LastEvent, MessageRecord, RunState, StopReport, Usage
from steersman.contracts.text import literal
from workflows.agent_loop.visibility import details as loop_details
from workflows.agent_run.visibility import details
from workflows.display import MAX_LINE, one_line, summary

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a"), ("  a  ", "a"), ("", ""), ("\n\n b\nc", "b"), ("x" * 500, "x" * (MAX_LINE - 1) + "…")],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_an_empty_state_shows_its_phase_alone() -> None:
    assert details(RunState()) == "- **Phase**: queued"


def test_an_event_that_has_nothing_to_say_is_named_once() -> None:
    state = RunState(last_event=LastEvent(seq=1, type="init", summary="init", time=NOW))
    assert details(state).splitlines()[-1] == "- **Last**: init"


def test_a_full_state_shows_what_a_person_asks_for() -> None:
    state = RunState(
        phase="stopping",
        agent="claude",
        workspace="/w",
        host="h",
        handle=Handle(host="h", boot_id="b", pid=4711, start_time=1),
        session_id="s-1",
        attempt=2,
        usage=Usage(input_tokens=10, output_tokens=5),
        cost_usd=0.01234,
        turns=3,
        last_event=LastEvent(seq=9, type="tool_use", summary="Bash\nrm", time=NOW),
        approvals=(Approval(id="a-1", tool="Bash", input={"command": "rm -r x"}, since=NOW, deadline=NOW),),
        messages=(MessageRecord(id="m", kind="steer", state="delivered", received_at=NOW),),
        stop_report=StopReport(
            outcome="stopped", phase="running", how="killed", processes=4, took_ms=1500, reason="too dear"
        ),
        error="limits.turns",
    )
    shown = details(state)
    for part in (
        "**Agent**: claude",
        "**Workspace**: /w",
        "pid 4711",
        "s-1",
        "**Attempt**: 2",
        "$0.0123, 3 turns",
        "10 in, 5 out",
        "tool_use: Bash",
        "Bash (a-1), denied at 2026-01-02 00:00:00 UTC: rm -r x",
        "steer delivered",
        "stopped while running, killed, 4 processes, 1500 ms: too dear",
        "**Error**: limits.turns",
    ):
        assert part in shown
    assert all(line.startswith("- **") for line in shown.split("\n"))


def test_a_stop_that_nobody_could_verify_says_no_more_than_that() -> None:
    state = RunState(stop_report=StopReport(outcome="unverified", phase="running"))
    assert "**Stopped**: unverified while running" in details(state).split("- ")


def test_one_is_no_plural() -> None:
    stopped = StopReport(outcome="stopped", phase="running", how="exited", processes=1, took_ms=7)
    shown = details(RunState(turns=1, stop_report=stopped))
    assert "1 turn\n" in shown
    assert "exited, 1 process, 7 ms" in shown


def test_text_of_an_agent_cannot_add_lines() -> None:
    state = RunState(
        error="first\n- **Phase**: closed",
        workspace="/w`\n- **Agent**: other",
        last_event=LastEvent(seq=1, type="message", summary="x\n- **Host**: other", time=NOW),
    )
    names = [line.split("**")[1] for line in details(state).split("\n")]
    assert names == ["Phase", "Workspace", "Last", "Error"]


# What Markdown makes of texts of others.

HOSTILE = [
    "[Approve all](https://evil.test/)",
    "![](https://evil.test/pixel.png)",
    "<img src=x onerror=alert(1)>",
    "<https://evil.test>",
    "see https://evil.test/login now",
    "see www.evil.test now",
    "mail root@evil.test",
    "# Approved by the operator",
    "**bold** _emphasis_ ~~gone~~",
    "a `code` b ``more`` c ```",
    "` [x](https://evil.test)",
    "`",
    "| a | b |",
    "- one - two",
    "1. first",
    "&#60;b&#62; &amp;",
    "\\",
    "x \\` [y](z)",
    "[ref]: https://evil.test",
    "---",
    "\u202etxt.exe\u2066 zero\u200bwidth \x1b[31mred\x07 \ufeff\ue000\U000e0041",
]


def shown_texts(markdown: str) -> tuple[set[str], list[str]]:
    """The kinds of tokens in a Markdown text, and the texts that a reader sees."""
    tokens = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(markdown)
    inner = [child for token in tokens for child in token.children or ()]
    return {token.type for token in (*tokens, *inner)}, [child.content for child in inner if child.content]


OURS = {"bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close", "inline", "softbreak"}
OURS |= {"paragraph_open", "paragraph_close", "strong_open", "strong_close", "text", "code_inline"}


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_others_are_no_markdown(text: str) -> None:
    run = RunRequest.model_validate(
        {"agent": "claude", "prompt": text, "workspace": {"path": f"/w/{text.replace(chr(0), '')}"}, "labels": {}}
    )
    loop = LoopRequest.model_validate(
        {"plan": text, "run": {"agent": "claude", "workspace": {"path": "/w"}}, "done": {"verify": {"command": text}}}
    )
    state = RunState(
        error=text,
        workspace=text,
        session_id=text,
        last_event=LastEvent(seq=1, type="message", summary=text, time=NOW),
        approvals=(Approval(id="a", tool=text, input={"command": text}, since=NOW),),
        stop_report=StopReport(outcome="stopped", phase="running", reason=text),
    )
    pages = [details(state), loop_details(LoopState(last_error=text, phase=text, session_id=text))]
    pages += [str(run_metadata(run)["static_details"]), str(run_metadata(run)["static_summary"])]
    pages += [str(loop_metadata(loop)["static_details"]), str(loop_metadata(loop)["static_summary"])]
    pages += [f"claude: {summary(text)}"]
    for page in pages:
        kinds, texts = shown_texts(page)
        assert kinds <= OURS, page
        plain = [each for each in texts if "evil" in each]
        # A link in plain text would be made one by the Web UI; in a code span it stays text.
        assert all(f"`{each}" in page or f"` {each}" in page for each in plain), page
        assert not set(page) & set("\u202e\u2066\u200b\x1b\x07\ufeff\ue000\U000e0041")
        assert "evil" not in text or any("evil" in each for each in texts), page


BLOCKS = [
    "- a",
    "+ a",
    " - a",
    "-",
    "+",
    "1. a",
    "1) a",
    "  12. a",
    "1.",
    "1)",
    "123456789. a",
    "---",
    "- - -",
    "===",
    "=",
]
BLOCKS += ["    code", "    ", "     - a", "--- a", ": a"]


@pytest.mark.parametrize("text", BLOCKS)
def test_a_line_that_begins_as_a_block_does_is_text(text: str) -> None:
    for before in ("", "Above\n"):
        kinds, texts = shown_texts(before + literal(text, 100))
        assert kinds <= {"paragraph_open", "paragraph_close", "inline", "text", "code_inline", "softbreak"}
        assert [each.strip() for each in texts][-1:] == [text.strip()]
        assert before + literal(text, 100) == f"{before}`{text}`"


@pytest.mark.parametrize(
    "text", ["", "a - b", "1.5 is more", "2026-01-02 - 03", "/a/b-c", "./x", "$0.5", "(a)", "'a'", "12:30", "é"]
)
def test_a_line_that_begins_as_text_stays_as_it_is(text: str) -> None:
    assert literal(text, 100) == text


def test_a_text_that_means_nothing_in_markdown_stays_as_it_is() -> None:
    assert summary("Fix it: 3 of 4 (naïve), then go on!") == "Fix it: 3 of 4 (naïve), then go on!"
    assert summary("a_b") == "`a_b`"
    assert summary("`a`") == "`` `a` ``"


def test_a_summary_is_bounded_whatever_is_in_it() -> None:
    assert len(summary("\u200b" * 10_000)) <= MAX_LINE + 2
    assert len(summary("`" * 10_000)) <= 3 * MAX_LINE + 4
