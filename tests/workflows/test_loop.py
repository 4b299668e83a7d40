"""What a loop does of itself: iterations, their proof, its limits."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from tests.workflows.loop_machine import (
    LoopMachine,
    cancelled,
    ended,
    exits,
    failed,
    fails,
    reaches,
    result,
    state,
)


@pytest.fixture
async def machine(temporal: Client) -> AsyncIterator[LoopMachine]:
    async with LoopMachine(temporal).at_work(cached=0) as machine:
        yield machine


async def test_it_ends_when_the_verification_passes(machine: LoopMachine) -> None:
    async def verify(number: int) -> dict[str, Any]:
        return exits(1, "2 tests failed\nnamely these") if number == 1 else exits(0)

    machine.play_verification = verify  # type: ignore[method-assign]
    loop = await machine.start()
    outcome = await ended(loop)

    assert (outcome.status, outcome.stop_reason, outcome.iterations) == ("completed", "done", 2)
    assert outcome.verification is not None
    assert outcome.verification.status == "passed"
    assert outcome.cost_usd == 0.02
    assert "make it work" in machine.asked[0]["prompt"]
    assert "2 tests failed\nnamely these" in machine.asked[1]["prompt"]
    assert machine.asked[1]["session"] == "s-1"
    assert (await state(loop)).status == "completed"


async def test_pause_now_ends_the_turn_and_keeps_the_session(machine: LoopMachine) -> None:
    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        return await machine.held() if number == 1 else result()

    machine.play_iteration = iterate  # type: ignore[method-assign]
    loop = await machine.start()
    await reaches(loop, lambda now: bool(machine.asked))
    receipt = await loop.execute_update("pause", {"now": True, "reason": "lunch"})
    assert receipt["status"] == "paused"
    now = await state(loop)
    assert (now.status, now.iteration, now.waits_for, now.session_id) == ("paused", 1, "lunch", "s-1")
    assert [each.kind for each in now.checkpoints] == ["baseline", "pause"]
    receipt = await loop.execute_update("feedback", {"text": "use tabs"})
    assert receipt["id"] == "feedback-1"
    await loop.execute_update("resume", {"mode": "checkpoint", "text": "and be quick"})
    outcome = await ended(loop)
    assert outcome.iterations == 1
    assert machine.asked[1]["session"] == "s-1"
    assert "use tabs" in machine.asked[1]["prompt"]
    assert "and be quick" in machine.asked[1]["prompt"]
    assert "interrupted" in machine.asked[1]["prompt"]


async def test_cancel(machine: LoopMachine) -> None:
    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        return await machine.held()

    machine.play_iteration = iterate  # type: ignore[method-assign]
    loop = await machine.start()
    await reaches(loop, lambda now: bool(machine.asked))
    await loop.cancel()
    now = await cancelled(loop)
    assert now.status == "cancelled"
    assert [each.kind for each in now.checkpoints] == ["baseline", "end"]
    assert now.totals.cost_usd == 0.005


async def test_exit_restart_rollback(machine: LoopMachine) -> None:
    async def verify(number: int) -> dict[str, Any]:
        return exits(1)

    machine.play_verification = verify  # type: ignore[method-assign]
    loop = await machine.start(mode="checkpoint")
    await reaches(loop, "waiting_for_decision")
    await loop.execute_update("resume")
    await reaches(loop, lambda now: now.iteration == 2 and now.status == "waiting_for_decision")
    receipt = await loop.execute_update("rollback", {"checkpoint": 1})
    assert (receipt["checkpoint"], receipt["rescue"], receipt["status"], receipt["iteration"]) == (1, 3, "paused", 1)
    receipt = await loop.execute_update("restart", {"from": "plan"})
    now = await reaches(loop, lambda now: now.iteration == 1 and now.status == "waiting_for_decision")
    assert machine.asked[2].get("session") is None
    assert now.totals.iterations == 3
    await loop.execute_update("exit", {"reason": "enough"})
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason, outcome.error) == ("stopped", "exit", "enough")


async def test_many(machine: LoopMachine) -> None:
    async def verify(number: int) -> dict[str, Any]:
        return exits(1)

    machine.play_verification = verify  # type: ignore[method-assign]
    loop = await machine.start(limits={"iterations": 5})
    outcome = await ended(loop)
    assert (outcome.status, outcome.stop_reason) == ("stopped", "iterations")
    n = [e async for e in loop.fetch_history_events()]
    from collections import Counter

    print(len(n), Counter(e.event_type for e in n))


async def test_failures(machine: LoopMachine) -> None:
    async def iterate(number: int, request: dict[str, Any]) -> dict[str, Any]:
        return fails("AgentFailed", "no way")

    machine.play_iteration = iterate  # type: ignore[method-assign]
    loop = await machine.start(limits={"failures": 1})
    kind, message, outcome = await failed(loop)
    assert (kind, outcome.stop_reason, outcome.status) == ("LoopFailed", "failures", "failed")
    assert "no way" in message


async def test_bad(machine: LoopMachine) -> None:
    loop = await machine.start(plan=3)
    kind, message, outcome = await failed(loop)
    assert (kind, message) == ("InvalidRequest", 'LoopRequest: plan: must be a text or {"path": PATH}')
