"""Cancel request -> no process of the agent left."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from claude_agent_sdk import ClaudeSDKClient

from bench import marks
from bench.agents import TOOL, Bench, soon
from bench.figures import Figure, Goal, spread
from bench.hops import Hop, history, hops, medians
from bench.story import STUBBORN
from tests.scripted_model import Script, hold, tool

SAMPLES = 40
SDK_SAMPLES = 3
STUBBORN_SAMPLES = 40
AT_ONCE = 2


async def streaming(bench: Bench) -> list[Figure]:
    """Claude streams an answer."""
    script = bench.script("cancel-streaming", hold("Once upon a time"))

    async def ready(asked: int) -> None:
        await script.wait_requests(asked)
        await script.wait_held()

    return [await _claude(bench, script, "Claude streaming", ready)]


async def in_a_tool(bench: Bench) -> list[Figure]:
    """Claude's Bash tool runs."""
    script = bench.script("cancel-tool", tool("Bash", command=TOOL))

    async def ready(asked: int) -> None:
        await script.wait_requests(asked)

    return [await _claude(bench, script, "Claude in a tool", ready, tool_runs=True)]


async def stubborn(bench: Bench) -> list[Figure]:
    """A process that ignores SIGTERM, with grandchildren that forked twice and left its session."""
    program = bench.workspace / "stubborn.py"
    program.write_text(STUBBORN)
    took: list[float] = []
    problems: list[str] = []

    async def one() -> None:
        run = await bench.stack.client.start(bench.process(sys.executable, str(program)))
        mark = await _marked(bench, run, lambda found: len(found) == 3)
        sample, problem = await cancelled(bench, run, mark)
        took.append(sample)
        problems.extend(filter(None, [problem]))

    for _ in range(STUBBORN_SAMPLES // AT_ONCE):
        # A stop waits most of its time, so a few at once do not disturb each other.
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    baseline = await asyncio.to_thread(_killpg, str(program), str(bench.workspace))
    what = "cancel -> nothing left: a process that ignores SIGTERM, with setsid grandchildren"
    return [Figure(what, "ms", tuple(took), Goal(p99=1900), baseline, lost="; ".join(problems))]


async def _claude(
    bench: Bench, script: Script, name: str, ready: Callable[[int], Awaitable[None]], *, tool_runs: bool = False
) -> Figure:
    took: list[float] = []
    problems: list[str] = []
    paths: list[list[Hop]] = []
    for number in range(SAMPLES):
        run = await bench.stack.client.start(bench.claude(script))
        await soon(ready(number + 1), f"{name}: the model is asked")
        mark = await _marked(bench, run, lambda found: len(found) > 1 if tool_runs else bool(found))
        sample, problem = await cancelled(bench, run, mark)
        took.append(sample)
        problems.extend(filter(None, [problem]))
        paths.append(hops(await history(bench.stack.client, run), "WorkflowExecutionCancelRequested"))
    alone = [await _sdk(bench, script, ready, SAMPLES + each + 1, tool_runs=tool_runs) for each in range(SDK_SAMPLES)]
    left = max(count for _, count in alone)
    baseline = f"SDK disconnect(): {spread([ms for ms, _ in alone])}" + (f", {left} processes left" if left else "")
    return Figure(
        f"cancel -> nothing left: {name}",
        "ms",
        tuple(took),
        Goal(p50=300, p99=1000),
        baseline,
        lost="; ".join(problems),
        hops=medians(paths),
    )


async def _marked(bench: Bench, run: str, enough: Callable[[set[int]], bool]) -> str:
    async def look() -> str:
        while True:
            if any(bench.stack.state.glob(f"runs/{run}/*/attempts/*/state.json")):
                mark = marks.mark_of(bench.stack.state, run)
                if enough(marks.marked(mark)):
                    return mark
            await asyncio.sleep(0.02)

    return await soon(look(), f"processes of {run}")


async def cancelled(bench: Bench, run: str, mark: str) -> tuple[float, str]:
    """Milliseconds, and what went wrong."""
    handle = bench.stack.client.temporal.get_workflow_handle(run)
    watch = asyncio.create_task(asyncio.to_thread(marks.wait_until_gone, mark))
    await asyncio.sleep(0.02)  # the watch has looked through /proc by then
    begun = time.monotonic()
    await handle.cancel()
    gone = await watch
    await soon(bench.stack.client.stop(run), f"{run} closes")
    state = await bench.stack.client.state(run)
    report = state.stop_report
    stopped = report is not None and report.outcome == "stopped" and not report.left
    problem = f"{run}: left {sorted(gone.left)}" if gone.left else "" if stopped else f"{run}: reported {report}"
    return 1000 * (gone.at - begun), problem


async def _sdk(
    bench: Bench, script: Script, ready: Callable[[int], Awaitable[None]], asked: int, *, tool_runs: bool
) -> tuple[float, int]:
    """Milliseconds until disconnect() came back, and how many processes it has left behind."""
    mark = f"sdk-{os.getpid()}-{asked}"
    async with bench.sdk(script, mark) as client:
        await client.connect()
        await client.query("Go.")
        await soon(ready(asked), "the model is asked")
        while len(marks.marked(mark)) < 1 + tool_runs:
            await asyncio.sleep(0.02)
        took = await _timed(client)
    return took, _kill(mark)


async def _timed(client: ClaudeSDKClient) -> float:
    begun = time.monotonic()
    await client.disconnect()
    return 1000 * (time.monotonic() - begun)


def _killpg(program: str, workspace: str) -> str:
    """The plain way: SIGTERM to the process group, SIGKILL after 1.5 s."""
    mark = f"killpg-{os.getpid()}"
    env = {**os.environ, marks.NAME: mark}
    child: subprocess.Popen[Any] = subprocess.Popen(
        [sys.executable, program], cwd=workspace, env=env, start_new_session=True
    )
    while len(marks.marked(mark)) < 3:
        time.sleep(0.02)
    begun = time.monotonic()
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(1.5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    took = 1000 * (time.monotonic() - begun)
    return f"Popen + killpg: {took:.0f} ms, {_kill(mark)} processes left"


def _kill(mark: str) -> int:
    """Kill what a baseline has left; how many."""
    left = marks.marked(mark)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(left)
