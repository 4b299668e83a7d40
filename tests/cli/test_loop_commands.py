"""`steer loop` on pipes: what a script and a person get from each command, and the exit codes."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from steersman.client import Steersman
from tests.cli.loopstage import begin, request_of
from tests.cli.steer import Steer, ended, line_with
from tests.client.fake_host import init, now, said, succeeded
from tests.client.fake_loop import FakeLoopHost, checkpoint

pytestmark = pytest.mark.acceptance


@pytest.mark.exhaustive
async def test_following_on_a_pipe_shows_runs_and_remarks(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place)
    run = await loop_host.begin_run(loop, 1)
    loop_host.show(run, init(), said("hi \x1b[2J there"))
    process = await steer.start("loop", "attach", loop)
    await line_with(process, "there")
    loop_host.finish(run, succeeded())
    made = checkpoint(1, run=run, cost_usd=0.5, took_s=3.0, items={"open": 1})
    items = {"count": {"open": 1, "closed": 0}}
    await loop_host.set_state(
        loop, run=None, status="paused", waits_for="lun\x1b[2Jch", checkpoints=[made], items=items
    )
    await line_with(process, "checkpoint 1 · after iteration 1 · $0.5000 · 3.0 s · items 1 of 1 left")
    await line_with(process, "paused: lun␛[2Jch")
    await loop_host.end_loop(loop, stop_reason="done", iterations=1, cost_usd=0.5)
    answer = await ended(process)
    assert answer.code == 0
    assert answer.out.startswith("completed · 1 iteration · $0.5000")
    again = await steer("loop", "attach", loop)
    assert (again.code, "hi" in again.out) == (0, False)
    assert "\x1b" not in again.out


@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ({"status": "completed", "stop_reason": "done"}, 0, "completed"),
        ({"status": "exited", "stop_reason": "cost"}, 7, "exited (cost)"),
        ({"status": "failed", "error": "3 in a row", "stop_reason": "failures"}, 1, "3 in a row · failed (failures)"),
        # Refused before anything began: an error, on stderr.
        ({"status": "failed", "error": "bad", "invalid": True}, 2, "error: bad"),
    ],
)
async def test_how_a_loop_ended_is_the_exit_code(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str, ending: Any, code: int, last: str
) -> None:
    loop = await begin(steersman, place)
    await loop_host.end_loop(loop, **ending)
    answer = await steer("loop", "attach", loop)
    said = answer.err if code == 2 else answer.out
    assert (answer.code, said.splitlines()[-1].startswith(last)) == (code, True), answer
    assert code != 2 or "bad" not in answer.out
    lines = (await steer("loop", "attach", loop, "--json")).lines
    assert [line["type"] for line in lines] == ["state", "result"]
    assert (lines[-1]["status"], lines[-1]["stop_reason"]) == (ending["status"], ending.get("stop_reason"))


@pytest.mark.exhaustive
async def test_json_lines_are_states_runs_events_and_the_result(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place)
    run = await loop_host.begin_run(loop, 1)
    loop_host.show(run, init(), said("hi\x1b[31m\u202e"))
    loop_host.finish(run, succeeded())
    process = await steer.start("loop", "attach", loop, "--json")
    assert json.loads(await line_with(process, "state"))["run"] == run
    assert json.loads(await line_with(process, "run")) == {
        "type": "run", "id": run, "iteration": 1, "verifies": False,
    }  # fmt: skip
    await line_with(process, '"done"')
    await loop_host.end_loop(loop)
    answer = await ended(process)
    assert answer.code == 0
    assert answer.out.isascii()
    assert answer.lines[-1]["type"] == "result"


@pytest.mark.exhaustive
async def test_a_signal_detaches_where_nobody_can_be_asked(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place)
    process = await steer.start("loop", "attach", loop)
    await line_with(process, "claude in")
    process.send_signal(2)
    answer = await ended(process)
    assert answer.code == 130
    assert f"steer loop attach {loop}" in answer.err
    assert await loop_host.calls(loop) == []


@pytest.mark.exhaustive
async def test_the_verbs(steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str) -> None:
    loop = await begin(steersman, place)
    paused = await steer("loop", "pause", loop, "--now", "--reason", "lunch")
    assert (paused.code, paused.out) == (0, "paused, iteration 0\n")
    assert (await steer("loop", "resume", loop, "-", "--mode", "batch", stdin="left")).code == 0
    refused = await steer("loop", "resume", loop)
    assert (refused.code, "the loop is not paused" in refused.err) == (5, True)
    given = await steer("loop", "feedback", loop, "fas\x1b[2Jter", "--json")
    assert given.json["id"] == "feedback-1"
    listed = await steer("loop", "feedback", loop, "--list")
    assert listed.out == "feedback-1  waits  fas␛[2Jter\n"
    assert (await steer("loop", "feedback", loop, "--list", "--json")).json[0]["text"] == "fas\x1b[2Jter"
    assert (await steer("loop", "feedback", loop, "--remove", "feedback-1")).code == 0
    assert (await steer("loop", "feedback", loop, "--remove", "feedback-9")).code == 5
    revised = await steer("loop", "revise", loop, "--plan", "PLAN.md", "--prompt", "do it")
    assert "plan version 2" in revised.out
    assert (await steer("loop", "skip-wait", loop, "--json")).json["status"] == "running"
    assert (await steer("loop", "limits", loop, "--iterations", "9", "--duration", "1h")).code == 0
    assert (await steer("loop", "exit", loop, "--reason", "enough")).code == 0
    assert await loop_host.calls(loop) == [
        ("pause", {"now": True, "reason": "lunch"}),
        ("resume", {"mode": "batch", "text": "left"}),
        ("resume", {}),
        ("feedback", {"text": "fas\x1b[2Jter"}),
        ("remove_feedback", {"id": "feedback-1"}),
        ("remove_feedback", {"id": "feedback-9"}),
        ("revise", {"plan": {"path": "PLAN.md"}, "prompt": "do it"}),
        ("skip_wait", None),
        ("set_limits", {"iterations": 9, "duration_s": 3600.0}),
        ("exit", {"reason": "enough"}),
    ]
    late = await steer("loop", "pause", loop)
    assert (late.code, f"loop {loop}" in late.err) == (5, True)
    assert (await steer("loop", "status", "loop-none")).code == 3


@pytest.mark.exhaustive
async def test_what_takes_something_back_asks_first(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place)
    await loop_host.set_state(loop, checkpoints=[checkpoint(0), checkpoint(1)])
    for words in (["restart", loop], ["rollback", loop, "1"], ["cleanup", loop, "--all"]):
        answer = await steer("loop", *words)
        assert (answer.code, "--yes" in answer.err) == (2, True), words
    assert await loop_host.calls(loop) == []
    assert "checkpoint 9" in (await steer("loop", "rollback", loop, "1", "--yes")).out
    assert (await steer("loop", "restart", loop, "--yes", "--json")).json["rescue"] == 9
    await loop_host.set_state(loop, iteration=2)
    assert (await steer("loop", "restart", loop, "--from-iteration", "2", "--keep-files", "-y")).code == 0
    deleted = await steer("loop", "checkpoints", loop, "delete", "1", "--yes", "--json")
    assert deleted.json["deleted"] == [0]
    assert await loop_host.calls(loop) == [
        ("rollback", {"checkpoint": 1}),
        ("restart", {"from": "plan", "files": True}),
        ("restart", {"from": "iteration", "number": 2}),
        ("checkpoints", {"numbers": [1]}),
    ]
    assert (await steer("loop", "checkpoints", loop, "delete", "77", "--yes")).code == 3


async def test_what_cannot_be_is_refused_before_a_question(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place)
    await loop_host.set_state(loop, iteration=2)
    restarted = await steer("loop", "restart", loop, "--from-iteration", "3")
    assert (restarted.code, restarted.err) == (5, "error: iteration 3 has not begun: the loop is at iteration 2\n")
    revised = await steer("loop", "revise", loop, "--phase", "02", "--prompt", "go on")
    assert (revised.code, "--phase goes with --plan" in revised.err) == (2, True)
    assert await loop_host.calls(loop) == []


@pytest.mark.exhaustive
async def test_checkpoints(steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str) -> None:
    loop = await begin(steersman, place)
    old = now() - timedelta(days=8)
    made = [
        checkpoint(0, kind="baseline", time=old, iteration=0),
        checkpoint(1, time=old, commit="abcdef0123456789", items={"open": 1, "closed": 3}, note="evil \x1b[2J"),
        checkpoint(2),
    ]
    await loop_host.set_state(loop, checkpoints=made)
    listed = await steer("loop", "checkpoints", loop)
    assert "abcdef0123" in listed.out
    assert "1 of 4" in listed.out
    assert "evil ␛[2J" in listed.out
    assert [each["number"] for each in (await steer("loop", "checkpoints", loop, "--json")).json] == [0, 1, 2]
    shown = await steer("loop", "checkpoints", loop, "show", "1")
    assert "abcdef0123456789" in shown.out
    assert (await steer("loop", "checkpoints", loop, "show", "1", "--json")).json["items"]["closed"] == 3
    assert (await steer("loop", "checkpoints", loop, "show", "7")).code == 3
    diff = await steer("loop", "checkpoints", loop, "diff", "0", "1")
    assert "+new ␛[2J" in diff.out
    assert "too long" in diff.err
    assert (loop_host.diffs[0].older, loop_host.diffs[0].newer) == (0, 1)
    assert (await steer("loop", "checkpoints", loop, "diff", "0", "--json")).json["truncated"]
    await loop_host.end_loop(loop)
    await steersman.loops.result(loop)
    cleaned = await steer("loop", "cleanup", loop, "--older-than", "7d", "--yes")
    assert (cleaned.code, cleaned.out) == (0, "deleted 2, kept 1\n")
    assert loop_host.dropped[0].numbers == (0, 1)
    left = (await steer("loop", "checkpoints", loop)).out
    assert ("abcdef0123" in left, left.count("deleted")) == (False, 1)
    again = await steer("loop", "cleanup", loop, "--older-than", "7d", "--yes")
    assert (again.code, again.out, again.err) == (0, "", "there is nothing to delete\n")


async def test_a_checkpoint_that_is_not_there(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    """Said before the person is asked to confirm anything."""
    loop = await begin(steersman, place)
    await loop_host.set_state(loop, checkpoints=[checkpoint(0), checkpoint(1)])
    for words in (("rollback", loop, "7"), ("checkpoints", loop, "show", "7"), ("checkpoints", loop, "diff", "1", "7")):
        answer = await steer("loop", *words)
        assert (answer.code, answer.err) == (3, "error: there is no checkpoint 7\n"), words
    assert await loop_host.calls(loop) == []


async def test_a_fork_from_a_checkpoint(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place, limits={"iterations": 5, "failures": 2})
    words = (
        "loop",
        "fork",
        loop,
        "2",
        "--id",
        "loop-fork",
        "--mode",
        "checkpoint",
        "--iterations",
        "50",
        "--cost",
        "3",
    )
    refused = await steer(*words)
    assert (refused.code, refused.out) == (2, "")
    assert f"loop {loop} is open" in refused.err
    answer = await steer(*words, "-w", f"{place}/..")
    assert (answer.code, answer.out) == (0, "loop-fork\n")
    asked = await request_of(steersman, "loop-fork")
    assert asked["from_checkpoint"] == {"loop": loop, "number": 2}
    assert asked["limits"] == {"iterations": 50, "failures": 2, "cost_usd": 3.0}
    assert asked["mode"] == "checkpoint"
    assert (await steer("loop", "fork", "loop-none", "2")).code == 3
    missing = await steer("loop", "fork", loop, "51")
    assert (missing.code, "has no checkpoint 51" in missing.err) == (2, True)


async def test_looking(steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str) -> None:
    loop = await begin(steersman, place)
    item = {"id": "i", "text": "evil \x1b[2J item"}
    await loop_host.set_state(loop, status="paused", waits_for="lunch", items={"count": {"open": 1}, "items": [item]})
    shown = await steer("loop", "status", loop)
    for words in (loop, place, "lunch", "evil ␛[2J item", "PLAN.md"):
        assert words in shown.out
    assert "\x1b" not in shown.out
    assert (await steer("loop", "status", loop, "--json")).json["status"] == "paused"
    while not (await steersman.loops.list(f'WorkflowId="{loop}"')):
        await asyncio.sleep(0.05)
    listed = await steer("loop", "list", f'WorkflowId="{loop}"', "--json")
    assert [(each["id"], each["agent"], each["plan"]) for each in listed.json] == [(loop, "claude", "PLAN.md")]
    assert loop in (await steer("loop", "list", "-n", "100")).out
    wrong = await steer("loop", "list", "Colour=1")
    assert (wrong.code, "Colour" in wrong.err) == (2, True)


async def test_resume_without_an_id_says_what_could_be_where_nobody_can_choose(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    for each in await steersman.loops.list('ExecutionStatus="Running"'):
        await steersman.temporal.get_workflow_handle(each.id).terminate()
    while await steersman.loops.list('ExecutionStatus="Running"'):
        await asyncio.sleep(0.05)
    assert (await steer("loop", "resume")).code == 3
    loop = await begin(steersman, place)
    await loop_host.set_state(loop, status="paused")
    while not await steersman.loops.list('ExecutionStatus="Running"'):
        await asyncio.sleep(0.05)
    answer = await steer("loop", "resume")
    assert answer.code == 2
    assert loop in answer.err
    assert "steer loop resume LOOP" in answer.err
    assert await loop_host.calls(loop) == []


@pytest.mark.exhaustive
async def test_resume_asks_for_a_fresh_session(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place)
    await loop_host.set_state(loop, status="paused")
    assert (await steer("loop", "resume", loop, "--session", "continue")).code == 2
    assert (await steer("loop", "resume", loop, "--session", "fresh")).code == 0
    ((name, said),) = await loop_host.calls(loop)
    assert (name, said["session"]) == ("resume", "fresh")


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [("loop", "stop"), ("stop",)], ids=" ".join)
async def test_stop_says_what_it_found(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str, words: tuple[str, ...]
) -> None:
    loop = await begin(steersman, place)
    run = await loop_host.begin_run(loop)
    while (await steersman.state(run)).phase != "running":
        await asyncio.sleep(0.01)
    await steersman.stop(run)
    answer = await steer(*words, loop)
    assert (answer.code, answer.out) == (0, "stopped: 3 processes terminated, 42 ms\n")
    assert (await steer("loop", "stop", loop, "--json")).json["outcome"] == "already_finished"
    assert (await steer("loop", "stop", "loop-none")).code == 3
    attached = await steer("loop", "attach", loop)
    assert (attached.code, f"loop {loop} was cancelled" in attached.out) == (6, True)


async def test_the_newest_is_meant_by_a_dash(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, place: str
) -> None:
    loop = await begin(steersman, place)
    while (await steersman.loops.list(limit=1))[0].id != loop:
        await asyncio.sleep(0.05)
    answer = await steer("loop", "status", "-", "--json")
    assert (answer.json["id"], f"loop {loop}" in answer.err) == (loop, True)
