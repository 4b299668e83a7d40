"""One query of a workflow: how long it waits for a worker, and how often it is repeated."""

from datetime import timedelta
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingWorkflowTaskState
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError, RPCStatusCode

from steersman import timeouts
from steersman.contracts import names
from steersman.contracts.errors import asks_again
from steersman.errors import ServerRefused, no_worker, translate, translated

FIRST_TIMEOUT: Final = timedelta(seconds=1.5)
SECOND_TIMEOUT: Final = timedelta(seconds=3.5)
"""A query is sent twice: one that the server had handed to a worker which then died is lost. A living worker answers
within milliseconds.
"""
STALE_REPEATS: Final = 5
"""A query is repeated this often while workers ask for it, each because its memory of the workflow was stale."""
TASK_FAILS: Final = (
    "cannot be looked at: its workflow task fails again and again. The worker's log says why; where runs are "
    "encrypted, `steer doctor` tells whether it has the key"
)
ENCODED: Final = (
    "why, the worker says in a way that cannot be read here: it does not have this terminal's key, or its codec. "
    "`steer doctor` tells"
)
PAUSED: Final = (
    "is paused in Temporal: until `temporal workflow unpause` nobody can look at it, and what it is told waits, as a "
    "stop does. Its agent works on"
)
_NO_TASK: Final = "task is not scheduled yet"
_ANOTHER_WAITS: Final = "query buffer is full"
"""What the server says of a query while one of the same workflow waits for its worker."""
_TIMED_OUT: Final = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)

_TRIED: Final = (EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
"""Events of a task that is at a worker, or waits for one."""


class NotBegun(ServerRefused):
    """The workflow has no task yet: it was started with a delay or by a schedule of its own (cron)."""


class _Unanswered(Exception):
    """No worker answered in time."""


async def query_workflow(
    client: Client, handle: WorkflowHandle[Any, Any], query: str, arguments: tuple[Any, ...], *, of: str, address: str
) -> Any:
    """The decoded answer; None of a workflow that was terminated before any worker saw it. `of`: e.g. "run run-1".

    Raises: RunNotFound, NoWorker, NotBegun, ServerUnreachable, ServerRefused.
    """
    try:
        return await _query(handle, query, arguments, of, address, FIRST_TIMEOUT)
    except _Unanswered:
        timeout = SECOND_TIMEOUT + await _task_held_for(handle, of, address)
    try:
        return await _query(handle, query, arguments, of, address, timeout)
    except _Unanswered as error:
        if await _task_fails(client, handle.id, of, address):
            raise ServerRefused(f"{of} {TASK_FAILS}") from error
        raise no_worker(names.TASK_QUEUE) from error


async def _query(
    handle: WorkflowHandle[Any, Any], query: str, arguments: tuple[Any, ...], of: str, address: str, timeout: timedelta
) -> Any:
    repeats = STALE_REPEATS
    while True:
        try:
            # `rpc_timeout` is that of one attempt, and the SDK makes more, for 10 s, where another query waits.
            async with timeouts.timeout(timeout.total_seconds()):
                return await handle.query(query, args=arguments, result_type=object, rpc_timeout=timeout)
        except TimeoutError:
            raise _Unanswered from None
        except WorkflowQueryFailedError as error:
            if asks_again(error.message) and repeats:
                repeats -= 1
                continue
            why = ENCODED if error.message == "Encoded failure" else error.message
            raise ServerRefused(f"{of} cannot be looked at: {why}") from error
        except WorkflowQueryRejectedError as error:
            raise ServerRefused(f"{of} {PAUSED}") from error
        except RPCError as error:
            if error.status == RPCStatusCode.FAILED_PRECONDITION and "closed before" in error.message:
                return None
            raise _meaning(error, of, address) from error


def _meaning(error: RPCError, of: str, address: str) -> Exception:
    unmet = error.status == RPCStatusCode.FAILED_PRECONDITION
    if _NO_TASK in error.message:
        return NotBegun(f"{of} has not begun yet: it was started with a delay")
    if error.status in _TIMED_OUT or _ANOTHER_WAITS in error.message or (unmet and "no poller" in error.message):
        return _Unanswered()
    if unmet and "failed state" in error.message:
        return ServerRefused(f"{of} {TASK_FAILS}")
    return translate(error, of=of, address=address)


async def _task_fails(client: Client, workflow: str, of: str, address: str) -> bool:
    """Whether a worker has failed at the workflow's newest task. The history has the first of such failures alone."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow), maximum_page_size=len(_TRIED) + 1
    )
    with translated(of=of, address=address):
        newest = (await client.workflow_service.get_workflow_execution_history_reverse(request)).history.events
    before = (each.event_type for each in newest if each.event_type not in _TRIED)
    return next(before, None) == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


async def _task_held_for(handle: WorkflowHandle[Any, Any], of: str, address: str) -> timedelta:
    """How long the workflow task that a worker has taken may stay with it; no other worker is asked before.

    The worker may be busy, or dead, or the server may have lost the task on its way: under load it does.
    """
    with translated(of=of, address=address):
        description = (await handle.describe()).raw_description
    taken = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
    if description.pending_workflow_task.state != taken:
        return timedelta()
    return description.execution_config.default_workflow_task_timeout.ToTimedelta()
