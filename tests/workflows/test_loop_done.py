"""When a loop is done: items, verification and promise, all that is asked for and nothing less."""

from typing import Any

import pytest

from tests.workflows.fake_loop_host import HELD, FakeLoopHost
from tests.workflows.loop_client import checkpoints, ended, failed, kinds, never_retried, reaches, state
from tests.workflows.loop_results import exits, items, result

ITEMS = {"kind": "json", "path": "items.json"}

pytestmark = pytest.mark.integration


async def test_a_failed_verification_goes_into_the_next_prompt(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1, "2 tests failed\nnamely these")]
    loop = await loop_fake.start(done={"verify": {"command": "make test", "timeout_s": 60}})
    outcome = await ended(loop)

    assert (outcome.status, outcome.stop_reason, outcome.iterations, outcome.error) == ("completed", "done", 2, None)
    assert outcome.verification is not None
    assert (outcome.verification.status, outcome.verification.iteration) == ("passed", 2)
    first, second = (each["prompt"] for each in loop_fake.asked)
    assert "make it work" in first
    assert "make test" in first
    assert "2 tests failed\nnamely these" in second
    assert "2 tests failed" not in first
    verification = loop_fake.verified[0]
    assert verification["command"] == ["sh", "-c", "exec 2>&1\nmake test"]
    assert verification["limits"] == {"duration_s": 60}
    assert verification["labels"] == {"loop": loop.id, "iteration": "1", "role": "verify"}
    assert loop_fake.asked[1]["labels"] == {"loop": loop.id, "iteration": "2", "role": "iteration"}
    for asked in (loop_fake.asked[1], verification):
        assert asked["workspace"] == {"path": "/w", "host": loop_fake.host, "on_overlap": "queue"}
    now = await state(loop)
    assert (now.status, now.stop_reason, now.run, now.totals.cost_usd) == ("completed", "done", None, 0.02)
    assert [each.verification for each in now.checkpoints] == [None, "failed", "passed"]
    assert kinds(now) == ["baseline", "iteration", "iteration"]
    await never_retried(loop)


async def test_closed_items_alone(loop_fake: FakeLoopHost) -> None:
    left = [2, 1, 0]

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        loop_fake.items = items(2 - left[number], left[number])
        return result()

    loop_fake.items = items(0, 2)
    loop_fake.play_iteration = iterate  # type: ignore[method-assign]
    outcome = await ended(await loop_fake.start(done={"items": ITEMS}))
    assert (outcome.stop_reason, outcome.iterations, outcome.verification) == ("done", 2, None)
    assert outcome.items is not None
    assert (outcome.items.closed, outcome.items.left) == (2, 0)
    assert "- #2: step 2" in loop_fake.asked[0]["prompt"]
    assert "- #2: step 2" not in loop_fake.asked[1]["prompt"]
    assert loop_fake.verified == []


@pytest.mark.parametrize("holds", ["items", "verification"])
async def test_both_must_hold_after_the_same_iteration(loop_fake: FakeLoopHost, holds: str) -> None:
    loop_fake.items = items(1) if holds == "items" else items(0, 1)
    loop_fake.verdicts = [exits(0 if holds == "verification" else 1), exits(0)]

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        if number == 2:
            loop_fake.items = items(1)
        return result()

    loop_fake.play_iteration = iterate  # type: ignore[method-assign]
    outcome = await ended(await loop_fake.start(done={"items": ITEMS, "verify": {"command": "true"}}))
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)


async def test_a_verification_that_waits_for_the_items(loop_fake: FakeLoopHost) -> None:
    loop_fake.items = items(0, 1)

    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        assert not loop_fake.verified
        loop_fake.items = items(0, 1) if number < 3 else items(1)
        loop_fake.files += 1
        return result()

    loop_fake.play_iteration = iterate  # type: ignore[method-assign]
    verify = {"command": "true", "every_iteration": False}
    loop = await loop_fake.start(done={"items": ITEMS, "verify": verify})
    assert (await ended(loop)).iterations == 3
    assert len(loop_fake.verified) == 1
    assert [each.verification for each in await checkpoints(loop)] == [None, None, None, "passed"]


