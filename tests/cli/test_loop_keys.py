"""A followed loop at a real terminal: keys, the status line, approvals, and the terminal left as it was."""

import os
import signal
import termios
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts.agents import CAPABILITIES
from tests.cli.loopstage import MENU, Stage
from tests.cli.steer import Steer
from tests.cli.terminal import Terminal
from tests.cli.test_terminal import until
from tests.client.fake_host import init, said, succeeded, tool_output, tool_result, tool_use

pytestmark = pytest.mark.acceptance


async def test_keys_while_it_streams(stage: Stage) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    terminal.type("?")
    await terminal.until("pause when the iteration has ended")
    await terminal.until("leave; the loop goes on")
    terminal.type("s")
    await terminal.until("plan        Make it good")
    terminal.type("p")
    await stage.told("pause")
    terminal.type("n")
    await stage.told("pause", "skip_wait")
    terminal.type("f")
    await terminal.until("an empty line ends it")
    await stage.lines(terminal, "faster")
    await terminal.until("feedback: for the next iteration")
    terminal.type("i")
    await terminal.until("just end its turn) >")
    terminal.type("to the left\n")
    await terminal.until("interrupt acknowledged")
    assert [each.text for each in stage.machine.fake_run(run).messages] == ["to the left"]
    terminal.type("npq?")
    await terminal.until("one key at a time")
    terminal.type("\x1b[A\x1bOP\x1b[3~\x1b")  # an arrow key and the like are nobody's wish
    terminal.type("P")
    calls = await stage.told("pause", "skip_wait", "feedback", "pause")
    assert [said.get("now") for name, said in calls if name == "pause"] == [None, True]
    stage.machine.finish(run, succeeded())
    await terminal.until("paused")
    terminal.type("r")
    await stage.told("pause", "skip_wait", "feedback", "pause", "resume")
    terminal.type("q")
    assert await terminal.ended() == 130
    await terminal.until(f"the loop goes on; follow it again with: steer loop attach {stage.loop}")
    assert "npq?" not in terminal.text, "keys are not shown"


async def test_the_line_at_the_bottom_has_what_a_tool_at_work_put_out_last(stage: Stage) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    output = tool_output("Bash", "\x1b[32mone\x1b[0m passed\n10%\rtwo passed\n")
    stage.machine.show(run, tool_use("Bash", command="make test"), output)
    await until(lambda: "".join(terminal.screen()[-1:]).endswith(" · two passed"))
    assert "▸ Bash make test" in terminal.screen()
    stage.machine.show(run, tool_result("Bash", "2 passed"))
    await until(lambda: "  │ 2 passed" in terminal.screen() and "two passed" not in terminal.screen()[-1])
    stage.machine.finish(run, succeeded())
    terminal.type("q")
    assert await terminal.ended() == 130
    assert not any("two passed" in line for line in terminal.screen())


async def test_keys_offer_what_the_agent_can_do(stage: Stage) -> None:
    run = await stage.at_work()
    await stage.machine.set_state(stage.loop, agent="process")
    terminal = await stage.steer.at_terminal("loop", "attach", stage.loop)
    await terminal.until("first words")
    terminal.type("?")
    await terminal.until("pause now: stop the run at work")
    await terminal.until("leave; the loop goes on")
    assert "interrupt" not in terminal.text
    assert "keep its session" not in terminal.text
    terminal.type("i")
    await terminal.until('agent "process" cannot interrupt: P pauses now, f gives feedback to the next iteration')
    terminal.type("q")
    assert await terminal.ended() == 130
    assert stage.machine.fake_run(run).messages == []


async def test_keys_offer_what_the_claiming_host_says_that_the_agent_can_do(stage: Stage) -> None:
    await stage.at_work()
    can = CAPABILITIES["claude"].model_copy(update={"interrupt": False})
    await stage.machine.set_state(stage.loop, capabilities=can)
    terminal = await stage.attach()
    await terminal.until("first words")
    terminal.type("i")
    await terminal.until('agent "claude" cannot interrupt: P pauses now, f gives feedback to the next iteration')
    terminal.type("q")
    assert await terminal.ended() == 130


async def test_ctrl_c_takes_a_question_back_that_a_key_had_opened(stage: Stage) -> None:
    await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    terminal.type("f")
    await terminal.until("an empty line ends it")
    await terminal.until("> ")
    terminal.ctrl_c()
    await terminal.until("? keys")
    terminal.type("s")
    await terminal.until("plan        Make it good")
    assert await stage.machine.calls(stage.loop) == []


