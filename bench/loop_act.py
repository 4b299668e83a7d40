"""The demo's last act: a loop of two iterations, a pause with feedback, a proved end."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from contextlib import aclosing

from bench import loop_story
from bench.screen import Screen, Watching
from bench.stack import Stack, is_there
from steersman.contracts.events import AgentEvent, ToolUseEvent
from steersman.contracts.loop_state import LoopState
from tests.scripted_model import Script

PATIENCE_S = 180.0


class LoopAct:
    """`script` is None where the agent talks to Claude."""

    def __init__(self, screen: Screen, made: Stack, script: Script | None) -> None:
        self.screen, self.stack, self.script = screen, made, script
        self.loops = made.client.loops
        self.workspace = made.home / "loop"

    async def play(self) -> None:
        """The whole act."""
        self.screen.act(
            "Loop",
            "A plan with two boxes, and a command that says whether the work is right. The loop runs the agent, "
            "iteration after iteration, until every box is ticked and the command passes: what the agent claims proves "
            "nothing.",
        )
        before = self._repository()
        loop = await self.loops.start(self._request())
        self.screen.note(f"loop {loop}")
        self.screen.link(f"{self.stack.ui}/{loop}")
        paused = await self.pause(loop)
        await self.resume(loop, paused)
        await self.finish(loop, before)

    async def pause(self, loop: str) -> LoopState:
        """In the middle of a tool call, once the agent has begun the long check."""
        watching = await self._until_check(loop)
        state = await self.loops.state(loop)
        agent = await self.stack.client.state(state.run or "")
        assert agent.handle
        self.screen.act(
            "Pause, with feedback",
            "The agent has begun something that takes a quarter of an hour. A pause ends its turn at once and keeps "
            "its session: a paused loop holds no process, and may stay so for weeks.",
        )
        with watching.held():
            begun = time.monotonic()
            await self.loops.pause(loop, now=True, reason="the demo")
            took = time.monotonic() - begun
            paused = await self.loops.state(loop)
            left = is_there(agent.handle.pid)
            self.screen.prove(
                "A pause",
                f"{paused.status} after {1000 * took:.0f} ms, in iteration {paused.iteration}; Claude Code "
                f"{agent.handle.pid} is {'still there' if left else 'gone'}, its session is kept",
                holds=paused.status == "paused" and not left and paused.failures == 0,
            )
        await watching.close()
        return paused

    async def resume(self, loop: str, paused: LoopState) -> None:
        """With what the person says; the same session goes on."""
        self.screen.note(f"feedback: {loop_story.FEEDBACK}")
        await self.loops.feedback(loop, loop_story.FEEDBACK)
        await self.loops.resume(loop)
        run = await self._run(loop, lambda state: state.run not in (None, paused.run))
        watching = Watching(self.stack.client, run, self.screen)
        await watching.to_the_end(PATIENCE_S)
        await watching.close()
        found = await self.stack.client.state(run)
        self.screen.prove(
            "The session after the pause",
            f"run {run} went on with session {found.session_id}",
            holds=found.session_id is not None and found.session_id == paused.session_id,
        )

    async def finish(self, loop: str, before: str) -> None:
        """What the loop says of its end, and what git says of its checkpoints."""
        result = await asyncio.wait_for(self.loops.result(loop), PATIENCE_S)
        verified = result.verification
        self.screen.prove(
            "A verified end",
            f"{result.status} after {result.iterations} iterations, ${result.cost_usd:.4f}: every box is ticked, and "
            f"`{loop_story.VERIFY}` {verified.status if verified else 'did not run'}",
            holds=result.status == "completed" and verified is not None and verified.status == "passed",
        )
        kept = await self.loops.checkpoints(loop)
        refs = self._git("for-each-ref", "--format=%(refname)", f"refs/steersman/{loop}").split()
        shown = ", ".join(f"{each.number} {each.kind}" for each in kept)
        untouched = self._repository() == before
        self.screen.prove(
            "Checkpoints",
            f"{shown}; {len(refs)} commits under refs/steersman; HEAD and index are "
            f"{'' if untouched else 'NOT '}as they were",
            holds=len(refs) == len(kept) > 2 and untouched,
        )

    async def _until_check(self, loop: str) -> Watching:
        """Follow run after run until the agent has begun the long check."""
        seen: set[str | None] = {None}
        while True:
            run = await self._run(loop, lambda state: state.run not in seen)
            seen.add(run)
            if run.endswith("-verify"):
                continue
            watching = Watching(self.stack.client, run, self.screen)
            try:
                await watching.until("the agent runs the long check", _begins_check, patience_s=PATIENCE_S)
            except RuntimeError:
                await watching.close()
                await self._tell_verification(loop)
            else:
                return watching

    async def _tell_verification(self, loop: str) -> None:
        state = await self._state(loop, lambda state: state.verification is not None)
        found = state.verification
        assert found
        last = found.output.strip().splitlines()[-1:] or [""]
        self.screen.note(f"iteration {found.iteration} is over; verification {found.status}: {last[0]}")
        self.screen.note("its output is in the next prompt")

    async def _run(self, loop: str, wanted: Callable[[LoopState], bool]) -> str:
        return (await self._state(loop, wanted)).run or ""

    async def _state(self, loop: str, wanted: Callable[[LoopState], bool]) -> LoopState:
        async with asyncio.timeout(PATIENCE_S), aclosing(self.loops.follow(loop)) as items:
            async for item in items:
                if isinstance(item, LoopState) and wanted(item):
                    return item
        raise RuntimeError(f"loop {loop} ended too soon")

    def _request(self) -> dict[str, object]:
        run: dict[str, object] = {
            "agent": "claude",
            "workspace": {"path": str(self.workspace)},
            "permissions": {"mode": "accept_edits", "allow": ["Bash"]},
            "labels": {"demo": "loop"},
        }
        if self.script:
            run["env"] = {"ANTHROPIC_BASE_URL": self.script.url}
        return {
            "run": run,
            "plan": {"path": "PLAN.md"},
            "done": {"items": {"kind": "checkboxes"}, "verify": {"command": loop_story.VERIFY, "timeout_s": 60}},
            "limits": {"iterations": 5, "cost_usd": 2},
            "pause_between_s": 1,
        }

    def _repository(self) -> str:
        return self._git("rev-parse", "HEAD") + self._git("ls-files", "--stage")

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.workspace, capture_output=True, text=True, check=True).stdout


def _begins_check(event: AgentEvent) -> bool:
    return isinstance(event, ToolUseEvent) and loop_story.LONG_CHECK in str(event.input.get("command"))
