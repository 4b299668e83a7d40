"""The input line below an attached run, at a real terminal."""

import asyncio
import fcntl
import io
import os
import select
import struct
import sys
import termios
from pathlib import Path

import pytest

from steersman.cli.terminal.input_line import Actions, InputLine
from steersman.client import Steersman
from tests.cli.steer import Steer
from tests.cli.terminal import Terminal
from tests.cli.test_commands import begin
from tests.cli.test_terminal import MENU, until
from tests.client.fake_host import FakeHost, init, said, succeeded, tool_use
from tests.support.images import png

pytestmark = pytest.mark.acceptance
ESCAPE = "\x1b"


@pytest.fixture
async def run(fake_host: FakeHost, steersman: Steersman, workspace: str) -> str:
    """At work."""
    run = await begin(steersman, workspace)
    fake_host.show(run, init())
    return run


async def attached(steer: Steer, run: str, **env: str) -> Terminal:
    terminal = await steer.at_terminal("attach", run, **env)
    await terminal.until("session s-1")
    if env.get("TERM") != "dumb":
        await terminal.until("»")  # before that the terminal itself edits the line, and Ctrl-D is its own
    return terminal


def heard(fake_host: FakeHost, run: str) -> list[tuple[str, str | None]]:
    return [(each.kind, each.text) for each in fake_host.fake_run(run).messages]


