"""Calls to a host: standalone activities on its task queue, which add nothing to a workflow's history.

A call is made once and its failure translated; whether to retry is the caller's decision.
"""

import asyncio
import uuid
from datetime import timedelta
from typing import Final, TypeVar

from temporalio.client import ActivityFailureError, Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.service import RPCError

from steersman.contracts.model import StrictModel, TolerantModel
from steersman.contracts.names import host_queue
from steersman.errors import HostUnreachable, ServerRefused, SteersmanError, UnreadablePayload, translate

A = TypeVar("A", bound=TolerantModel)

HEARTBEAT_TIMEOUT: Final = timedelta(seconds=5)
SCHEDULE_TO_START_TIMEOUT: Final = timedelta(seconds=10)
"""A host whose workers have not taken a call within this time is unreachable."""
GIT_S: Final = 120
"""Git may take this many seconds over a large workspace."""
ANSWER_MARGIN_S: Final = 10
"""Seconds that the server gets, beyond its own timeouts, to report how the activity ended."""


async def call_host(
    client: Client,
    host: str,
    activity: str,
    argument: TolerantModel | StrictModel,
    result: type[A],
    *,
    takes_s: float = 30,
    heartbeats: bool = False,
) -> A:
    """The result of the activity named `activity`, run by a worker of `host`.

    The activity may take `takes_s` seconds. Where it `heartbeats`, the death of its worker is noticed within 5 s, else
    at the end of `takes_s`.

    Raises:
        HostUnreachable: no worker of that host took the call, or the worker died over it.
        ServerUnreachable: the Temporal server does not answer.
        ServerRefused: the activity failed, the message is the activity's; or its result has another shape.
        UnreadablePayload: the result cannot be decrypted here.
    """
    takes = timedelta(seconds=takes_s)
    try:
        async with asyncio.timeout((SCHEDULE_TO_START_TIMEOUT + takes).total_seconds() + ANSWER_MARGIN_S):
            answer: A = await client.execute_activity(
                activity,
                argument,
                id=f"{activity}-{uuid.uuid4()}",
                task_queue=host_queue(host),
                result_type=result,
                schedule_to_start_timeout=SCHEDULE_TO_START_TIMEOUT,
                start_to_close_timeout=takes,
                heartbeat_timeout=HEARTBEAT_TIMEOUT if heartbeats else None,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
            return answer
    except ActivityFailureError as failure:
        raise _translated(failure.cause, host) from failure
    except UnreadablePayload:
        raise
    except ApplicationError as error:  # of the data converter
        raise ServerRefused(answers_oddly(host)) from error
    except TimeoutError as error:
        raise HostUnreachable(f"host {host} did not answer in time", host) from error
    except RPCError as error:
        raise translate(error, address=client.service_client.config.target_host) from error


def answers_oddly(host: str) -> str:
    """What is said of a host whose answer has another shape."""
    return f"host {host} answers in a way that this version does not understand"


def _translated(cause: BaseException, host: str) -> SteersmanError:
    if isinstance(cause, TemporalTimeout):
        if cause.type == TimeoutType.SCHEDULE_TO_START:
            return HostUnreachable(f"no worker answers on host {host}: is it running there?", host)
        return HostUnreachable(f"the worker on host {host} went away in the middle", host)
    return ServerRefused(f"host {host}: {cause}")
