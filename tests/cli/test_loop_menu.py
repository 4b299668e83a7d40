"""The menu of a followed loop at a real terminal: Ctrl-C, decisions, and everything that may be typed at it."""

import asyncio

import pytest

from tests.cli.loopstage import MENU, Stage
from tests.client.fake_host import said, succeeded
from tests.client.fake_loop import checkpoint

pytestmark = pytest.mark.acceptance


async def test_ctrl_c_pauses_now_and_enter_goes_on(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c()
    calls = await stage.told("pause")
    assert calls[0][1]["now"] is True
    terminal.type("\n")
    await stage.told("pause", "resume")
    await terminal.until("the loop goes on")
    await stage.machine.end_loop(stage.loop)
    assert await terminal.ended() == 0


async def test_wrong_input_asks_again_and_a_mode_may_be_given(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c()
    for wrong in ("x", "can you", "cc"):
        terminal.type(f"{wrong}\n")
        await terminal.until(f"'{wrong}' is none of")
        await terminal.until(MENU)
    terminal.type("c check\n")
    calls = await stage.told("pause", "resume")
    assert calls[1][1] == {"mode": "checkpoint"}
    await terminal.until("mode checkpoint")


async def test_feedback_of_several_lines_then_on(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c()
    terminal.type("F\n")
    await terminal.until("an empty line ends it")
    await stage.lines(terminal, "use the other door", "  - the left one")
    await terminal.until("feedback-1: for the next iteration")
    await terminal.until(MENU)
    terminal.type("continue\n")
    calls = await stage.told("pause", "feedback", "resume")
    assert calls[1][1] == {"text": "use the other door\n  - the left one"}


async def test_revising_the_plan(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c()
    terminal.type("r\n")
    await terminal.until("The new plan")
    terminal.type("\n")
    await terminal.until("stays as it is")
    await terminal.until(MENU)
    for words in (("Do less", "much less"), ("@docs/PLAN.md",)):
        terminal.type("r\n")
        await terminal.until("The new plan")
        await stage.lines(terminal, *words)
        await terminal.until("plan version 2")
        await terminal.until(MENU)
    calls = await stage.told("pause", "revise", "revise")
    assert [said["plan"] for _, said in calls[1:]] == ["Do less\nmuch less", {"path": "docs/PLAN.md"}]


async def test_starting_over(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c(2)
    for answers in (("x",), ("0",), ("3",), ("2", "n"), ("", "maybe")):
        terminal.type("s\n")
        for answer in answers:
            await terminal.until(" >")
            terminal.type(f"{answer}\n")
        await terminal.until("not started over")
        await terminal.until(MENU)
    terminal.type("s\n")
    await terminal.until("Start over from")
    await terminal.until(" >")
    terminal.type("2\n")
    await terminal.until("Take the files back")
    await terminal.until(" >")
    terminal.type("k\n")
    calls = await stage.told("pause", "restart")
    assert calls[1][1] == {"from": "iteration", "number": 2}
    await terminal.until("start over: starts over from the beginning")


async def test_exit_ends_the_loop(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c()
    terminal.type("e\n")
    await terminal.until("exited (exit)")
    assert await terminal.ended() == 7


async def test_a_second_ctrl_c_leaves_the_loop_paused(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c()
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    await terminal.until(f"steer loop resume {stage.loop}")
    assert (await stage.steersman.loops.state(stage.loop)).status == "paused"


@pytest.mark.exhaustive
async def test_what_the_loop_refuses_is_said(stage: Stage) -> None:
    terminal = await stage.menu_by_ctrl_c()
    await stage.machine.set_state(stage.loop, refuse="not \x1b[2J today")
    terminal.type("f\n")
    await terminal.until("an empty line ends it")
    await stage.lines(terminal, "faster")
    await terminal.until("not ␛[2J today")
    await terminal.until(MENU)


async def test_the_menu_opens_by_itself_where_a_decision_is_waited_for(stage: Stage) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    stage.machine.finish(run, succeeded())
    waits = {"status": "waiting_for_decision", "run": None, "waits_for": "iteration 1 is done"}
    await stage.machine.set_state(stage.loop, mode="checkpoint", checkpoints=[checkpoint(1, run=run)], **waits)
    await terminal.until("◆ checkpoint 1")
    await terminal.until("waiting for your decision: iteration 1 is done")
    await terminal.until(MENU)
    terminal.type("c\n")
    await stage.told("resume")
    await terminal.until("the loop goes on")
    # The next time, after an iteration that was shorter than a look, somebody else decides.
    await stage.machine.set_state(stage.loop, status="waiting_for_decision", iteration=2, totals={"iterations": 2})
    await terminal.until(MENU)
    await stage.steersman.loops.resume(stage.loop, mode="autonomous")
    await terminal.until("the loop went on meanwhile")
    await terminal.until("mode autonomous")
    await stage.machine.end_loop(stage.loop)
    assert await terminal.ended() == 0


async def test_the_menu_by_key_stops_nothing(stage: Stage) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    terminal.type("m")
    await terminal.until("the loop goes on while this menu is open")
    await terminal.until(MENU)
    stage.machine.show(run, said("second words"))
    terminal.type("x")
    await terminal.until("x")
    assert "second words" not in terminal.text, "what is typed must stay readable"
    terminal.type("\x7f\n")
    await terminal.until("second words")
    assert await stage.machine.calls(stage.loop) == []


async def test_a_text_that_is_being_typed_is_no_keys_when_somebody_else_decides(stage: Stage) -> None:
    run = await stage.at_work()
    terminal = await stage.attach()
    await terminal.until("first words")
    stage.machine.finish(run, succeeded())
    await stage.machine.set_state(stage.loop, status="waiting_for_decision", run=None)
    await terminal.until(MENU)
    terminal.type("f\n")
    await terminal.until("an empty line ends it")
    await terminal.until("> ")
    terminal.type("Do ")
    await stage.steersman.loops.resume(stage.loop, mode="autonomous")
    await asyncio.sleep(1.5)  # until it has heard of that
    for each in "not Panic":
        terminal.type(each)
        await asyncio.sleep(0.02)
    terminal.type("\n\n")
    calls = await stage.told("resume", "feedback")
    assert calls[1][1]["text"] == "Do not Panic"
    await terminal.until("the loop went on meanwhile")