async def test_the_status_line_stands_below_and_leaves_nothing_behind(stage: Stage) -> None:
    run = await stage.machine.begin_run(stage.loop, 1, items={"count": {"open": 2, "closed": 1}})
    terminal = await stage.attach()
    await terminal.until("iteration 1/100")
    await terminal.until("at work · items 2 of 3 left · ? keys")
    stage.machine.show(run, init(), said("half a sen", delta=True, message_id="m"))
    await terminal.until("half a sen")
    await terminal.until("? keys")
    stage.machine.show(run, said("tence", delta=True, message_id="m"), said("half a sentence", message_id="m"))
    stage.machine.finish(run, succeeded())
    await stage.machine.set_state(stage.loop, run=None, status="waiting_rate_limit", wakes_at="2099-01-01T14:05:00Z")
    await terminal.until("rate limit: until 2099-01-01")
    terminal.type("q")
    assert await terminal.ended() == 130
    await terminal.until("steer loop attach")
    shown = terminal.screen()
    assert "half a sentence" in shown
    assert not [line for line in shown if "? keys" in line]


async def test_approvals_of_the_run_are_asked(stage: Stage) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    await stage.machine.ask(run, "a-1", "Bash", command="make\x1b[2J install")
    await terminal.until("command: make␛[2J install")
    await terminal.until("Allow?")
    await terminal.until(">")
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.type("c\n")
    await stage.told("pause", "resume")


async def test_an_approval_is_answered(stage: Stage) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await stage.machine.ask(run, "a-1", "Bash", command="make")
    await terminal.until("Allow?")
    await terminal.until(">")
    terminal.type("y\n")
    await terminal.until("allowed Bash")
    assert stage.machine.fake_run(run).decisions[0].decision.decision == "allow"
    stage.machine.finish(run, succeeded())
    await stage.machine.end_loop(stage.loop)
    assert await terminal.ended() == 0


@pytest.mark.parametrize("way", ["ctrl-c", "q", "sigterm", "sighup", "end"])
async def test_the_terminal_is_left_as_it_was(stage: Stage, way: str) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    assert not terminal.modes() & termios.ECHO, "keys are read unseen"
    if way == "ctrl-c":
        terminal.ctrl_c()
        await terminal.until(MENU)
        assert terminal.modes() & termios.ECHO, "a line is seen while it is typed"
        terminal.ctrl_c()
    elif way == "q":
        terminal.type("q")
    elif way == "end":
        await stage.machine.end_loop(stage.loop)
        stage.machine.finish(run, succeeded())
    else:
        os.kill(terminal.pid, signal.SIGTERM if way == "sigterm" else signal.SIGHUP)
    code = {"ctrl-c": 130, "q": 130, "end": 0}.get(way, 143)
    assert await terminal.ended() == code
    assert terminal.modes() & termios.ECHO
    assert terminal.modes() & termios.ICANON
    if way in ("sigterm", "sighup"):
        assert await stage.machine.calls(stage.loop) == [], "the loop goes on"


async def test_closing_the_terminal_stops_nothing(stage: Stage) -> None:
    await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    terminal.hang_up()
    assert await terminal.ended() == 143
    assert await stage.machine.calls(stage.loop) == []
    assert (await stage.steersman.loops.state(stage.loop)).status == "running"


async def test_ctrl_z_gives_the_terminal_back_until_fg(stage: Stage) -> None:
    run = await stage.at_work()
    shell = await Terminal.open(["/bin/sh", "-i"], stage.steer.env | {"PS1": "$ ", "ENV": ""})
    stage.steer.terminals.append(shell)
    await shell.until("$ ")
    shell.type(f"{' '.join(stage.steer.words)} loop attach {stage.loop}\n")
    await shell.until("first words")
    await shell.until("? keys")
    shell.type("\x1a")
    await shell.until("Stopped")
    assert shell.modes() & termios.ECHO
    assert shell.modes() & termios.ICANON
    shell.type("fg\n")
    await shell.until("? keys")
    stage.machine.show(run, said("second words"))
    await shell.until("second words")
    shell.type("q")
    await shell.until("steer loop attach")
    shell.type("exit\n")
    await shell.ended()


async def test_start_can_be_left_before_any_worker_takes_the_loop(
    steer: Steer, steersman: Steersman, tmp_path: Path
) -> None:
    words = ("loop", "start", "Make it good", "-w", str(tmp_path), "--verify", "true", "--id", "loop-queued")
    terminal = await steer.at_terminal(*words)
    await terminal.until("loop loop-queued")
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.type("\x04")
    await terminal.until("waiting for the loop to take what was said last")
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    await steersman.temporal.get_workflow_handle("loop-queued").terminate()
