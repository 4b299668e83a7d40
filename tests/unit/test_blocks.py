"""Blocks of a Markdown text as it comes, and edits in a tool's input."""

import io
from typing import Any

import pytest
from rich.console import Console

from steersman.cli.terminal.blocks import is_plain, whole_blocks
from steersman.cli.terminal.edits import edit_lines
from steersman.cli.terminal.markdown import print_markdown

TEXTS = [
    "one\n\ntwo\nthree\n\nfour",
    "```\na\n\nb\n```\n\nend\n",
    "~~~~\n```\n\n~~~\n\n~~~~\n\nend",
    "- a\n\n  still a\n\n- b\n\nend",
    "1. a\n\n       code\n\nend",
    "\n\n\none\n\n\n\ntwo",
    "```\nnever closed\n\nby anybody\n\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_nothing_is_lost_wherever_it_is_cut(text: str) -> None:
    for step in (1, 2, 5):
        printed, kept = "", ""
        for at in range(0, len(text), step):
            whole, kept = whole_blocks(kept + text[at : at + step])
            printed += whole
        assert printed + kept == text


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("one\n\ntwo", "one\n\n"),
        ("one\n\n", ""),
        ("one\ntwo\n", ""),
        ("```\na\n\nb\n", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"),
        ("- a\n\n  of a\n", ""),
        ("- a\n\n  of a\n\nb", "- a\n\n  of a\n\n"),
    ],
)
def test_a_block_is_whole_once_the_next_begins(text: str, whole: str) -> None:
    assert whole_blocks(text) == (whole, text[len(whole) :])


@pytest.mark.parametrize("text", ["One, two.", "a-b (c)", "3 apples", "it's 5 + 4"])
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    assert is_plain(text)


@pytest.mark.parametrize("text", ["# a", "a *b*", "`x`", "- a", "a\n> b", "1. a", "    code", "[a](b)", "a | b", "---"])
def test_marks_are_seen(text: str) -> None:
    assert not is_plain(text)


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({"old_string": "a\nb\nc", "new_string": "a\nB\nc"}, [" a", "-b", "+B", " c"]),
        ({"oldString": "", "newString": "new"}, ["+new"]),
        ({"edits": [{"old_string": "a", "new_string": "b"}, 3, {"old_string": "c"}]}, ["-a", "+b"]),
        ({"changes": [{"path": "x", "diff": "@@ -1 +1 @@\n-a\n+b\n"}]}, ["-a", "+b"]),
        ({"patch": "--- a\n+++ b\n@@\n one\n-two\n"}, [" one", "-two"]),
        ({"old_string": 3, "new_string": None}, []),
        ({"command": "ls"}, []),
        ({"edits": "no list", "changes": None}, []),
    ],
)
def test_edits_are_found(given: dict[str, Any], lines: list[str]) -> None:
    assert edit_lines(given) == lines


def test_a_large_edit_takes_no_time_worth_telling() -> None:
    text = "\n".join("x" for _ in range(100_000))
    assert len(edit_lines({"old_string": text, "new_string": text + "\ny"})) <= 4_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("A **Map<K, List<String>>** of it", "A Map<K, List<String>> of it\n"),
        ("<div>\n  hello\n</div>\n\n# Next", "\n <div>\n   hello\n </div>\n\n\nNext\n"),
        ("so <!-- rm -rf --> **it** is", "so <!-- rm -rf --> it is\n"),
        ("[WARN]: old\n\n**then**", "[WARN]: old\n\nthen\n"),
        ("![a *b*](https://x.example/y.png)", "![a *b*](https://x.example/y.png)\n"),
    ],
)
def test_no_word_of_a_markdown_text_is_hidden(text: str, shown: str) -> None:
    assert printed(text, 60) == shown


def test_a_long_word_in_a_table_is_shown_whole() -> None:
    path = f"/{'very/' * 12}long.py"
    lines = printed(f"| path | n |\n|---|---|\n| {path} | 1 |", 40).split("\n")
    assert "".join(line.split()[0] for line in lines if "/" in line) == path


def printed(text: str, width: int) -> str:
    file = io.StringIO()
    print_markdown(Console(file=file, width=width, color_system=None), text, width)
    return file.getvalue()
