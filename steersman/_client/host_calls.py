"""Asking a machine directly: standalone activities on its own task queue, which cost no workflow history.

One call and what its failure means; what to do about a failure is the caller's.
"""

import asyncio
import time
import uuid
from datetime import timedelta
from typing import Final, TypeVar

from temporalio.client import ActivityFailureError, Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.exceptions import TimeoutType
from temporalio.service import RPCError

from steersman.contracts.model import StrictModel, TolerantModel
from steersman.contracts.names import host_queue
from steersman.errors import HostUnreachable, ServerRefused, SteersmanError, translate

A = TypeVar("A", bound=TolerantModel)

HEARTBEAT_PATIENCE: Final = timedelta(seconds=5)
START_PATIENCE: Final = timedelta(seconds=10)
"""How long a machine may take to pick up a call before it counts as unreachable."""


async def call_host(
    client: Client,
    host: str,
    activity: str,
    question: TolerantModel | StrictModel,
    answer: type[A],
    *,
    takes_s: float = 30,
    heartbeats: bool = False,
) -> A:
    """The machine's answer. `takes_s`: how long the activity itself may take; a worker's death is noticed after it, or
    within seconds where the activity `heartbeats`.

    Raises:
        HostUnreachable: no worker of that host took the call, or it died over it.
        ServerUnreachable: Temporal does not answer.
        ServerRefused: the activity failed; the message has its words.
    """
    takes = timedelta(seconds=takes_s)
    try:
        async with asyncio.timeout((START_PATIENCE + takes).total_seconds() + 10):
            said: A = await client.execute_activity(
                activity,
                question,
                id=f"{activity}-{uuid.uuid4()}",
                task_queue=host_queue(host),
                result_type=answer,
                schedule_to_start_timeout=START_PATIENCE,
                start_to_close_timeout=takes,
                heartbeat_timeout=HEARTBEAT_PATIENCE if heartbeats else None,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
            return said
    except ActivityFailureError as failure:
        raise _meaning(failure.cause, host) from failure
    except TimeoutError as error:
        raise HostUnreachable(f"host {host} did not answer in time", host) from error
    except RPCError as error:
        raise translate(error, address=client.service_client.config.target_host) from error


def _meaning(cause: BaseException, host: str) -> SteersmanError:
    if isinstance(cause, TemporalTimeout):
        if cause.type == TimeoutType.SCHEDULE_TO_START:
            return HostUnreachable(f"no worker answers on host {host}: is it running there?", host)
        return HostUnreachable(f"the worker on host {host} went away in the middle", host)
    return ServerRefused(f"host {host}: {cause}")


class Patience:
    """How long failures in a row are borne, with growing pauses between them."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since = time.monotonic()
        self._pause = 0.05

    def reset(self) -> None:
        """Something worked."""
        self._since, self._pause = time.monotonic(), 0.05

    async def bear(self, error: SteersmanError) -> None:
        """Pause before the next try, or raise the error: it has gone on for too long."""
        if time.monotonic() - self._since >= self.limit_s:
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, 1.0)
