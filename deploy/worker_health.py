"""Whether this machine's worker takes work: exits 0 where Temporal saw it poll within the last two minutes, else 1.

For a container's health check. Asks Temporal, not the process: a worker that hangs looks alive from the outside.
"""

import asyncio
import os
import socket
import sys
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from steersman.connection import DEFAULT_ADDRESS
from steersman.contracts.names import TASK_QUEUE
from steersman.pollers import last_polls

# A long poll lasts a minute; one may be in flight.
FRESH = timedelta(minutes=2)


async def last_poll(hostname: str) -> datetime | None:
    """When a worker of this machine last polled, None where Temporal knows of none. Raises what connecting raises."""
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", DEFAULT_ADDRESS)  # as the worker does
    client = await Client.connect(**config)
    polls = await last_polls(client, TASK_QUEUE, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
    return max((polled for identity, polled in polls.items() if identity.endswith(f"@{hostname}")), default=None)


def main() -> int:
    """The exit code; says on stderr what is wrong."""
    hostname = socket.gethostname()
    try:
        polled = asyncio.run(last_poll(hostname))
    except (OSError, RuntimeError, RPCError) as error:
        sys.stderr.write(f"Temporal does not answer: {error}\n")
        return 1
    if polled is None or datetime.now(UTC) - polled > FRESH:
        sys.stderr.write(f"no worker of {hostname} polls {TASK_QUEUE}; the last poll: {polled or 'never'}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Past the interpreter's own shutdown, in which Temporal's threads now and then crash it.
    os._exit(code)
