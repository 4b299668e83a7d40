"""Waiting, and cancels that come meanwhile: never lost, or put off until what must not be left half done is done.

A plain `await` of a signal to a child or of a condition with a timeout loses a cancel that is in the same workflow
task as what is waited for. (Of an activity it does not; the SDK sees to that.)
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow

T = TypeVar("T")

SIGNALS_FIRST = "signals-first"
"""The patch of loops that take signals before updates, and go by timers: see all_heard. Asked first as they begin."""


async def all_heard() -> None:
    """Until all signals and updates of this workflow task have been handed to their handlers.

    A reset offers the updates of before again, between the signals; when that history is replayed, the SDK may hand
    the signals over first. That must not change the order of the workflow's commands, and an update's answer is one.
    """
    await workflow.wait_condition(lambda: True)


async def outcome(work: Awaitable[T]) -> T:
    """What it returns, or raises; where a cancel comes, the work is cancelled and not waited for."""
    task = asyncio.ensure_future(work)
    try:
        await workflow.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(lambda _: task.cancelled() or task.exception())  # somebody has to look at it
        raise
    return task.result()


async def within(timeout: timedelta, condition: Callable[[], bool]) -> bool:
    """Wait for a condition, but not longer; whether it came true."""
    task = asyncio.ensure_future(workflow.wait_condition(condition))
    try:
        await workflow.wait([task], timeout=max(timeout.total_seconds(), 0.0))
        return task.done()
    finally:
        task.cancel()


async def uncancelled(work: Awaitable[T]) -> T:
    """Finish this even if a cancel comes; what it returns, or raises."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            workflow.logger.info("a cancel came while the workflow was ending already")
    return task.result()
