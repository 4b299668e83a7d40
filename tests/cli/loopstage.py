"""A played loop, and `steer loop attach` on a terminal: what the tests of the menu and of the keys share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError

from steersman.client import Steersman
from steersman.contracts.loop import parse_loop_request
from tests.cli.steer import Steer
from tests.cli.terminal import Terminal
from tests.client.fake_host import init, said, succeeded
from tests.client.fake_loop import FakeLoopHost

MENU = "[C]ontinue (default)  [R]evise  [F]eedback  [S]tart over  [E]xit >"


class Stage:
    """One loop of the fake host's, with `steer loop attach` on a terminal."""

    def __init__(self, steer: Steer, machine: FakeLoopHost, steersman: Steersman, loop: str) -> None:
        self.steer, self.machine, self.steersman, self.loop = steer, machine, steersman, loop

    async def attach(self) -> Terminal:
        terminal = await self.steer.at_terminal("loop", "attach", self.loop)
        await terminal.until("claude in")
        return terminal

    async def at_work(self, number: int = 1) -> str:
        """An iteration that has said something."""
        run = await self.machine.begin_run(self.loop, number)
        self.machine.show(run, init(), said("first words"))
        return run

    async def told(self, *names: str) -> list[tuple[str, Any]]:
        """What was said to the loop, once these verbs were."""
        async with asyncio.timeout(20):
            while True:
                calls = await self.machine.calls(self.loop)
                if [name for name, _ in calls] == list(names):
                    return calls
                assert len(calls) <= len(names), calls
                await asyncio.sleep(0.02)

    async def menu_by_ctrl_c(self, number: int = 1) -> Terminal:
        """The menu over an iteration that was paused by it."""
        run = await self.at_work(number)
        terminal = await self.attach()
        await terminal.until("first words")
        terminal.ctrl_c()
        await terminal.until("pausing now")
        await terminal.until(MENU)
        await self.told("pause")
        self.machine.finish(run, succeeded())
        return terminal

    async def lines(self, terminal: Terminal, *lines: str) -> None:
        """A text of several lines, typed at its prompts."""
        for line in (*lines, ""):
            await terminal.until("> ")
            terminal.type(f"{line}\n")


@pytest.fixture
async def stage(steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "app").mkdir()
    loop = await steersman.loops.start(
        {
            "run": {"agent": "claude", "workspace": {"path": str(tmp_path / "app")}},
            "plan": "Make it good",
            "done": {"verify": {"command": "true"}},
        }
    )
    yield Stage(steer, loop_host, steersman, loop)
    with suppress(RPCError):  # it has closed
        await steersman.temporal.get_workflow_handle(loop).terminate()


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A workspace with a plan."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "PLAN.md").write_text("- [ ] one\n")
    return str(tmp_path / "app")


async def begin(steersman: Steersman, place: str, **fields: Any) -> str:
    """A loop of the fake host's."""
    request = {
        "run": {"agent": "claude", "workspace": {"path": place}},
        "plan": {"path": "PLAN.md"},
        "done": {"items": {"kind": "checkboxes"}},
    }
    return await steersman.loops.start(request | fields)


async def request_of(steersman: Steersman, loop: str) -> dict[str, Any]:
    """What the loop was started with."""
    asked: dict[str, Any] = await steersman.loops._calls.request(loop)  # noqa: SLF001 - as a fork reads it
    parse_loop_request(asked)
    return asked
