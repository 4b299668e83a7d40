"""Futures that somebody else waits for, or nobody."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Nobody may come to look at what it raised: asyncio would log that as an error. A done callback."""
    if not future.cancelled():
        future.exception()


@asynccontextmanager
async def prefetched(awaitable: Awaitable[T]) -> AsyncGenerator[asyncio.Future[T]]:
    """Its answer, asked for before the block is entered: the block may do other work first. Ends with the block."""
    future = asyncio.ensure_future(awaitable)
    future.add_done_callback(retrieve_exception)
    try:
        await asyncio.sleep(0)
        yield future
    finally:
        future.cancel()
