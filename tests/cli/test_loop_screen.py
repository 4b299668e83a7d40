"""The line at the bottom of a terminal: always beneath the text, and never left behind in it."""

import io
import os
import random
from typing import Any

import pytest

from steersman.cli.terminal.status_bar import StatusBar
from tests.cli.screen import Screen


class Stage:
    """A bottom line on a screen."""

    def __init__(self, columns: int = 40, lines: int = 8) -> None:
        self.out = io.StringIO()
        self.size = os.terminal_size((columns, lines))
        self.status_bar = StatusBar(self.out, size=lambda _: self.size)

    @property
    def screen(self) -> Screen:
        return Screen(*self.size).feed(self.out.getvalue())


def test_it_stands_below_whole_and_open_lines() -> None:
    stage = Stage()
    stage.status_bar.say("STATUS")
    assert stage.screen.text == ["STATUS"]
    stage.status_bar.write("one\n")
    assert stage.screen.text == ["one", "STATUS"]
    stage.status_bar.write("tw")
    assert stage.screen.text == ["one", "tw", "STATUS"]
    stage.status_bar.write("o\nthree\n")
    stage.status_bar.say("CHANGED")
    assert stage.screen.text == ["one", "two", "three", "CHANGED"]
    stage.status_bar.say("")
    assert stage.screen.text == ["one", "two", "three"]


def test_it_is_gone_while_it_is_hidden_and_the_text_goes_on() -> None:
    stage = Stage()
    stage.status_bar.say("STATUS")
    stage.status_bar.write("a question > ")
    stage.status_bar.hide()
    stage.status_bar.say("OTHER")
    assert stage.screen.text == ["a question >"]
    stage.out.write("typed\n")  # by the terminal's own echo
    stage.status_bar.show()
    stage.status_bar.write("after\n")
    assert stage.screen.text == ["a question > typed", "after", "OTHER"]


def test_it_is_cut_to_the_width_and_left_out_where_there_is_no_room() -> None:
    stage = Stage(columns=30)
    stage.status_bar.say("漢字" * 20)
    assert len(stage.screen.text) == 1
    stage.size = os.terminal_size((30, 2))
    stage.status_bar.write("text\n")
    stage.status_bar.say("STATUS")
    assert "STATUS" not in stage.out.getvalue()
    stage.size = os.terminal_size((0, 0))
    stage.status_bar.redraw()
    assert "STATUS" not in stage.out.getvalue()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_is_there_in_the_end_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    stage, plain = Stage(chance.choice((20, 33, 40))), io.StringIO()
    for _ in range(200):
        if chance.random() < 0.3:
            stage.status_bar.say(f"STATUS {chance.randrange(1000)} " + "x" * chance.randrange(60))
            continue
        text = "".join(chance.choice(("ab", "word ", "\n", "\x1b[1mbold\x1b[0m", "x" * 19)) for _ in range(3))
        stage.status_bar.write(text)
        plain.write(text)
    assert stage.screen.text[-1].startswith("STATUS") or stage.status_bar._column  # noqa: SLF001 - where it may be away
    stage.status_bar.hide()
    assert stage.screen.text == Screen(*stage.size).feed(plain.getvalue()).text


def test_a_terminal_that_has_gone_is_no_error() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    status_bar = StatusBar(Gone(), size=lambda _: os.terminal_size((40, 8)))
    status_bar.say("STATUS")
    assert status_bar.write("text\n") == 5
    status_bar.hide()


def test_a_terminal_that_cannot_move_its_cursor_gets_none(monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    StatusBar(out).say("STATUS")
    assert out.getvalue() == ""
