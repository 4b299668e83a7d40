"""`steer loop start` on pipes: every word reaches the request, and wrong ones are named."""

import json
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.cli.loopstage import request_of
from tests.cli.steer import Steer
from tests.client.fake_loop import FakeLoopHost

pytestmark = pytest.mark.acceptance


async def test_every_word_of_start_reaches_the_request(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    words = [
        *("loop", "start", "PLAN.md", "-d", "-w", place, "--id", "loop-words", "--model", "m", "--permissions", "ask"),
        *("--allow", "Read", "--allow", "Bash(git *)", "--deny", "Write", "--system-prompt", "be brief"),
        *("--env", "A=1=2", "--env", "KEY=from_env:MY_KEY", "--label", "team=blue", "--option", 'add_dirs=["/x"]'),
        *("--verify", "make test", "--verify-timeout", "5m", "--promise", "DONE", "--prompt", "do {plan}"),
        *("--mode", "batch", "--batch-size", "3", "--session", "fresh", "--pause-between", "0"),
        *("--rate-limit", "stop", "--iterations", "7", "--cost", "2.5", "--tokens", "1000", "--duration", "2h"),
        *("--iteration-duration", "10m", "--idle", "90", "--no-progress", "0", "--failures", "1", "--host", "stand-in"),
        *("--on-overlap", "queue"),
    ]
    answer = await steer(*words)
    assert (answer.code, answer.out) == (0, "loop-words\n"), answer.err
    assert "steer loop attach loop-words" in answer.err
    assert await request_of(steersman, "loop-words") == {
        "run": {
            "agent": "claude",
            "workspace": {"path": place, "host": "stand-in", "on_overlap": "queue"},
            "model": "m",
            "system_prompt": "be brief",
            "permissions": {"mode": "ask", "allow": ["Read", "Bash(git *)"], "deny": ["Write"]},
            "env": {"A": "1=2", "KEY": {"from_env": "MY_KEY"}},
            "labels": {"team": "blue"},
            "options": {"add_dirs": ["/x"]},
        },
        "plan": {"path": "PLAN.md"},
        "prompt": "do {plan}",
        "done": {
            "items": {"kind": "checkboxes"},
            "verify": {"command": "make test", "timeout_s": 300.0},
            "promise": "DONE",
        },
        "session": "fresh",
        "mode": "batch",
        "batch_size": 3,
        "pause_between_s": 0.0,
        "rate_limit": "stop",
        "limits": {
            "iterations": 7,
            "cost_usd": 2.5,
            "tokens": 1000,
            "duration_s": 7200.0,
            "iteration_duration_s": 600.0,
            "idle_s": 90.0,
            "no_progress": 0,
            "failures": 1,
        },
    }


@pytest.mark.exhaustive
async def test_a_program_as_the_agent_and_a_request_from_a_file(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    words = ("loop", "start", "tidy up", "-d", "-w", place, "--verify", "true", "--id")
    answer = await steer(*words, "loop-program", "--json", "--", "sh", "-c", "make -j 4")
    assert (answer.code, answer.json) == (0, {"type": "loop", "id": "loop-program"}), answer.err
    asked = await request_of(steersman, "loop-program")
    assert (asked["run"]["agent"], asked["run"]["command"]) == ("process", ["sh", "-c", "make -j 4"])
    assert asked["done"] == {"verify": {"command": "true"}}
    base = {**asked, "limits": {"iterations": 3, "failures": 9}, "mode": "checkpoint"}
    other = (
        "loop",
        "start",
        "--from-file",
        "-",
        "-d",
        "--id",
        "loop-file",
        "--iterations",
        "5",
        "--mode",
        "autonomous",
    )
    answer = await steer(*other, stdin=json.dumps(base))
    assert answer.code == 0, answer.err
    again = await request_of(steersman, "loop-file")
    assert (again["limits"], again.get("mode"), again["plan"]) == ({"iterations": 5, "failures": 9}, None, "tidy up")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["start"], "PLAN"),
        (["start", "just a text"], "done"),
        (["start", "x", "--items", "tickets"], "tickets"),
        (["start", "x", "--items", "beads"], "done.items: ids"),
        (["start", "x", "--items", "checkboxes"], "done.items.path"),
        (["start", "x", "--verify", "true", "--phase", "01"], "--phase"),
        (["start", "x", "--verify", "true", "--phase", ""], "--phase"),
        (["start", "x", "--verify-timeout", "5m"], "--verify-timeout"),
        (["start", "x", "--verify", "true", "--duration", "soon"], "--duration"),
        (["start", "x", "--verify", "true", "--iterations", "0"], "limits.iterations"),
        (["start", "x", "--verify", "true", "--mode", "wild"], "--mode"),
        (["start", "x", "--verify", "true", "--env", "API_TOKEN=abc"], "API_TOKEN"),
        (["start", "@/nowhere.md", "--verify", "true"], "/nowhere.md"),
        (["start", "x", "--verify", "true", "--id", "a/b"], "loop_id"),
        (["feedback", "loop-x"], "--list"),
        (["feedback", "loop-x", "text", "--list"], "--list"),
        (["revise", "loop-x"], "--plan"),
        (["limits", "loop-x"], "limit"),
        (["limits", "loop-x", "--iterations", "0"], "iterations"),
        (["cleanup", "loop-x"], "--older-than"),
        (["cleanup", "loop-x", "--all", "--oldest", "1"], "exactly one"),
        (["checkpoints", "loop-x", "show"], "number"),
        (["checkpoints", "loop-x", "diff", "1", "2", "3"], "one or two"),
        (["checkpoints", "loop-x", "list", "3"], "no number"),
    ],
)
async def test_wrong_words_are_named_and_exit_with_2(steer: Steer, words: list[str], named: str) -> None:
    answer = await steer("loop", *words)
    assert answer.code == 2
    assert named in answer.err
    assert "Traceback" not in answer.err
    assert "abc" not in answer.err


async def test_a_plan_without_checkboxes_is_judged_by_its_command_alone(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    (Path(place) / "PLAN.md").write_text("Make it good.\n")
    answer = await steer("loop", "start", "PLAN.md", "-d", "-w", place, "--verify", "true", "--id", "loop-prose")
    assert answer.code == 0, answer.err
    assert "PLAN.md has no checkboxes" in answer.err
    assert (await request_of(steersman, "loop-prose"))["done"] == {"verify": {"command": "true"}}
