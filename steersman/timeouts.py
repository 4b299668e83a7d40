"""`asyncio.timeout` and `timeout_at` that hold in a task's cleanup, too: what is done after a cancel has its limits.

Before Python 3.11.3 (Debian 12 has 3.11.2) asyncio's own raise CancelledError in place of TimeoutError where their task
was cancelled before they began (CPython's issue 102780): a process that ignored SIGTERM was not sent SIGKILL.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager


def timeout(delay: float | None) -> AbstractAsyncContextManager[asyncio.Timeout]:
    """See asyncio.timeout: seconds."""
    return _limited(asyncio.timeout(delay))


def timeout_at(when: float | None) -> AbstractAsyncContextManager[asyncio.Timeout]:
    """See asyncio.timeout_at: a time of the event loop's clock."""
    return _limited(asyncio.timeout_at(when))


def _limited(limit: asyncio.Timeout) -> AbstractAsyncContextManager[asyncio.Timeout]:
    return limit if sys.version_info >= (3, 11, 3) else _counting(limit)


@asynccontextmanager
async def _counting(limit: asyncio.Timeout) -> AsyncIterator[asyncio.Timeout]:
    """As Python 3.11.3 does it: a cancel from before `limit` is none of those that it has to let through."""
    task = asyncio.current_task()
    cancels = task.cancelling() if task else 0
    try:
        async with limit:
            yield limit
    except asyncio.CancelledError as error:
        if task and limit.expired() and task.cancelling() <= cancels:
            raise TimeoutError from error
        raise
