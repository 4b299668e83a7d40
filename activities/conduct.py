"""How our activities behave towards Temporal: they heartbeat, and what is the requester's mistake fails as that.

What an activity does must not live here.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from steersman.contracts.errors import RunError

T = TypeVar("T")

BEAT_S = 2.0


@asynccontextmanager
async def beating(*details: Any) -> AsyncIterator[None]:
    """Heartbeats meanwhile, so that another worker takes over at once if this one dies.

    `details`: what the next attempt of the activity is told; each heartbeat replaces what the one before said.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_S)  # first: each heartbeat is billed, and most are done before
            activity.heartbeat(*details)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """What it comes to, whatever cancels the caller meanwhile."""
    task = asyncio.create_task(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise


@contextmanager
def refusing() -> Iterator[None]:
    """A RunError becomes a failure of its type, and nobody tries again."""
    try:
        yield
    except RunError as error:
        raise ApplicationError(
            error.message.encode("utf-8", "replace").decode(),  # names of files may hold any bytes
            error.facts,
            type=error.type,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,  # the requester's mistake, not this worker's
        ) from error
