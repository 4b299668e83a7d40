"""`make demo AGENT=codex` and the others: a run whose worker dies while a tool is at work, that is interrupted, and a
second one that is stopped. The model is scripted: no agent's key is used.
"""

import sys
from collections.abc import Callable
from typing import Any

from bench.casts import Player
from bench.screen import Screen, Watching
from bench.stack import Stack, is_there, until
from steersman.contracts.events import AgentEvent, ToolUseEvent
from tests.scripted_model import Say, Script, ScriptedModel, answer, say

LINE, WORDS = "the check goes on", "rather than that, write it down"
CHECK = f"""
import os, time
with open("check.pid", "w") as file:
    file.write(str(os.getpid()))
for _ in range(100):
    with open("check.log", "a") as file:
        file.write("{LINE}\\n")
    time.sleep(0.2)
"""
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid() if os.fork() == 0 else None
with open("stubborn.pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


class AgentAct:
    """All of it, for the agent of this name. Raises StackError where its program is not installed, by `prepare`."""

    def __init__(self, screen: Screen, made: Stack, agent: str) -> None:
        self._screen, self._stack, self._agent = screen, made, agent
        self._workspace = made.home / "workspace"
        self._flags: tuple[str, ...] = ()

    async def prepare(self, model: ScriptedModel) -> Script:
        """A worker whose agent has a script for its model."""
        self._player = Player(self._agent)
        self._workspace.mkdir()
        (self._workspace / "stubborn.py").write_text(STUBBORN)
        (self._workspace / "check.py").write_text(CHECK)
        shell = self._player.cast.shell
        work = answer(Say("I run the check."), shell(f"{sys.executable} check.py"))
        stubborn = answer(Say("I start it."), shell(f"{sys.executable} stubborn.py"))

        def play(request: Any) -> Any:
            if request.saw("Run stubborn.py."):
                return stubborn
            return say("It is written down.") if request.saw(WORDS) else work

        script = model.script("demo", *[play] * 20)
        self._flags = await self._player.start_worker(self._stack, script, "--trust", str(self._workspace))
        return script

    async def play(self) -> None:
        """Both runs."""
        run = await self._start("Run the check, and write down what it says.")
        watching = Watching(self._stack.client, run, self._screen)
        try:
            await watching.until("the agent runs the check", _runs("check.py"))
            await until("the check runs", lambda: self._lines() > 0)
            await self._lose_the_worker(run)
            await self._speak(run, watching)
        finally:
            await watching.close()
        await self._stop()

    async def _start(self, prompt: str) -> str:
        self._screen.act("Start", f"A run of {self._agent}, the real program: one JSON request, one workflow.")
        run = await self._stack.client.start(self._player.request(self._workspace, prompt))
        self._screen.link(f"{self._stack.ui}/{run}")
        return run

    async def _lose_the_worker(self, run: str) -> None:
        before = await self._stack.client.state(run)
        assert before.handle
        self._screen.act("Kill the worker", "SIGKILL, while a tool is at work; another worker goes on with the agent.")
        await self._stack.workers[-1].kill()
        lines = self._lines()
        await until("the agent works without a worker", lambda: self._lines() > lines + 2)
        await self._stack.start_worker(*self._flags)
        pid = before.handle.pid
        self._screen.prove(
            "A worker's death",
            f"{self._agent} is the same process as before, pid {pid}, and worked on for {self._lines() - lines} lines",
            holds=is_there(pid),
        )

    async def _speak(self, run: str, watching: Watching) -> None:
        self._screen.act("Interrupt", "The turn ends, its tool included; the session goes on with what you say.")
        with watching.held():
            receipt = await self._stack.client.interrupt(run, WORDS)
        await watching.to_the_end()
        result = await self._stack.client.result(run)
        (told,) = (await self._stack.client.state(run)).messages
        self._screen.view.footer(result.status, result, result.ended_at, result.changes)
        works_on = is_there(int((self._workspace / "check.pid").read_text()))
        self._screen.prove(
            "An interrupt",
            f"{receipt.state} after {receipt.latency_ms} ms, {told.state} in the end ({told.how}); "
            f"{'the tool works on' if works_on else 'the tool is gone'}",
            holds=told.state == "acknowledged" and result.status == "succeeded" and not works_on,
        )

    async def _stop(self) -> None:
        run = await self._start("Run stubborn.py.")
        pids = self._workspace / "stubborn.pids"
        await until("its processes", lambda: pids.exists() and len(pids.read_text().split()) == 2)
        state = await self._stack.client.state(run)
        assert state.handle
        family = [state.handle.pid, *map(int, pids.read_text().split())]
        self._screen.act("Stop", "Its tool has started processes that ignore SIGTERM and left the session.")
        found = await self._stack.client.stop(run, reason="the demo")
        left = [pid for pid in family if is_there(pid)]
        self._screen.prove(
            "A stop with proof",
            f"{found.outcome}: {found.processes} processes {found.how} in {found.took_ms} ms; "
            f"{'still there: ' + ', '.join(map(str, left)) if left else 'none of them is there any more'}",
            holds=found.outcome == "stopped" and not found.left and not left,
        )

    def _lines(self) -> int:
        log = self._workspace / "check.log"
        return len(log.read_text().splitlines()) if log.exists() else 0


def _runs(command: str) -> Callable[[AgentEvent], bool]:
    return lambda event: isinstance(event, ToolUseEvent) and command in str(event.input)
