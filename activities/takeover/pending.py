"""The pending activities of runs, by the server's word, and giving back those that a fallen worker was at."""

import asyncio
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.takeover.detachment import detached
from activities.takeover.priority import prefer
from steersman.contracts import names

MAX_REQUESTS = 16
"""At most this many requests to the server are under way at once."""
MAX_QUEUED = 1000
QUEUED = f'WorkflowType="{names.RUN_WORKFLOW}" AND ExecutionStatus="Running" AND {names.RUN_PHASE}="queued"'
GIVEN_BACK = frozenset(
    {names.RUN_AGENT, names.STOP_AGENT, names.FINALIZE_RUN, names.DELIVER_MESSAGES, names.HOLD_WORKSPACE}
)
STARTED = frozenset(
    {
        PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
        PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
        PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED,
    }
)


class PendingActivities:
    """Asks the server, a few requests at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._requests = asyncio.Semaphore(MAX_REQUESTS)

    async def queued_runs(self) -> list[str]:
        """The runs that no worker leads yet, as far as their phase says. Raises RPCError."""
        return [each.id async for each in self._client.list_workflows(QUEUED, limit=MAX_QUEUED)]

    async def of(self, run: str) -> list[PendingActivityInfo]:
        """The run's pending activities; none where the run has closed. Raises RPCError."""
        async with self._requests:
            try:
                found = await self._client.get_workflow_handle(run).describe()
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    return []
                raise
        return list(found.raw_description.pending_activities) if found.status == WorkflowExecutionStatus.RUNNING else []

    async def give_back(self, run: str, pending: Iterable[PendingActivityInfo], identities: Collection[str]) -> bool:
        """Fail those that one of these workers is at, so that they are tried again; whether there were any.

        Raises RPCError.
        """
        held = [
            each
            for each in pending
            if each.activity_type.name in GIVEN_BACK
            and each.state in STARTED
            and each.last_worker_identity in identities
        ]
        for each in held:
            async with self._requests:
                if each.activity_type.name == names.RUN_AGENT:
                    await prefer(self._client, run, each.activity_id)
                await self._fail(run, each.activity_id)
        return bool(held)

    async def _fail(self, run: str, activity: str) -> None:
        handle = self._client.get_async_activity_handle(workflow_id=run, run_id=None, activity_id=activity)
        try:
            await handle.fail(detached("the worker that was at it is gone; the agent works on"))
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:  # else it was done meanwhile, or the run has closed
                raise


def is_unled(activity: PendingActivityInfo, identities: Collection[str]) -> bool:
    """Whether the server hands out the next attempt to whoever asks, once what these workers are at is given back."""
    if activity.state in STARTED:
        return activity.last_worker_identity in identities
    due = activity.next_attempt_schedule_time.ToDatetime(UTC)
    return activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED and due <= datetime.now(UTC)
