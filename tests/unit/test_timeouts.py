"""Limits of time in a task's cleanup: on Python 3.11.2 asyncio's own raise CancelledError there."""

import asyncio

import pytest

from steersman import timeouts


async def cleaning(ends: list[str], began: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        began.set()
        try:
            async with timeouts.timeout(0.01), timeouts.timeout_at(asyncio.get_running_loop().time() + 60):
                await asyncio.Event().wait()
        except TimeoutError:
            ends.append("limit")
        try:
            async with timeouts.timeout(60):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancel")


async def test_it_ends_what_is_done_after_a_cancel_and_lets_another_cancel_through() -> None:
    ends: list[str] = []
    began = asyncio.Event()
    task = asyncio.create_task(cleaning(ends, began))
    await asyncio.sleep(0)
    task.cancel()
    await began.wait()
    async with asyncio.timeout(10):
        while not ends:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["limit", "cancel"]


async def test_one_can_be_moved_and_says_whether_it_expired() -> None:
    limit = None
    try:
        async with timeouts.timeout(None) as limit:
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
    except TimeoutError:
        assert limit
        assert limit.expired()
    else:
        pytest.fail("it did not expire")
