"""The line at the bottom of a terminal: always beneath the text, and never left behind in it."""

import io
import os
import random
from typing import Any

import pytest

from steersman.cli.bottom import BottomLine
from tests.cli.screen import Screen


class Stage:
    """A bottom line on a screen."""

    def __init__(self, columns: int = 40, lines: int = 8) -> None:
        self.out = io.StringIO()
        self.size = os.terminal_size((columns, lines))
        self.bottom = BottomLine(self.out, size=lambda _: self.size)

    @property
    def screen(self) -> Screen:
        return Screen(*self.size).feed(self.out.getvalue())


def test_it_stands_below_whole_and_open_lines() -> None:
    stage = Stage()
    stage.bottom.say("STATUS")
    assert stage.screen.text == ["STATUS"]
    stage.bottom.write("one\n")
    assert stage.screen.text == ["one", "STATUS"]
    stage.bottom.write("tw")
    assert stage.screen.text == ["one", "tw", "STATUS"]
    stage.bottom.write("o\nthree\n")
    stage.bottom.say("CHANGED")
    assert stage.screen.text == ["one", "two", "three", "CHANGED"]
    stage.bottom.say("")
    assert stage.screen.text == ["one", "two", "three"]


def test_it_is_gone_while_it_is_hidden_and_the_text_goes_on() -> None:
    stage = Stage()
    stage.bottom.say("STATUS")
    stage.bottom.write("a question > ")
    stage.bottom.hide()
    stage.bottom.say("OTHER")
    assert stage.screen.text == ["a question >"]
    stage.out.write("typed\n")  # by the terminal's own echo
    stage.bottom.show()
    stage.bottom.write("after\n")
    assert stage.screen.text == ["a question > typed", "after", "OTHER"]


def test_it_is_cut_to_the_width_and_left_out_where_there_is_no_room() -> None:
    stage = Stage(columns=30)
    stage.bottom.say("漢字" * 20)
    assert len(stage.screen.text) == 1
    stage.size = os.terminal_size((30, 2))
    stage.bottom.write("text\n")
    stage.bottom.say("STATUS")
    assert "STATUS" not in stage.out.getvalue()
    stage.size = os.terminal_size((0, 0))
    stage.bottom.redraw()
    assert "STATUS" not in stage.out.getvalue()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_is_there_in_the_end_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    stage, plain = Stage(chance.choice((20, 33, 40))), io.StringIO()
    for _ in range(200):
        if chance.random() < 0.3:
            stage.bottom.say(f"STATUS {chance.randrange(1000)} " + "x" * chance.randrange(60))
            continue
        text = "".join(chance.choice(("ab", "word ", "\n", "\x1b[1mbold\x1b[0m", "x" * 19)) for _ in range(3))
        stage.bottom.write(text)
        plain.write(text)
    assert stage.screen.text[-1].startswith("STATUS") or stage.bottom._column  # noqa: SLF001 - where it may be away
    stage.bottom.hide()
    assert stage.screen.text == Screen(*stage.size).feed(plain.getvalue()).text


def test_a_terminal_that_has_gone_is_no_error() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    bottom = BottomLine(Gone(), size=lambda _: os.terminal_size((40, 8)))
    bottom.say("STATUS")
    assert bottom.write("text\n") == 5
    bottom.hide()


def test_a_terminal_that_cannot_move_its_cursor_gets_none(monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    BottomLine(out).say("STATUS")
    assert out.getvalue() == ""
