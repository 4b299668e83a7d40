"""What the server knows of a host's workers, without asking them: an answer of theirs may never come."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.client import Client

from steersman.contracts import names
from steersman.errors import HostUnreachable, translated
from steersman.pollers import last_polls

FRESH: Final = timedelta(seconds=90)
"""A poll lasts a minute, and the server remembers pollers for five: one that has polled before is gone."""
WORKER_CHECK_S: Final = 5.0
"""While something waits for a worker, it is looked this often, in seconds, whether one is there."""
UNSERVED_LOOKS: Final = 3
"""A host that has no worker at so many looks in a row is not merely being deployed to."""


async def is_served(client: Client, host: str) -> bool:
    """Whether a worker of the host has polled of late. Raises ServerUnreachable, ServerRefused."""
    with translated(address=client.service_client.config.target_host):
        polls = await last_polls(client, names.host_queue(host), TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
    since = datetime.now(UTC) - FRESH
    return any(polled > since for polled in polls.values())


async def check_served(client: Client, host: str, why: str) -> None:
    """Returns once a worker of the host is seen to have polled of late. Raises HostUnreachable, which says `why` one is
    needed, where UNSERVED_LOOKS looks see none; ServerUnreachable, ServerRefused.
    """
    for left in reversed(range(UNSERVED_LOOKS)):
        if await is_served(client, host):
            return
        if left:
            await asyncio.sleep(WORKER_CHECK_S)
    raise unserved(host, why)


def unserved(host: str, why: str) -> HostUnreachable:
    """The error of a host that has no worker. `why`: what waits for one, and what can be done."""
    return HostUnreachable(f"no worker of host {host} answers: {why}", host)


async def untaken_stop(client: Client, run_id: str) -> datetime | None:
    """Where the stop of the run waits for a worker of its host: until when it does; else None.

    Raises RunNotFound, ServerUnreachable, ServerRefused.
    """
    with translated(of=f"run {run_id}", address=client.service_client.config.target_host):
        found = await client.get_workflow_handle(run_id).describe()
    for each in found.raw_description.pending_activities:
        is_waiting = each.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        if each.activity_type.name == names.STOP_AGENT and is_waiting and each.HasField("expiration_time"):
            return each.expiration_time.ToDatetime(tzinfo=UTC)
    return None
