"""Commands of `steer loop` that ask the person at a real terminal before they act."""

import asyncio
import os
import shlex
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.loopstage import Stage
from tests.client.fake_loop import checkpoint

pytestmark = pytest.mark.acceptance


async def test_resume_without_an_id_offers_what_can_be_resumed_here(stage: Stage, tmp_path: Path) -> None:
    await stage.machine.set_state(stage.loop, status="paused", waits_for="lunch \x1b[2J")
    other = await stage.steersman.loops.start(
        {
            "run": {"agent": "claude", "workspace": {"path": "/elsewhere"}},
            "plan": "x",
            "done": {"verify": {"command": "true"}},
        }
    )
    await stage.machine.set_state(other, status="paused")
    # Other tests' loops are listed, too: both of these are waited for.
    while not {stage.loop, other} <= {
        each.id for each in await stage.steersman.loops.list('ExecutionStatus="Running"')
    }:
        await asyncio.sleep(0.05)
    terminal = await stage.steer.at_terminal("loop", "resume", cwd=str(tmp_path / "app"))
    await terminal.until(f"1  {stage.loop}  paused (lunch ␛[2J)")
    await terminal.until("Resume which one? 1-1 (Enter for 1) >")
    assert other not in terminal.text
    terminal.type("7\n")
    await terminal.until(">")
    terminal.type("1\n")
    await terminal.until("running, iteration 0")
    assert await terminal.ended() == 0
    await stage.told("resume")
    everywhere = await stage.steer.at_terminal("loop", "resume", cwd="/")
    await everywhere.until(other)
    everywhere.ctrl_c()
    assert await everywhere.ended() == 130
    await stage.steersman.temporal.get_workflow_handle(other).terminate()


async def test_cleanup_wants_the_word_typed(stage: Stage) -> None:
    await stage.machine.set_state(stage.loop, checkpoints=[checkpoint(number) for number in range(3)])
    for answer, code in (("y", 130), ("", 130), ("delete", 0)):
        terminal = await stage.steer.at_terminal("loop", "cleanup", stage.loop, "--oldest", "2")
        await terminal.until("delete 2 of 3 checkpoints")
        await terminal.until("Type delete to do it >")
        assert await stage.machine.calls(stage.loop) == []
        terminal.type(f"{answer}\n")
        assert await terminal.ended() == code
    calls = await stage.told("checkpoints")
    assert calls[0][1] == {"numbers": [0, 1]}


@pytest.mark.parametrize("command", [("loop", "cleanup", "LOOP", "--all"), ("loop", "resume")])
async def test_a_question_that_is_left_by_sigterm(stage: Stage, tmp_path: Path, command: tuple[str, ...]) -> None:
    await stage.machine.set_state(stage.loop, status="paused", checkpoints=[checkpoint(number) for number in range(3)])
    words = [stage.loop if each == "LOOP" else each for each in command]
    terminal = await stage.steer.at_terminal(*words, cwd=str(tmp_path / "app"))
    await terminal.until(" >")
    os.kill(terminal.pid, signal.SIGTERM)
    assert await terminal.ended() == 143
    assert await stage.machine.calls(stage.loop) == []


async def test_revise_opens_the_editor(stage: Stage, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "and better" >> "$1"\n')
    editor.chmod(0o755)
    terminal = await stage.steer.at_terminal("loop", "revise", stage.loop, EDITOR=str(editor), VISUAL="")
    await terminal.until("plan version 2")
    assert await terminal.ended() == 0
    calls = await stage.told("revise")
    assert calls[0][1] == {"plan": "Make it good\nand better\n"}
    unchanged = await stage.steer.at_terminal("loop", "revise", stage.loop, EDITOR="true", VISUAL="")
    await unchanged.until("the plan is as it was")
    assert await unchanged.ended() == 0
    for editor_ in ("false", "/not/there"):
        failed = await stage.steer.at_terminal("loop", "revise", stage.loop, EDITOR=editor_, VISUAL="")
        await failed.until("the plan is as it was for the loop")
        assert await failed.ended() == 1
        assert "Traceback" not in failed.raw


async def test_ctrl_c_in_the_editor_is_the_editors(stage: Stage) -> None:
    editor = "sh -c 'trap : INT; echo EDITING; read -r _; echo better >> \"$0\"'"
    terminal = await stage.steer.at_terminal("loop", "revise", stage.loop, EDITOR=editor, VISUAL="")
    await terminal.until("EDITING")
    terminal.ctrl_c()
    await terminal.until("^C")
    terminal.type("\n")
    await terminal.until("plan version 2")
    assert await terminal.ended() == 0
    assert (await stage.told("revise"))[0][1] == {"plan": "Make it good\nbetter\n"}


@pytest.mark.parametrize(
    ("editor", "code", "why"),
    [
        ('echo better >> "$0"; kill -9 $$', 1, "Editing failed"),
        ('echo better >> "$0"; kill -TERM $PPID; sleep 1', 143, ""),
        ('echo better >> "$0"; head -c 70000 /dev/zero | tr \'\\0\' x >> "$0"', 2, "longer than 64 KiB"),
        ("printf 'better\\377' > \"$0\"", 1, "no text in UTF-8"),
    ],
)
async def test_what_was_written_is_kept_where_nothing_came_of_it(
    stage: Stage, tmp_path: Path, editor: str, code: int, why: str
) -> None:
    command = shlex.join(["sh", "-c", editor])
    env = {"EDITOR": command, "VISUAL": "", "TMPDIR": str(tmp_path)}
    terminal = await stage.steer.at_terminal("loop", "revise", stage.loop, **env)
    await terminal.until("what you wrote is kept in")
    await terminal.until(why)
    assert await terminal.ended() == code
    (kept,) = tmp_path.glob("steer-*.md")
    assert str(kept) in terminal.text
    assert b"better" in kept.read_bytes()
    assert await stage.machine.calls(stage.loop) == []


async def test_a_plan_that_was_revised_meanwhile_is_not_written_over(stage: Stage, tmp_path: Path) -> None:
    editor = "sh -c 'echo better >> \"$0\"; echo EDITING; read -r _'"
    env = {"EDITOR": editor, "VISUAL": "", "TMPDIR": str(tmp_path)}
    terminal = await stage.steer.at_terminal("loop", "revise", stage.loop, **env)
    await terminal.until("EDITING")
    await stage.machine.set_state(
        stage.loop, plan={"number": 2, "text": "Another", "hash": "", "since": datetime.now(UTC)}, plan_versions=2
    )
    terminal.type("\n")
    await terminal.until("what you wrote is kept in")
    await terminal.until("somebody has revised the plan meanwhile: it is version 2 now")
    assert await terminal.ended() == 5
    assert await stage.machine.calls(stage.loop) == []


async def test_no_editor_opens_for_a_loop_that_has_ended(stage: Stage) -> None:
    await stage.machine.set_state(stage.loop, status="exited")
    terminal = await stage.steer.at_terminal("loop", "revise", stage.loop, EDITOR="sh -c 'echo EDITING'", VISUAL="")
    await terminal.until("has ended")
    assert await terminal.ended() == 5
    assert "EDITING" not in terminal.text
