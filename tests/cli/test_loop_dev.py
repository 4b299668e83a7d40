"""A real loop at a real terminal: `steer dev`, its worker, git, and a program as the agent."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.steer import Steer
from tests.cli.test_dev import dev, own
from tests.support.processes import until

__all__ = ["own"]

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
MENU = "[E]xit >"
STEP = """#!/bin/sh
echo "at $(grep -m1 '\\[ \\]' PLAN.md)"
[ -e go ] || { echo waiting; while ! [ -e go ]; do sleep 0.1; done; }
sed '0,/\\[ \\]/s//[x]/' PLAN.md > PLAN.new && mv PLAN.new PLAN.md
"""


def git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Path]:
    """A repository with a plan of two boxes."""
    made = tmp_path / "app"
    made.mkdir()
    (made / "PLAN.md").write_text("- [ ] one\n- [ ] two\n")
    git(made, "init", "-q")
    git(made, "add", ".")
    git(made, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "begin")
    step = tmp_path / "step"
    step.write_text(STEP)
    step.chmod(0o755)
    yield made
    (made / "go").touch()


@pytest.mark.exhaustive
async def test_a_loop_from_start_to_proof(own: Steer, place: Path, tmp_path: Path) -> None:
    await dev(own)
    head = git(place, "rev-parse", "HEAD")
    words = (
        "loop",
        "start",
        "PLAN.md",
        "--pause-between",
        "0",
        "--verify",
        "! grep '\\[ \\]' PLAN.md",
        "--id",
        "loop-1",
    )
    terminal = await own.at_terminal(*words, "--", str(tmp_path / "step"), cwd=str(place))
    await terminal.until("── iteration 1")
    await terminal.until("waiting")
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.type("f\n")
    for line in ("be quick", ""):
        await terminal.until("> ")
        terminal.type(f"{line}\n")
    await terminal.until("feedback-1: for the next iteration")
    await terminal.until(MENU)

    # From elsewhere: it comes to a pause, and can be resumed here.
    async def paused() -> dict[str, Any] | None:
        state: dict[str, Any] = (await own("loop", "status", "loop-1", "--json")).json
        return state if state["status"] == "paused" else None

    state = await until(paused, 60)
    assert (state["run"], [each["text"] for each in state["feedback"]]) == (None, ["be quick"])
    (place / "go").touch()
    terminal.type("\n")
    await terminal.until("the loop goes on")
    await terminal.until("verification after iteration 1: failed (exit code 1)")
    await terminal.until("── iteration 2")
    await terminal.until("verification after iteration 2: passed")
    await terminal.until("completed")
    assert await terminal.ended() == 0
    assert "Crashed" not in terminal.text  # a verification that says no
    assert (place / "PLAN.md").read_text() == "- [x] one\n- [x] two\n"
    assert git(place, "rev-parse", "HEAD") == head
    await _looked_back(own, place)


async def _looked_back(own: Steer, place: Path) -> None:
    assert (await own("list", "--json")).json == []
    of_loop = (await own("list", "--all", "--json")).json
    assert (await own("list", "", "--json")).json == []
    assert {each["id"] for each in of_loop} > {"loop-1-1", "loop-1-2"}
    made = (await own("loop", "checkpoints", "loop-1", "--json")).json
    assert [each["kind"] for each in made] == ["baseline", "pause", "iteration", "iteration"]
    diff = await own("loop", "checkpoints", "loop-1", "diff", "0", "2")
    assert "+- [x] one" in diff.out
    assert "two" not in [line[1:] for line in diff.out.splitlines() if line[:1] in "+-"]
    fork = await own("loop", "fork", "loop-1", "2", "--id", "loop-2", "--mode", "checkpoint")
    assert fork.code == 0, fork.err
    attached = await own("loop", "attach", "loop-2")
    assert attached.code == 0, attached.out
    assert (place / "PLAN.md").read_text() == "- [x] one\n- [x] two\n"
    cleaned = await own("loop", "cleanup", "loop-1", "--all", "--yes")
    assert cleaned.out == "deleted 4, kept 0\n"
    assert (await own("loop", "checkpoints", "loop-1")).out.count("deleted") == 4
    refs = git(place, "for-each-ref", "--format=%(refname)", "refs/steersman")
    assert refs
    assert "loop-1" not in refs
