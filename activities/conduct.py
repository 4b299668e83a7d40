"""How our activities behave towards Temporal: they heartbeat, and what is the requester's mistake fails as that.

What an activity does must not live here.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from steersman.contracts.errors import RunError

BEAT_S = 2.0


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Heartbeats meanwhile, so that another worker takes over at once if this one dies."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(BEAT_S)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


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
