"""The sticky task queue of a fallen worker: found in a run's history, closed at the server."""

from collections.abc import Iterable

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest, ShutdownWorkerRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

MAX_EVENTS = 50
"""The queue's name is looked for in this many events of a history."""
MAX_RUNS = 10
"""The queue's name is looked for in the histories of this many runs."""


async def close_sticky_queue(client: Client, identity: str, runs: Iterable[str]) -> None:
    """Tell the server that nobody polls that worker's sticky queue.

    Else queries, updates and cancels of the runs that the worker had in memory stand still for the queue's timeout.
    Raises RPCError.
    """
    for run in list(runs)[:MAX_RUNS]:
        if queue := await _sticky_queue(client, run, identity):
            request = ShutdownWorkerRequest(
                namespace=client.namespace,
                sticky_task_queue=queue,
                identity=identity,
                reason="the worker has fallen",
            )
            await client.workflow_service.shutdown_worker(request)
            return


async def _sticky_queue(client: Client, run: str, identity: str) -> str | None:
    """The queue of its own on which that worker was handed a task of the run's workflow. Raises RPCError."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=run),
        maximum_page_size=MAX_EVENTS,
    )
    try:
        answer = await client.workflow_service.get_workflow_execution_history_reverse(request)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise
    events = {event.event_id: event for event in answer.history.events}
    for event in answer.history.events:
        started = event.workflow_task_started_event_attributes
        scheduled = events.get(started.scheduled_event_id)
        if scheduled is None or started.identity != identity:
            continue
        queue = scheduled.workflow_task_scheduled_event_attributes.task_queue
        if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY:
            return str(queue.name)
    return None
