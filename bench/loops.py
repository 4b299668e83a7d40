"""Loops: what an iteration costs beyond its run, how much history it leaves, how soon a paused loop is awake again."""

import asyncio
import itertools
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.history.v1 import HistoryEvent

from bench.agents import Bench, soon
from bench.figures import Figure, Goal, spread
from bench.hops import history, name_of
from steersman.contracts import names
from tests.workflows.conftest import time_skipping
from tests.workflows.fake_loop_host import FakeLoopHost
from tests.workflows.loop_results import items

ITERATIONS = 60
WAKES = 40
LONG = 10_000
LONG_PATIENCE_S = 1800.0
EVENTS = 40
"""An iteration may leave so many in the loop's history."""
WORK = "echo done >> log.txt"


@dataclass(frozen=True)
class Iteration:
    """One, in milliseconds."""

    whole: float
    runs: float
    """Of it, what its run took: from its start to its end, as Temporal has them."""


async def iterations(bench: Bench) -> list[Figure]:
    """A trivial agent in a git repository, iteration after iteration without a pause."""
    by_hand = [await _alone(bench) for _ in range(20)]
    bare, bare_events = await _loop(bench, {"items": {"kind": "checkboxes", "path": "PLAN.md"}})
    verified, verified_events = await _loop(bench, {"verify": {"command": "test -e never"}})
    baseline = f"client start + result, beyond the run: {spread(by_hand)}"
    longest = max(bare_events, verified_events)
    return [
        _overhead("a loop's iteration, beyond its run", bare, baseline, Goal(p50=200)),
        _overhead("a loop's iteration, beyond its run and its verification's", verified, baseline, Goal(p50=200)),
        Figure("history of a loop, an iteration with verification", "events", (longest,), Goal(p99=EVENTS)),
    ]


def _overhead(what: str, found: list[Iteration], baseline: str, goal: Goal) -> Figure:
    samples = tuple(each.whole - each.runs for each in found)
    runs = [each.runs for each in found]
    return Figure(what, "ms", samples, goal, baseline, f"the runs themselves: {spread(runs)}")


async def _alone(bench: Bench) -> float:
    """Milliseconds around one run that a client starts and waits for, those of the run itself taken off."""
    begun = time.monotonic()
    run = await bench.stack.client.start(bench.process("sh", "-c", WORK))
    await bench.stack.client.result(run)
    took = 1000 * (time.monotonic() - begun)
    return took - _took(await history(bench.stack.client, run))


async def _loop(bench: Bench, done: dict[str, Any]) -> tuple[list[Iteration], float]:
    """The iterations of one loop, the first left out, and how many events one leaves."""
    workspace = repository(bench.workspace / f"loop-{len(list(bench.workspace.iterdir()))}")
    loop = await _start(bench, workspace, done, iterations=ITERATIONS)
    await soon(loop.result(), "a loop's end", LONG_PATIENCE_S)
    events = await history(bench.stack.client, loop.id)
    begun: list[tuple[float, str]] = []
    for event in events:
        child = event.start_child_workflow_execution_initiated_event_attributes.workflow_id
        if name_of(event).startswith("StartChildWorkflowExecutionInitiated"):
            begun.append((_at(event), child))
    took = {run: _took(await history(bench.stack.client, run)) for _, run in begun}
    marks = [number for number, (_, run) in enumerate(begun) if not run.endswith("-verify")]
    found = []
    for this, following in itertools.pairwise(marks[1:]):
        runs = sum(took[run] for _, run in begun[this:following])
        found.append(Iteration(begun[following][0] - begun[this][0], runs))
    return found, len(events) / ITERATIONS


async def waking(bench: Bench) -> list[Figure]:
    """A paused loop is told to go on: until its next run has started, by Temporal's clock."""
    workspace = repository(bench.workspace / "waking")
    done = {"items": {"kind": "checkboxes", "path": "PLAN.md"}}
    loop = await _start(bench, workspace, done, iterations=WAKES + 1, mode="checkpoint")
    answered, started = [], []
    for number in range(1, WAKES + 1):
        await soon(_waits(loop), "a decision")
        begun = time.time()
        await loop.execute_update(names.RESUME, {})
        answered.append(1000 * (time.time() - begun))
        run = bench.stack.client.temporal.get_workflow_handle(f"{loop.id}-{number + 1}")
        started.append(1000 * ((await soon(_started(run), "the next run")) - begun))
    await soon(loop.result(), "the loop's end")
    return [
        Figure(
            "a paused loop told to go on: until its next run has started",
            "ms",
            tuple(started),
            Goal(p50=100),
            "",
            f"the update's own answer: {spread(answered)}",
        )
    ]


