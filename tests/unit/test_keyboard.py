"""Ctrl-C before, in and after a question: each interrupts one thing, and none is lost."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.text import Text

from steersman.cli.terminal.keyboard import Interrupted, Keyboard
from tests.support.processes import until


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where what a person types is written."""
    master, slave = os.openpty()
    with os.fdopen(slave) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield master
    os.close(master)


async def struck(keyboard: Keyboard, sent: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), sent)
    await until(keyboard.ctrl_c.is_set)


def at() -> Keyboard:
    return Keyboard(Console(file=io.StringIO()))


async def answered(keyboard: Keyboard, typed: int) -> str | None:
    asking = asyncio.create_task(keyboard.ask(Text("?")))
    await asyncio.sleep(0)  # what is typed before the question is no answer
    os.write(typed, b"yes\n")
    return await asyncio.wait_for(asking, 10)


def echo(typed: int, words: bytes, times: int = 1) -> bytes:
    """What the terminal shows, once it has shown the words so many times."""
    shown = b""
    while shown.count(words) < times:
        shown += os.read(typed, 4096)
    return shown


async def test_one_that_comes_just_before_a_question_interrupts_it(typed: int) -> None:
    with at() as keyboard:
        await struck(keyboard)
        with pytest.raises(Interrupted):
            await asyncio.wait_for(keyboard.ask(Text("?")), 10)
        assert await answered(keyboard, typed) == "yes"


async def test_the_terminal_sees_one_that_was_typed_just_before_a_question(typed: int) -> None:
    with at() as keyboard:
        for _ in range(200):
            os.write(typed, b"\x03")
            assert await answered(keyboard, typed) == "yes"
            # No program has this terminal as its own: its echo alone shows what it took the key for.
            assert b"^C" in echo(typed, b"yes")


async def test_what_was_typed_before_a_question_is_no_part_of_its_answer(typed: int) -> None:
    with at() as keyboard:
        for before in (b"no", b"no\n", b"no\nno\nno", b"no\n" * 300):
            os.write(typed, before)
            echo(typed, b"no", before.count(b"no"))
            assert await answered(keyboard, typed) == "yes"


async def test_one_that_was_heard_does_not_interrupt_the_question_that_answers_it(typed: int) -> None:
    with at() as keyboard:
        await struck(keyboard)
        keyboard.clear_interrupt()
        assert await answered(keyboard, typed) == "yes"


async def test_one_that_interrupts_some_work_interrupts_nothing_else(typed: int) -> None:
    with at() as keyboard:
        work = asyncio.create_task(keyboard.unless_interrupted(asyncio.sleep(600)))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            await asyncio.wait_for(work, 10)
        assert await answered(keyboard, typed) == "yes"


@pytest.mark.usefixtures("typed")
async def test_after_sigterm_every_question_is_interrupted() -> None:
    with at() as keyboard:
        await struck(keyboard, signal.SIGTERM)
        for _ in range(2):
            keyboard.clear_interrupt()
            with pytest.raises(Interrupted):
                await asyncio.wait_for(keyboard.ask(Text("?")), 10)
