"""Which workers poll a task queue, by the server's word."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import DescribeTaskQueueMode, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue, TaskQueueVersionSelection
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError


async def last_polls(
    client: Client, queue: str, kind: TaskQueueType.ValueType, timeout: timedelta | None = None
) -> dict[str, datetime]:
    """When each worker last polled the queue, by its identity: those of the last five minutes. Raises RPCError.

    `timeout` is of each of the two requests.
    """
    asked = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind)
    at_once = await client.workflow_service.describe_task_queue(asked, timeout=timeout)
    found = list(at_once.pollers)
    # That is of one of the queue's four partitions: of twelve workers it named seven (server 1.32), the others up to a
    # minute later. The mode that goes through all of them is up to 5 s late, and deprecated: a server without it has
    # only the first answer.
    asked.api_mode = DescribeTaskQueueMode.DESCRIBE_TASK_QUEUE_MODE_ENHANCED
    asked.task_queue_types.append(kind)
    asked.versions.CopyFrom(TaskQueueVersionSelection(unversioned=True))
    asked.report_pollers = True
    with suppress(RPCError):
        of_all = await client.workflow_service.describe_task_queue(asked, timeout=timeout)
        for version in of_all.versions_info.values():
            found += version.types_info[kind].pollers
    polls: dict[str, datetime] = {}
    for poller in found:
        polled = poller.last_access_time.ToDatetime(tzinfo=UTC)
        polls[poller.identity] = max(polled, polls.get(poller.identity, polled))
    return polls
