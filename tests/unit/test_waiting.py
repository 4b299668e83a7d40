"""Waiting in workflows: a cancel is never lost, whatever comes true in the same moment."""

import asyncio

import pytest

from workflows.waiting import cancellable


async def stubborn(answer: "asyncio.Future[str]") -> str:
    """As Temporal's activities are: a cancel is passed on, and the answer waited for."""
    while True:
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            pass


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("later", range(6))
async def test_a_cancel_beside_the_answer_is_not_lost(later: int) -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def leading() -> str:
        return await cancellable(stubborn(answer))

    task = asyncio.ensure_future(leading())
    await turns(5)
    answer.set_result("yes")
    await turns(later)
    lost = task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is not lost


async def test_answers_and_errors_come_through() -> None:
    async def fails() -> None:
        raise ValueError("no")

    assert await cancellable(asyncio.sleep(0, "yes")) == "yes"
    with pytest.raises(ValueError, match="no"):
        await cancellable(fails())
