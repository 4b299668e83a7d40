"""Finishing what must not be left half done, whatever cancels come meanwhile."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from temporalio import workflow

T = TypeVar("T")


async def uncancelled(work: Awaitable[T]) -> T:
    """Finish this even if a cancel comes; what it returns, or raises."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            workflow.logger.info("a cancel came while the workflow was ending already")
    return task.result()