async def test_a_line_is_said_into_the_turn(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    terminal.type("look lefd\x7ft first\n")
    await terminal.until("you: look left first")
    await terminal.until("message acknowledged (mid_turn)")
    assert heard(fake_host, run) == [("steer", "look left first")]
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    assert [line for line in terminal.screen() if "look left" in line] == ["you: look left first"]


async def test_what_is_said_as_the_run_ends_is_answered(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    terminal.type("one last word\n")
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    await terminal.until("succeeded")
    lines = terminal.screen()
    said = next(number for number, line in enumerate(lines) if "one last word" in line)
    answers = ("message ", "not said: ")
    assert any(line.startswith(answers) for line in lines[said:]), lines


async def test_what_is_typed_stays_readable_while_the_agent_talks(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    terminal.type("half a line")
    await terminal.until("half a line")
    for number in range(30):
        fake_host.show(run, said(f"number {number}\n", delta=True, message_id="m"))
    await until(lambda: any("number 29" in line for line in terminal.screen()))
    assert [line for line in terminal.screen() if line.startswith("»")] == ["» half a line"]
    terminal.type(" and the rest\n")
    await until(lambda: heard(fake_host, run) == [("steer", "half a line and the rest")])
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    assert [line for line in terminal.screen() if line.startswith("number")] == [f"number {each}" for each in range(30)]


async def test_several_lines_that_are_pasted_are_one_message(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    terminal.type("\x1b[200~first\nsecond\x1b[201~")
    await terminal.until("second")
    assert heard(fake_host, run) == []
    terminal.type("\r")
    await until(lambda: heard(fake_host, run) == [("steer", "first\nsecond")])
    terminal.type("//not ours\n")
    await until(lambda: heard(fake_host, run)[1:] == [("steer", "/not ours")])


async def test_files_go_with_what_is_said_next(steer: Steer, fake_host: FakeHost, run: str, tmp_path: Path) -> None:
    (tmp_path / "red one.png").write_bytes(png())
    (tmp_path / "notes").write_text("look here")
    terminal = await attached(steer, run)
    terminal.type(f"/attach {tmp_path}/nothing\n")
    await terminal.until("No such file")
    terminal.type(f"/attach '{tmp_path}/red one.png' {tmp_path}/notes\n")
    await terminal.until("goes with what you say next: red one.png, notes")
    terminal.type("what is it?\n")
    await terminal.until("you: what is it? [red one.png] [notes]")
    await terminal.until("message acknowledged")
    terminal.type("and now?\n")
    await until(lambda: len(heard(fake_host, run)) == 2)
    first, second = fake_host.fake_run(run).messages
    assert [each.content for each in first.attachments] == [png(), b"look here"]
    assert first.as_told().text == 'what is it?\n\n<file name="notes">\nlook here\n</file>\n\n[Images: red one.png]'
    assert (second.text, second.attachments) == ("and now?", ())


@pytest.mark.parametrize("typed", ["", "turn round"])
async def test_escape_interrupts(steer: Steer, fake_host: FakeHost, run: str, typed: str) -> None:
    terminal = await attached(steer, run)
    terminal.type("gone\x15\x1b[D\x1bOC")  # what arrow keys send is no Esc
    terminal.type(typed)
    await asyncio.sleep(0.5)
    assert heard(fake_host, run) == []
    terminal.type(ESCAPE)
    await terminal.until("interrupt acknowledged")
    assert heard(fake_host, run) == [("interrupt", typed or None)]


async def test_what_could_not_be_said_with_an_interrupt_is_given_back(
    steer: Steer, fake_host: FakeHost, run: str
) -> None:
    terminal = await attached(steer, run)
    terminal.type("caf\udce9 au lait")  # no UTF-8: a request of that cannot be sent
    await terminal.until("au lait")
    terminal.type(ESCAPE)
    await terminal.until("not interrupted: ")
    await until(lambda: any(line.startswith("» caf") for line in terminal.screen()[-2:]))
    assert heard(fake_host, run) == []


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "fifo", "/dev/zero"])
async def test_what_is_no_file_is_refused_at_once(
    steer: Steer, fake_host: FakeHost, run: str, tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    terminal = await attached(steer, run)
    terminal.type(f"/attach {tmp_path / name if name == 'fifo' else name}\n")
    await terminal.until("attachment: ")
    terminal.type("and on\n")
    await terminal.until("message acknowledged")
    assert heard(fake_host, run) == [("steer", "and on")]


async def test_words_of_the_line_itself(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    terminal.type("/help\n")
    await terminal.until("Esc ends the turn")
    terminal.type("/leave\n")
    assert await terminal.ended() == 130
    await terminal.until(f"steer attach {run} --after 1")
    again = await attached(steer, run)
    again.type("\x04")
    assert await again.ended() == 130
    last = await attached(steer, run)
    last.type("/stop\n")
    await last.until("stopped: 3 processes terminated, 42 ms")
    assert await last.ended() == 6
    assert heard(fake_host, run) == []


async def test_what_an_agent_cannot_is_said_and_the_text_given_back(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await steersman.start({"agent": "process", "command": ["true"], "workspace": {"path": workspace}})
    fake_host.show(run, init())
    terminal = await attached(steer, run)
    terminal.type("hello\n")
    await terminal.until('not said: agent "process" cannot steer')
    await until(lambda: terminal.screen()[-2:-1] == ["» hello"])
    terminal.type(ESCAPE)
    await terminal.until('agent "process" cannot interrupt')
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    await terminal.until("not said: hello")
    assert fake_host.fake_run(run).messages == []


async def test_the_status_line_says_how_it_stands(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    await until(lambda: terminal.screen()[-1].startswith("at work · "))
    await fake_host.ask(run, "a-1", "Bash", command="make")
    await terminal.until("Allow?")
    assert "»" not in "".join(terminal.screen()[-3:]), "one line to type on at a time"
    terminal.type("y\n")
    await until(lambda: terminal.screen()[-1].startswith("at work · "))
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    assert not any("at work" in line for line in terminal.screen()), "nothing of it is left"


async def test_blocks_of_markdown_are_shown_as_such(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    text = "# Plan\n\nFirst **look** at `it`, " + "and on " * 20 + "\n\n- one\n- two\n\n```sh\nmake\n```\nend"
    for at in range(0, len(text), 7):
        fake_host.show(run, said(text[at : at + 7], delta=True, message_id="m"))
    fake_host.show(run, said(text, message_id="m"), tool_use("Edit", file_path="a", old_string="x\n", new_string="y\n"))
    await terminal.until("+y")
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    lines = [line.rstrip() for line in terminal.screen()]
    begin = lines.index("Plan")
    shown = [line for line in lines[begin:] if line]
    assert shown[1].startswith("First look at it, and on")
    assert all(line.endswith(("on", "and")) for line in shown[1:3]), "no word is broken"
    assert [line.strip() for line in shown[3:8]] == ["• one", "• two", "make", "end", "▸ Edit a"]
    assert shown[8:10] == ["  │ -x", "  │ +y"]


async def test_a_terminal_that_can_draw_nothing_takes_lines_too(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run, TERM="dumb")
    terminal.type("look left\n")
    await terminal.until("message acknowledged")
    assert heard(fake_host, run) == [("steer", "look left")]
    assert "\x1b[" not in terminal.raw.replace("\x1b[0m", "")
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0


@pytest.mark.linux
async def test_a_line_that_the_terminal_has_cut_is_not_taken(steer: Steer, fake_host: FakeHost, run: str) -> None:
    """It keeps 4,095 bytes of one, and says nothing."""
    terminal = await attached(steer, run, TERM="dumb")
    terminal.type("x" * 5000 + "\n")
    await terminal.until("this one was cut")
    terminal.type("y" * 4000 + "\n")
    await terminal.until("message acknowledged")
    assert heard(fake_host, run) == [("steer", "y" * 4000)]


@pytest.mark.parametrize(
    ("kind", "question", "end"),
    [("bell", "\a", "\a"), ("desktop", "\x1b]9;{run} asks: Bash\x1b\\", "\x1b]9;{run}: done\x1b\\"), ("none", "", "")],
)
async def test_who_looks_elsewhere_is_called(
    steer: Steer, fake_host: FakeHost, run: str, kind: str, question: str, end: str
) -> None:
    terminal = await attached(steer, run, STEERSMAN_NOTIFY=kind)
    assert not set("\a\x9d") & set(terminal.raw)
    assert "\x1b]" not in terminal.raw
    await fake_host.ask(run, "a-1", "Bash", command="make")
    await terminal.until("Allow?")
    calls = terminal.raw.count("\a") + terminal.raw.count("\x1b]")
    assert calls == (0 if kind == "none" else 1)
    assert question.format(run=run) in terminal.raw
    terminal.type("y\n")
    await until(lambda: fake_host.fake_run(run).decisions)
    before = len(terminal.raw)
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    await terminal.until("succeeded")
    assert end.format(run=run) in terminal.raw[before:]


async def test_the_terminal_is_left_as_it_was(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await steer.at_terminal("attach", run)
    before = terminal.modes()
    await terminal.until("session s-1")
    await until(lambda: terminal.modes() != before)
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    assert terminal.modes() == before
    again = await attached(steer, run)
    fake_host.finish(run, succeeded())
    assert await again.ended() == 0
    assert again.modes() == before


@pytest.mark.parametrize(("typed", "left", "does"), [("\x04", "", "leave"), ("\x7f", "half a lin", None)])
async def test_a_key_that_is_typed_while_text_is_printed_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, typed: str, left: str, does: str | None
) -> None:
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    shown = bytearray()

    class Out(io.TextIOWrapper):
        def write(self, text: str) -> int:
            written = super().write(text)
            if text == "said\n":  # while it is printed above the line
                os.write(master, typed.encode())
                select.select([slave], [], [], 0.2)  # a raw terminal hands it over, one that edits lines swallows it
            return written

    with os.fdopen(slave, "rb+", buffering=0) as raw, Out(raw) as out, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", out)
        asyncio.get_running_loop().add_reader(master, lambda: shown.extend(os.read(master, 65536)))
        done: list[str] = []
        line = InputLine(out)
        actions = Actions(done.append, done.append, lambda: done.append("interrupt"), lambda: done.append("leave"), str)
        async with line.opened(actions):
            line.put_back("half a line" if left else "")
            line.write("said\n")
            await until(lambda: done == [does] if does else line.typed == left)
        asyncio.get_running_loop().remove_reader(master)
    os.close(master)
