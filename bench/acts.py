"""The demo's acts: what is done, and what proves it."""

import asyncio
from collections.abc import Callable, Mapping

from bench import story
from bench.screen import Screen, Watching
from bench.stack import Stack, is_there, until
from steersman.contracts.events import AgentEvent, FileChangeEvent, ToolUseEvent, is_terminal
from steersman.contracts.run import MessageRecord, RunState
from tests.scripted_model import Script


class Acts:
    """In order; each takes what the one before left. `scripts` is empty where the agent talks to Claude."""

    def __init__(self, screen: Screen, made: Stack, scripts: Mapping[str, Script]) -> None:
        self.screen, self.stack, self.scripts = screen, made, scripts
        self.steersman = made.client
        self.workspace = made.home / "workspace"

    async def play(self) -> None:
        """All of them."""
        run = await self.start()
        watching = Watching(self.steersman, run, self.screen)
        try:
            steered = await self.steer(run, watching)
            await self.lose_the_worker(run, watching, steered)
            await self.interrupt(run, watching)
            await self.finish(run, watching)
        finally:
            await watching.close()
        await self.stop()

    async def start(self) -> str:
        """A run of Claude Code; its id."""
        self.screen.act(
            "Start",
            "One JSON request starts a workflow. The workflow is the run: it can be found, cancelled and replayed in "
            "Temporal, and what follows here comes through Temporal alone.",
        )
        run = await self.steersman.start(self._request("work", story.PROMPT))
        self.screen.note(f"run {run}")
        self.screen.link(f"{self.stack.ui}/{run}")
        return run

    async def steer(self, run: str, watching: Watching) -> RunState:
        """A message into the running turn."""
        await watching.until("the agent runs the check", _runs(f"check.py {story.FIRST_CHECK}"))
        await self._check_grows()
        self.screen.act(
            "Steer",
            "The agent is in the middle of a tool call. A message goes into its running turn, without stopping it: the "
            "answer says that the agent has it, and it reads it when the tool is done.",
        )
        with watching.held():
            self.screen.note(f"steer: {story.STEER}")
            receipt = await self.steersman.steer(run, story.STEER)
            self.screen.prove(
                "A message into the running turn",
                f"steer {receipt.state} after {receipt.latency_ms} ms, while a tool was running",
                holds=receipt.state in ("delivered", "acknowledged"),
            )
        return await self.steersman.state(run)

    async def lose_the_worker(self, run: str, watching: Watching, before: RunState) -> None:
        """SIGKILL, and another worker."""
        worker = self.stack.workers[-1]
        assert before.handle
        pid = before.handle.pid
        self.screen.act(
            "Kill the worker",
            "The machine runs out of memory, somebody deploys: the worker dies in the middle, with SIGKILL. The agent "
            "is no child of it: it works on, and the next worker goes on with it where the last one left off.",
        )
        await worker.kill()
        self.screen.note(f"worker {worker.pid} killed; Claude Code is pid {pid}", "bold red")
        alone_from = self._checks()
        await until("the agent works without a worker", lambda: self._checks() >= alone_from + 3)
        alone = self._checks() - alone_from
        self.screen.note(f"no worker lives; the agent's check has gone on by {alone} lines")
        successor = await self.stack.start_worker(*worker_flags(self.scripts))
        self.screen.note(
            f"worker {successor.pid} started; it takes over once the dead one's heartbeat is missed (10 s)"
        )
        seen = watching.events[-1].seq
        progress = asyncio.create_task(self._tell_progress())
        try:
            await watching.until("an event by the new worker", lambda event: event.seq > seen)
        finally:
            progress.cancel()
        await watching.until("the check's result", lambda event: event.type == "tool_result", after=seen)
        after = await self.steersman.state(run)
        same = after.handle is not None and (after.handle.pid, after.handle.start_time) == (
            pid,
            before.handle.start_time,
        )
        self.screen.prove(
            "A worker's death",
            f"Claude Code is the same process as before, pid {pid}, attempt {after.attempt}; it worked on for {alone} "
            "lines while no worker lived",
            holds=same and is_there(pid) and after.attempt == 1 and alone > 0,
        )

    async def interrupt(self, run: str, watching: Watching) -> None:
        """End the turn, keep the session, go on with a text."""
        made = await watching.until("the agent writes wordcount.py", _changes("wordcount.py"))
        await watching.until("the agent runs the long check", _runs("check.py"), after=made.seq)
        await self._check_grows()
        self.screen.act(
            "Interrupt",
            "The agent has begun something that takes a quarter of an hour. An interrupt ends the turn at once, its "
            "tool included, keeps the session and its memory, and goes on with what you say.",
        )
        with watching.held():
            self.screen.note(f"interrupt: {story.INTERRUPTION}")
            receipt = await self.steersman.interrupt(run, story.INTERRUPTION)
            self.screen.prove(
                "An interrupt",
                f"interrupt {receipt.state} after {receipt.latency_ms} ms ({receipt.how}); the session goes on",
                holds=receipt.state in ("delivered", "acknowledged"),
            )

    async def finish(self, run: str, watching: Watching) -> None:
        """The end of the run, and whether all of it was seen."""
        end = await watching.to_the_end()
        result = await self.steersman.result(run)
        state = await self.steersman.state(run)
        self.screen.view.footer(result.status, result, result.ended_at, result.changes)
        taken = [each for each in state.messages if each.state == "acknowledged"]
        times = ", ".join(f"the {each.kind} within {_waited(each)} ({each.how})" for each in taken)
        self.screen.prove(
            "Messages read",
            f"run {result.status}; Claude Code acknowledged {times}",
            holds=result.status == "succeeded" and [each.kind for each in taken] == ["steer", "interrupt"],
        )
        kept = await self.steersman.events(run)
        numbers = [event.seq for event in watching.events]
        whole = numbers == list(range(1, end.seq + 1)) and kept == watching.events
        ends = sum(map(is_terminal, watching.events))
        history = len((await self.steersman.temporal.get_workflow_handle(run).fetch_history()).events)
        self.screen.prove(
            "Events across the worker's death",
            f"{len(numbers)} events, numbered 1 to {end.seq} without a gap, one end; read again after it, the same; "
            f"the workflow's history has {history} events",
            holds=whole and ends == 1 and history < 100,
        )

    async def stop(self) -> None:
        """A second run, and nothing left of it."""
        self.screen.act(
            "Stop",
            "A second run, whose tool starts processes that ignore SIGTERM, forked twice and left the session. Cancel "
            "is Temporal's own: here, in its Web UI or its CLI. The run closes once it is proven that nothing is left.",
        )
        run = await self.steersman.start(self._request("stubborn", story.STUBBORN_PROMPT))
        self.screen.link(f"{self.stack.ui}/{run}")
        watching = Watching(self.steersman, run, self.screen)
        try:
            await watching.until("the agent runs stubborn.py", _runs("stubborn.py"))
            pids = self.workspace / "stubborn.pids"
            await until("its processes", lambda: pids.exists() and len(pids.read_text().split()) == 3)
            state = await self.steersman.state(run)
            assert state.handle
            family = [state.handle.pid, *map(int, pids.read_text().split())]
            self.screen.note(f"alive: Claude Code {family[0]}, and {', '.join(map(str, family[1:]))} that will not go")
            found = await self.steersman.stop(run, reason="the demo")
            await watching.to_the_end(30)
        finally:
            await watching.close()
        left = [pid for pid in family if is_there(pid)]
        seen = f"still there: {', '.join(map(str, left))}" if left else "none of them is there any more"
        self.screen.prove(
            "A stop with proof",
            f"{found.outcome}: {found.processes} processes {found.how} in {found.took_ms} ms; {seen}",
            holds=found.outcome == "stopped" and not found.left and not left,
        )

    def _request(self, script: str, prompt: str) -> dict[str, object]:
        request: dict[str, object] = {
            "agent": "claude",
            "prompt": prompt,
            "workspace": {"path": str(self.workspace)},
            "permissions": {"mode": "accept_edits", "allow": ["Bash"]},
            "limits": {"duration_s": 600, "cost_usd": 2},
            "lease_s": 120,
            "labels": {"demo": script},
        }
        if self.scripts:
            request["env"] = {"ANTHROPIC_BASE_URL": self.scripts[script].url}
        return request

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(3)
            self.screen.note(f"... meanwhile the agent's check is at line {self._checks()}", "dim")

    def _checks(self) -> int:
        log = self.workspace / "check.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    async def _check_grows(self) -> None:
        before = self._checks()
        await until("the check runs", lambda: self._checks() > before)


def _waited(message: MessageRecord) -> str:
    seconds = ((message.settled_at or message.received_at) - message.received_at).total_seconds()
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _runs(command: str) -> Callable[[AgentEvent], bool]:
    return lambda event: isinstance(event, ToolUseEvent) and command in str(event.input.get("command"))


def _changes(name: str) -> Callable[[AgentEvent], bool]:
    return lambda event: isinstance(event, FileChangeEvent) and event.path.endswith(name)


def worker_flags(scripts: Mapping[str, Script]) -> list[str]:
    """What a worker has to allow for the scripted model."""
    return ["--allow-env", "ANTHROPIC_BASE_URL"] if scripts else []