async def test_a_list_without_items_is_not_done(loop_fake: FakeLoopHost) -> None:
    loop_fake.items = items(0)
    loop = await loop_fake.start(done={"items": ITEMS}, limits={"iterations": 2})
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason, outcome.iterations) == ("exited", "iterations", 2)


async def test_a_list_without_items_is_done_where_that_is_said(loop_fake: FakeLoopHost) -> None:
    loop_fake.items = items(0)
    outcome = await ended(await loop_fake.start(done={"items": {**ITEMS, "allow_empty": True}}))
    assert (outcome.stop_reason, outcome.iterations) == ("done", 1)


async def test_items_that_cannot_be_read_are_not_closed_and_the_agent_is_told(loop_fake: FakeLoopHost) -> None:
    loop_fake.items = items(3).model_copy(update={"error": "items.json: is no JSON"})
    loop = await loop_fake.start(done={"items": {**ITEMS, "allow_empty": True}}, limits={"iterations": 2})
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason) == ("exited", "iterations")
    assert "items.json: is no JSON" in loop_fake.asked[1]["prompt"]


async def test_a_promise_counts_in_the_last_line_and_not_as_an_echo(loop_fake: FakeLoopHost) -> None:
    prompt = "Work.\nWhen all is done, say:\nALL DONE"
    loop_fake.script = [
        result("ALL DONE was asked of me, but I am not"),
        result(f"You said:\n{prompt}"),
        result("I checked everything.\nALL DONE"),
    ]
    loop = await loop_fake.start(prompt=prompt, done={"verify": {"command": "true"}, "promise": "ALL DONE"})
    assert (await ended(loop)).iterations == 3


async def test_a_promise_alone_proves_nothing(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [result("ALL DONE")]
    loop_fake.verdicts = [exits(1)]
    loop = await loop_fake.start(done={"verify": {"command": "true"}, "promise": "ALL DONE"}, limits={"iterations": 1})
    assert (await ended(loop)).stop_reason == "iterations"


async def test_done_in_the_last_allowed_iteration_is_done(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1)]
    outcome = await ended(await loop_fake.start(limits={"iterations": 2}))
    assert (outcome.status, outcome.stop_reason, outcome.iterations) == ("completed", "done", 2)


async def test_a_missing_verification_is_no_pass(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(127, "sh: make: not found"), exits(127, "sh: make: not found")]
    loop = await loop_fake.start(done={"verify": {"command": "make test"}})
    kind, message, outcome = await failed(loop)
    assert (kind, outcome.status, outcome.stop_reason) == ("LoopFailed", "failed", "verification_missing")
    assert message == outcome.error == "done.verify: there is no such command: make test"
    assert len(loop_fake.asked) == 2
    assert "`make test` could not be run: there is no such command" in loop_fake.asked[1]["prompt"]
    assert "sh: make: not found" in loop_fake.asked[1]["prompt"]
    assert (await state(loop)).last_error == message


async def test_a_verification_that_is_there_again_is_no_longer_missing(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(127), exits(1), exits(126), exits(0)]
    assert (await ended(await loop_fake.start())).iterations == 4


async def test_a_verification_that_takes_too_long(loop_fake: FakeLoopHost) -> None:
    slow = {**exits(1, "still compiling"), "fails": "RunTimedOut", "message": "limits.duration_s"}
    loop_fake.verdicts = [slow]
    loop = await loop_fake.start(limits={"iterations": 1})
    outcome = await ended(loop)
    assert outcome.verification is not None
    assert (outcome.verification.status, outcome.verification.output) == ("timed_out", "still compiling")
    assert outcome.stop_reason == "iterations"


async def test_feedback_that_comes_in_the_last_iteration_is_not_lost(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.signal("feedback", {"text": "and write a changelog"})
    await reaches(loop, lambda now: now.feedback)
    loop_fake.release()
    outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 2)
    assert "and write a changelog" in loop_fake.asked[1]["prompt"]
