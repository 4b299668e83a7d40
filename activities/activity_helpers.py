"""What activities have in common towards Temporal: heartbeats, work that a cancel does not break off, failures.

What an activity does must not live here.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.store import disk
from activities.workspaces.git.checkpoint_commits import NoCheckpoint
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadows import NoRepository
from activities.workspaces.printable_text import printable
from steersman.contracts.errors import ActivityErrorType, InvalidRequest, RunError

T = TypeVar("T")

HEARTBEAT_S = 2.0


@asynccontextmanager
async def heartbeating(*details: Any) -> AsyncIterator[None]:
    """Heartbeat every HEARTBEAT_S seconds meanwhile, so that another worker takes over at once if this one dies.

    Args:
        details: what the activity's next attempt is told; each heartbeat replaces what the one before said.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)  # first: each heartbeat is billed, and most activities end before
            activity.heartbeat(*details)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, whatever cancels the caller meanwhile."""
    task = asyncio.create_task(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise


@contextmanager
def git_errors() -> Iterator[None]:
    """Turn a GitFailed into the activity's failure, with git's message, and missing files into a RunError."""
    try:
        yield
    except (NoRepository, NoCheckpoint) as error:
        raise InvalidRequest(printable(str(error))) from error
    except GitFailed as error:
        # Not retried: git would fail for the same reason.
        raise ApplicationError(printable(str(error)), type=ActivityErrorType.GIT_FAILED, non_retryable=True) from error


@contextmanager
def as_application_error() -> Iterator[None]:
    """A RunError within fails the activity with the error's type, and the server does not retry it, but for one that
    comes of a lack of descriptors, memory or processes.
    """
    try:
        yield
    except RunError as error:
        if disk.exhaustion(error):
            raise ApplicationError(error.message, type=ActivityErrorType.EXHAUSTED) from error
        raise ApplicationError(
            error.message.encode("utf-8", "replace").decode(),  # names of files may hold any bytes
            error.facts,
            type=error.type,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,  # the requester's mistake, not this worker's
        ) from error
