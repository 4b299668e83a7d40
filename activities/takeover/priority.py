"""Runs with an agent at work come before those without, where a host has more than its workers lead at once."""

from contextlib import suppress
from datetime import timedelta

from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import Priority, WorkflowExecution
from temporalio.api.workflowservice.v1 import UpdateActivityOptionsRequest
from temporalio.client import Client
from temporalio.service import RPCError

FIRST = 1
"""The highest priority; an activity that nobody says anything of has 3."""
TIMEOUT = timedelta(seconds=2)


async def prefer(client: Client, run: str, activity_id: str) -> None:
    """Have the next attempt of a run's activity handed out before all that wait.

    Else an agent at work waits behind them until its lease ends. A server goes by it within each of the partitions that
    it keeps a task queue in; one that knows no priorities, or does not answer, hands the attempt out as it comes. The
    history does not show it.
    """
    asked = UpdateActivityOptionsRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=run),
        id=activity_id,
        activity_options=ActivityOptions(priority=Priority(priority_key=FIRST)),
        update_mask={"paths": ["priority"]},  # type: ignore[arg-type]
    )
    with suppress(RPCError):
        await client.workflow_service.update_activity_options(asked, timeout=TIMEOUT)
