"""What a run changed in a tree of 5,000 files: what its baseline costs, how long showing and undoing take."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from bench.agents import Bench
from bench.figures import Figure, Goal, spread

FILES, DIRECTORIES, CHANGED = 5000, 50, 50
SAMPLES = 20
GOAL = Goal(p50=150)
EDIT = f"""
import pathlib
for number in range({CHANGED}):
    with (pathlib.Path(f"d{{number % {DIRECTORIES}}}") / f"f{{number}}.txt").open("a") as file:
        file.write("one line more\\n")
"""


async def changes(bench: Bench) -> list[Figure]:
    """Runs that edit 50 files, each shown and undone; beside runs without a repository, and git by itself."""
    tree = bench.workspace.with_name("tree")
    await asyncio.to_thread(lay_out, tree)
    began: list[float] = []
    began_plain: list[float] = []
    shown: list[float] = []
    undone: list[float] = []
    git_shown: list[float] = []
    git_undone: list[float] = []
    lost: list[str] = []
    for sample in range(SAMPLES + 1):
        began_plain.append((await _first_event(bench, bench.workspace))[1])
        run, took = await _first_event(bench, tree)
        began.append(took)
        git_shown.append(await timed_git(tree, "diff", "--no-ext-diff", "HEAD"))
        begun = time.monotonic()
        diff = await bench.stack.client.diff(run)
        shown.append(1000 * (time.monotonic() - begun))
        begun = time.monotonic()
        answer = await bench.stack.client.undo(run)
        undone.append(1000 * (time.monotonic() - begun))
        if f"{CHANGED} files changed" not in diff.stat or answer.files != CHANGED:
            lost.append(f"sample {sample}: {answer.files} files undone")
        subprocess.run([sys.executable, "-c", EDIT], cwd=tree, check=True)
        git_undone.append(await timed_git(tree, "checkout", "-q", "--", "."))
    note = f"the first run in the tree: {began[0]:.0f} ms"
    bad = "; ".join(lost)
    return [
        Figure(
            f"start -> first event in a git tree of {FILES:,} files",
            "ms",
            tuple(began[1:]),
            None,
            f"in no repository: {spread(began_plain[1:])}",
            note,
        ),
        Figure(
            f"what a run changed, {CHANGED} files of {FILES:,}",
            "ms",
            tuple(shown),
            GOAL,
            f"git diff: {spread(git_shown)}",
            lost=bad,
        ),
        Figure(
            f"its undoing, {CHANGED} files of {FILES:,}",
            "ms",
            tuple(undone),
            GOAL,
            f"git checkout: {spread(git_undone)}",
            lost=bad,
        ),
    ]


def lay_out(tree: Path) -> None:
    """A repository of FILES files in DIRECTORIES directories."""
    for number in range(FILES):
        directory = tree / f"d{number % DIRECTORIES}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}.txt").write_text(f"line {number}\n" * 20)
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first"), ("gc", "-q")):
        subprocess.run(["git", *identity, *words], cwd=tree, check=True)


async def _first_event(bench: Bench, workspace: Path) -> tuple[str, float]:
    """A run that edits the tree, and the milliseconds from its start to its first event."""
    begun = time.time()
    edits = EDIT if workspace != bench.workspace else ""
    request = bench.process(sys.executable, "-c", edits) | {"workspace": {"path": str(workspace)}}
    run = await bench.stack.client.start(request)
    await bench.stack.client.result(run)
    first = (await bench.stack.client.events(run, limit=1))[0]
    return run, 1000 * (first.time.timestamp() - begun)


async def timed_git(tree: Path, *words: str) -> float:
    """Milliseconds that a git command takes."""
    begun = time.monotonic()
    process = await asyncio.create_subprocess_exec("git", *words, cwd=tree, stdout=asyncio.subprocess.DEVNULL)
    await process.communicate()
    return 1000 * (time.monotonic() - begun)