async def _waits(loop: Any) -> None:
    while (await loop.query(names.STATE_QUERY))["status"] != "waiting_for_decision":
        await asyncio.sleep(0.02)


async def _started(run: Any) -> float:
    """Unix time of the run's start."""
    while True:
        try:
            return float((await run.describe()).start_time.timestamp())
        except Exception:  # noqa: BLE001 - not there yet
            await asyncio.sleep(0.01)


async def ten_thousand(_bench: Bench) -> list[Figure]:
    """10,000 iterations whose runs are stand-ins: the loop's own bookkeeping, through continue-as-new.

    On Temporal's test server: the dev server would take half an hour. Even so most of an iteration's time becomes the
    server's, as it holds more and more workflows in memory: 12 ms at first, over 40 after 3,000 iterations.
    The worker's own share stays at 30.
    """
    begun = time.monotonic()
    async with time_skipping() as server, FakeLoopHost(server.client).at_work(cached=10) as fake:
        fake.items = items(1, 1)
        done = {"items": {"kind": "checkboxes", "path": "PLAN.md"}}
        loop = await fake.start(limits={"iterations": LONG, "no_progress": 0}, done=done)
        outcome = await asyncio.wait_for(loop.result(), LONG_PATIENCE_S)
        took = time.monotonic() - begun
        kept = await _kept(loop)
        sizes, carried = await _executions(server.client, loop.id)
    missing = [f"{LONG - outcome['iterations']} iterations"] if outcome["iterations"] != LONG else []
    missing += [f"{LONG + 1 - kept} checkpoints"] if kept != LONG + 1 else []
    note = f"{len(sizes)} executions of at most {max(sizes):,} events; {kept:,} checkpoints, "
    note += f"{carried / 1e6:.2f} MB carried at most"
    events = sum(sizes) / LONG
    what = f"{LONG:,} iterations of a loop"
    return [
        Figure(f"{what}: history, an iteration", "events", (events,), Goal(p99=EVENTS), "", note, ", ".join(missing)),
        Figure(f"{what}: one of them, its run a stand-in", "ms", (1000 * took / LONG,)),
    ]


async def _kept(loop: Any) -> int:
    """How many checkpoints the query gives, page by page."""
    kept, after, more = 0, -1, True
    while more:
        page = await loop.query(names.CHECKPOINTS, {"after": after, "limit": 500})
        kept, more = kept + len(page["checkpoints"]), page["more"]
        after = page["checkpoints"][-1]["number"]
    return kept


async def _executions(client: Any, loop: str) -> tuple[list[int], int]:
    """The events of each execution of the loop, and the bytes of the last one's input."""
    sizes, size, run = [], 0, None
    while True:
        events = [each async for each in client.get_workflow_handle(loop, run_id=run).fetch_history_events()]
        sizes.append(len(events))
        start = events[0].workflow_execution_started_event_attributes
        size = max(size, sum(len(each.data) for each in start.input.payloads))
        run = start.continued_execution_run_id
        if not run:
            return sizes, size


async def _start(bench: Bench, workspace: Path, done: dict[str, Any], **more: Any) -> Any:
    request = {
        "run": bench.process("sh", "-c", WORK) | {"workspace": {"path": str(workspace)}},
        "plan": "append a line",
        "done": done,
        "limits": {"iterations": more.pop("iterations"), "no_progress": 0},
        "pause_between_s": 0,
        **more,
    }
    loop = await bench.stack.client.loops.start(request)
    return bench.stack.client.temporal.get_workflow_handle(loop)


def repository(path: Path) -> Path:
    """A small git repository with a plan that is never done."""
    path.mkdir()
    (path / "PLAN.md").write_text("# Plan\n\n- [ ] never\n")
    me = {f"GIT_{who}_{what}": "bench@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    quiet = {**os.environ, **me, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=path, env=quiet, check=True)
    return path


def _at(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e6


def _took(events: list[HistoryEvent]) -> float:
    return _at(events[-1]) - _at(events[0])
