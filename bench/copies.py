"""Runs in copies of a tree of 5,000 files: what the copy costs, and carrying 50 changed files back."""

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.agents import Bench
from bench.changes import CHANGED, EDIT, FILES, lay_out, timed_git
from bench.figures import Figure, spread
from steersman.contracts import names

SAMPLES = 20


async def copies(bench: Bench) -> list[Figure]:
    """Runs that edit 50 files, each in a copy; beside what git's own work trees and merges take."""
    tree = bench.workspace.with_name("copied")
    await asyncio.to_thread(lay_out, tree)
    took: dict[str, list[float]] = {names.CARRY_OUT: [], names.CARRY_BACK: []}
    made: list[float] = []
    merged: list[float] = []
    lost: list[str] = []
    for sample in range(SAMPLES + 1):
        workspace = {"path": str(tree), "isolation": "copy"}
        run = await bench.stack.client.start(bench.process(sys.executable, "-c", EDIT) | {"workspace": workspace})
        result = await bench.stack.client.result(run)
        if not result.changes or result.changes.files != CHANGED:
            lost.append(f"sample {sample}: {result.changes}")
        for name, milliseconds in (await _activities(bench, run)).items():
            took[name].append(milliseconds)
        await timed_git(tree, "checkout", "-q", "--", ".")
        other = tree.with_name("other")
        made.append(await timed_git(tree, "worktree", "add", "-q", "--detach", str(other)))
        subprocess.run([sys.executable, "-c", EDIT], cwd=other, check=True)
        merged.append(await _merged(tree, other))
        await timed_git(tree, "reset", "-q", "--hard", "HEAD~1")
        await timed_git(tree, "worktree", "remove", "--force", str(other))
    out, back = took[names.CARRY_OUT], took[names.CARRY_BACK]
    note = f"the first copy: {out[0]:.0f} ms; each figure is of the activity, as the server has it"
    bad = "; ".join(lost)
    shutil.rmtree(tree)
    return [
        Figure(
            f"a copy of a git tree of {FILES:,} files",
            "ms",
            tuple(out[1:]),
            None,
            f"git worktree add: {spread(made)}",
            note,
            lost=bad,
        ),
        Figure(
            f"{CHANGED} files of {FILES:,}, carried back",
            "ms",
            tuple(back[1:]),
            None,
            f"git commit, git merge: {spread(merged)}",
            lost=bad,
        ),
    ]


async def _activities(bench: Bench, run: str) -> dict[str, float]:
    """Milliseconds from an activity's schedule to its end, by its type."""
    scheduled: dict[int, tuple[str, float]] = {}
    found: dict[str, float] = {}
    async for event in bench.stack.client.temporal.get_workflow_handle(run).fetch_history_events():
        at = event.event_time.ToNanoseconds() / 1e6
        if event.HasField("activity_task_scheduled_event_attributes"):
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            scheduled[event.event_id] = name, at
        elif event.HasField("activity_task_completed_event_attributes"):
            name, begun = scheduled[event.activity_task_completed_event_attributes.scheduled_event_id]
            if name in (names.CARRY_OUT, names.CARRY_BACK):
                found[name] = at - begun
    return found


async def _merged(tree: Path, other: Path) -> float:
    begun = time.monotonic()
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    await timed_git(other, *identity, "commit", "-qam", "changed")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=other, capture_output=True, text=True, check=True).stdout
    await timed_git(tree, *identity, "merge", "-q", "--ff-only", commit.strip())
    return 1000 * (time.monotonic() - begun)
