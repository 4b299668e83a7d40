"""Whether a newer worker of this host is at work on another machine: then this one does nothing more. One that is of
another state directory has the host's name by mistake, and is warned of.

By the server's word who polls the host's queue, looked at every few seconds. A worker that was cut off or frozen for
longer looks before it takes on anything: what it has may be old.
"""

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.takeover.machine_number import generation_of
from steersman.contracts import names
from steersman.contracts.errors import ActivityErrorType
from steersman.pollers import last_polls
from workers import logs

LOOK_S: Final = 5.0
ANSWER_S: Final = 5.0
FRESH_S: Final = 12.0
"""A look that is older than this many seconds says nothing any more."""


class Succession:
    """`client`: this worker's, whose identity says on which machine it is."""

    def __init__(self, client: Client, host: str) -> None:
        self._client, self._queue = client, names.host_queue(host)
        self._own = generation_of(client.identity)
        self._looked = self._tried = float("-inf")
        self._looking = asyncio.Lock()
        self._successor: str | None = None
        self._strangers: set[str] = set()
        """Workers of this host's name that have been warned of."""

    async def watch(self) -> None:
        """Return once there is a newer one."""
        while not await self.successor(fresh_s=0):  # noqa: ASYNC110 - the server is asked, nobody tells
            await asyncio.sleep(LOOK_S)

    async def successor(self, fresh_s: float = FRESH_S) -> str | None:
        """The identity of a newer one; None where there is none, and where the server does not say."""
        asked = time.monotonic()
        async with self._looking:
            is_old = asked - self._looked > fresh_s and asked > self._tried  # who waited for a look has its answer
            if self._own and not self._successor and is_old:
                self._tried = time.monotonic()
                with suppress(RPCError):
                    self._successor = await self._look()
                    self._looked = time.monotonic()
        return self._successor

    async def why(self) -> str:
        """Why this one does nothing more; empty where it goes on."""
        successor = await self.successor()
        return f"a newer worker of this host is at work on another machine: {successor}" if successor else ""

    async def _look(self) -> str | None:
        kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
        for identity in await last_polls(self._client, self._queue, kind, timedelta(seconds=ANSWER_S)):
            other = generation_of(identity)
            if self._own and other and self._own.is_older_than(other):
                return identity
            if self._own and other and self._own.store != other.store:
                self._warn(identity)
        return None

    def _warn(self, other: str) -> None:
        if other in self._strangers:
            return
        self._strangers.add(other)
        what = f"{other} polls as this host, or has within five minutes, and has another state directory"
        why = "each gets what is the other's: runs wait, and loops are told of another machine's files"
        logs.write("host_shared", f"{what}: {why}; give each its own --host", level=logging.WARNING)


class OnlyUnlessSucceeded(Interceptor):
    """Activities are refused once there is a newer worker, which then gets them."""

    def __init__(self, succession: Succession) -> None:
        self._succession = succession

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - as named
        """Around each activity."""
        return _Inbound(next, self._succession)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, succession: Succession) -> None:
        super().__init__(inner)
        self._succession = succession

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if why := await self._succession.why():
            raise ApplicationError(why, type=ActivityErrorType.FENCED, next_retry_delay=timedelta(milliseconds=50))
        return await super().execute_activity(input)
