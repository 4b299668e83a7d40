"""How this activity's attempt and its workflow stand with the server. What follows is the activity's to decide."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType, PendingActivityState
from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from steersman import timeouts
from steersman.contracts import names
from steersman.contracts.errors import asks_again
from steersman.contracts.run import RunState

POLL_TIMEOUT = timedelta(seconds=90)
"""The server answers such a poll after 20 s with nothing; a poll without any answer is given up after this long."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 10.0
PAUSED_S = 1.0
"""Of a paused execution the server is asked this often whether it has closed: it answers no poll late."""
FIRST_TIMEOUT, QUERY_TIMEOUT = timedelta(seconds=2), timedelta(seconds=5)
"""A query is sent twice: one that the server had handed to a worker which then left is lost, and most are asked while
one worker follows on another.
"""
STALE_REPEATS = 5
"""A query is repeated this often while workers ask for it."""
QUERY_ERRORS = (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError, ValueError)
"""What a query of a run's state may raise."""
_TIMED_OUT = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)

_CLOSING = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
)

Standing = Literal["open", "closed", "replaced", "unknown"]
"""`replaced`: a reset has made another execution, which goes on with the agent. `unknown`: the server does not say."""


def epoch() -> int:
    """The epoch of this activity attempt, by the server's clock, in µs: orders attempts also across a reset."""
    return epoch_of(activity.info().started_time)


def epoch_of(time: datetime) -> int:
    """The epoch of a moment by the server's clock."""
    return int(time.timestamp() * 1_000_000)


async def is_current(client: Client) -> bool:
    """Whether the server still counts on this attempt and no other; False where it cannot be asked.

    Attempts are told apart by when they began: a reset of the activity counts their numbers anew.
    """
    try:
        return await _pending(client) is not None
    except RPCError:
        return False


async def is_wanted(client: Client) -> bool:
    """Whether the server counts on this attempt and the workflow has not cancelled it. Raises RPCError."""
    found = await _pending(client)
    return found is not None and found.state != PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED


async def _pending(client: Client) -> PendingActivityInfo | None:
    """This attempt as the server has it; None where it counts on another one. Raises RPCError."""
    info = activity.info()
    found = await client.get_workflow_handle(info.workflow_id or "").describe()
    if found.run_id != info.workflow_run_id:
        return None  # a reset: another execution goes on with the agent
    if found.status != WorkflowExecutionStatus.RUNNING:
        return None  # the server lists the activities of a terminated workflow on
    for each in found.raw_description.pending_activities:
        if each.activity_id == info.activity_id and epoch_of(each.last_started_time.ToDatetime(UTC)) == epoch():
            return each
    return None


async def standing(client: Client) -> Standing:
    """How this activity's own workflow execution stands."""
    info = activity.info()
    workflow, own = info.workflow_id or "", info.workflow_run_id or ""
    try:
        found = await client.get_workflow_handle(workflow).describe()
        if found.status != WorkflowExecutionStatus.RUNNING:
            return "closed"
        if found.run_id == own:
            return "open"
        # Else the id is another run's by now, or the server has begun the next one: a retry policy, a cron schedule.
        is_reset = await begun_as(client, workflow, found.run_id) == await begun_as(client, workflow, own)
    except RPCError as error:
        return "closed" if error.status == RPCStatusCode.NOT_FOUND else "unknown"
    return "replaced" if is_reset else "closed"


async def begun_as(client: Client, workflow: str, run: str) -> str:
    """The run id that an execution began with, which a reset keeps. Raises RPCError."""
    return (await started(client, workflow, run)).original_execution_run_id or run


async def started(client: Client, workflow: str, run: str) -> WorkflowExecutionStartedEventAttributes:
    """The first event of an execution. Raises RPCError."""
    events = client.get_workflow_handle(workflow, run_id=run).fetch_history_events(page_size=1)
    return (await anext(events)).workflow_execution_started_event_attributes


async def state_of(workflow: WorkflowHandle[Any, Any]) -> RunState:
    """The run's state, as its workflow has it; costs no history. Raises one of QUERY_ERRORS."""
    waits, repeats = [FIRST_TIMEOUT, QUERY_TIMEOUT], STALE_REPEATS
    while True:
        try:
            state: RunState = await stated(workflow, waits[0], RunState)
        except WorkflowQueryFailedError as error:
            if not asks_again(error.message) or not repeats:
                raise
            repeats -= 1
        except RPCError as error:
            if error.status not in _TIMED_OUT or len(waits) == 1:
                raise
            waits.pop(0)
        else:
            return state


async def stated(workflow: WorkflowHandle[Any, Any], within: timedelta, as_type: type) -> Any:
    """What a workflow says of its state, asked once. Raises one of QUERY_ERRORS."""
    try:
        # `rpc_timeout` is that of one attempt, and the SDK makes more, for 10 s, where the query of another one waits.
        async with timeouts.timeout(within.total_seconds()):
            return await workflow.query(names.STATE_QUERY, result_type=as_type, rpc_timeout=within)
    except TimeoutError as error:
        raise RPCError("no worker answered in time", RPCStatusCode.DEADLINE_EXCEEDED, b"") from error


async def until_closed(client: Client) -> None:
    """Wait until this activity's workflow execution has closed.

    An activity would hear of a terminate or a reset with its next heartbeat only. This is a poll that waits at the
    server; those are not billed.
    """
    info = activity.info()
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
        wait_new_event=True,
        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
        skip_archival=True,
    )
    pause = FIRST_PAUSE_S
    while True:
        try:
            answer = await client.workflow_service.get_workflow_execution_history(request, timeout=POLL_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE_S)
            continue
        if any(event.event_type in _CLOSING for event in answer.history.events):
            return
        if answer.history.events:  # of a paused execution the server tells the newest event instead, and at once
            await asyncio.sleep(PAUSED_S)
            continue
        if not answer.next_page_token:
            await asyncio.sleep(pause)
        request.next_page_token = answer.next_page_token
        pause = FIRST_PAUSE_S
