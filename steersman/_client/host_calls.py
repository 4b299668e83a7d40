"""Calls to a host: standalone activities on its task queue, which add nothing to a workflow's history.

A call is made once and its failure translated, but where its worker was told to end (a deploy): that says nothing of
the host, whose next worker is asked. Whether else to retry is the caller's decision.
"""

import uuid
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from temporalio.client import ActivityFailureError, Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.service import RPCError

from steersman import timeouts
from steersman.contracts.errors import ActivityErrorType, ErrorType
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
MAX_DEPLOYS: Final = 5
"""So many workers in a row may be told to end over a call."""
_WORKER_SHUTDOWN: Final = "WorkerShutdown"
"""The SDK's type of the error of an activity that ended with its worker (temporalio 1.35)."""
_OWN_TYPES: Final = frozenset({*ErrorType, *ActivityErrorType})
"""Types of errors whose messages are for people."""


class StateGone(ServerRefused):
    """What the host had written down of the run is not there any more."""


class WorkerStopped(HostUnreachable):
    """A worker of the host took the call, and was told to end before it was done."""


async def call_host(
    client: Client,
    host: str,
    activity: str,
    argument: TolerantModel | StrictModel,
    result: type[A],
    *,
    takes_s: float = 30,
) -> A:
    """The result of the activity named `activity`, run by a worker of `host`. It is one that may be begun twice.

    The activity may take `takes_s` seconds, and heartbeats: the death of its worker is noticed within 5 s.

    Raises:
        HostUnreachable: no worker of that host took the call, or the worker died over it.
        ServerUnreachable: the Temporal server does not answer.
        ServerRefused: the activity failed, the message is the activity's; or its result has another shape. StateGone,
            a subclass, where what it needs is not there any more.
        UnreadablePayload: the result cannot be decrypted here.
    """
    call = partial(call_host_once, client, host, activity, argument, result, takes_s=takes_s)
    for _ in range(MAX_DEPLOYS):
        with suppress(WorkerStopped):
            return await call()
    return await call()


async def call_host_once(
    client: Client,
    host: str,
    activity: str,
    argument: TolerantModel | StrictModel,
    result: type[A],
    *,
    takes_s: float,
) -> A:
    """The same of an activity that must not be begun twice. Raises as `call_host`; WorkerStopped."""
    takes = timedelta(seconds=takes_s)
    try:
        async with timeouts.timeout((SCHEDULE_TO_START_TIMEOUT + takes).total_seconds() + ANSWER_MARGIN_S):
            answer: A = await client.execute_activity(
                activity,
                argument,
                id=f"{activity}-{uuid.uuid4()}",
                task_queue=host_queue(host),
                result_type=result,
                schedule_to_start_timeout=SCHEDULE_TO_START_TIMEOUT,
                start_to_close_timeout=takes,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
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
    if isinstance(cause, ApplicationError) and cause.type == _WORKER_SHUTDOWN:
        return WorkerStopped(f"the worker on host {host} was told to end in the middle", host)
    if isinstance(cause, ApplicationError) and cause.type in _OWN_TYPES:
        refusal = StateGone if cause.type == ActivityErrorType.STATE_GONE else ServerRefused
        return refusal(f"host {host}: {cause.message}")
    return ServerRefused(f"host {host}: {cause}")  # with the type, without which such a message may say nothing
