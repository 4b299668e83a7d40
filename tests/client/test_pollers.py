"""Who polls a task queue: the server keeps it in partitions, and a worker's poll is with one of them."""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest
from temporalio.client import Client

from steersman.pollers import last_polls
from tests.support.processes import until
from tests.support.temporal import DevServer

WORKERS = {f"worker-{number}" for number in range(60)}

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DevServer]:
    """One with as many partitions as `steer dev` has."""
    with contextlib.closing(DevServer(tmp_path, is_kept=False).start()) as started:
        yield started


async def test_each_of_many_workers_is_known_by_its_first_poll(server: DevServer) -> None:
    temporal = await server.default.connect()
    kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    begun = datetime.now(UTC)
    polls = [
        asyncio.create_task(
            temporal.workflow_service.poll_activity_task_queue(
                PollActivityTaskQueueRequest(
                    namespace=temporal.namespace, task_queue=TaskQueue(name="crowded"), identity=identity
                )
            )
        )
        for identity in sorted(WORKERS)
    ]

    async def all_known() -> bool:
        return set(await last_polls(temporal, "crowded", kind)) == WORKERS

    await until(all_known, 20)
    assert not any(poll.done() for poll in polls), "nobody has had to poll again"
    for polled in (await last_polls(temporal, "crowded", kind)).values():
        assert abs(polled - begun) < timedelta(seconds=60)
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def test_nobody_polls_a_queue_that_nobody_has_heard_of(temporal: Client) -> None:
    assert await last_polls(temporal, "unheard-of", TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW) == {}
