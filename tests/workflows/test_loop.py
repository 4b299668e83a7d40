"""What a loop does of itself: iterations, their proof, its limits."""

from typing import Any

from temporalio.client import Client

from tests.workflows.loop_machine import LoopMachine, ended, exits, failed, fails, items, reaches, result, state


async def test_it_ends_when_the_verification_passes(temporal: Client) -> None:
    async with LoopMachine(temporal).at_work() as machine:

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
