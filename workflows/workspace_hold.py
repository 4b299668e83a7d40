"""The activities that take a workspace for a run or a loop, and give it back: see activities/hold_activities.py.

`claim_host` takes it in passing. These are for whoever finds another one there, for a part of a run, and for a workflow
that moves to another host.
"""

from datetime import timedelta

from temporalio import workflow

from steersman.contracts import names
from steersman.contracts.request import RunRequest
from steersman.contracts.workspace_hold import HoldWorkspace, WorkspaceHeld
from workflows.activity_options import HEARTBEAT_TIMEOUT as SHORT_HEARTBEAT_TIMEOUT
from workflows.activity_options import RETRY_FOREVER
from workflows.waiting import shielded

WORKSPACE_HOLDS = "workspace-holds"
"""The patch of workflows that wait for their workspace where their claim says that another one has it."""
HEARTBEAT_TIMEOUT = timedelta(minutes=5)
"""As of `run_agent`: a wait may be long, each heartbeat is billed, and other workers notice a death sooner. Who steers
does not wait, and is in no place where they look."""
UNDO_TIMEOUT = timedelta(minutes=2)
"""How long a cancelled rollback may take to put back the file that it is at, and those that are left."""
RELEASE_TIMEOUT = timedelta(seconds=10)


def take(host: str, request: RunRequest) -> workflow.ActivityHandle[WorkspaceHeld]:
    """Take the request's workspace on that host; done when this workflow has it. Twice is fine.

    Fails with a RunError's type where it cannot be had.
    """
    on_overlap = request.workspace.on_overlap
    undoes, waits = on_overlap == "rollback", on_overlap in ("queue", "interrupt")
    cancellation = workflow.ActivityCancellationType
    return workflow.start_activity(
        names.HOLD_WORKSPACE,
        HoldWorkspace(request=request if on_overlap == "steer" else request.outline()),
        task_queue=names.host_queue(host),
        result_type=WorkspaceHeld,
        start_to_close_timeout=timedelta(days=3650),
        # An undo is not broken off: whoever cancels it waits for its end, and is to hear of it soon.
        heartbeat_timeout=HEARTBEAT_TIMEOUT if waits else SHORT_HEARTBEAT_TIMEOUT,
        cancellation_type=cancellation.WAIT_CANCELLATION_COMPLETED if undoes else cancellation.TRY_CANCEL,
        retry_policy=RETRY_FOREVER,
        summary=f"wait for the workspace: {on_overlap}",
    )


async def give_up(taking: "workflow.ActivityHandle[WorkspaceHeld]") -> None:
    """End the wait. What it has under way comes to its end."""
    taking.cancel()
    await shielded(workflow.wait([taking], timeout=UNDO_TIMEOUT.total_seconds()))


async def release(host: str) -> None:
    """Give back what this workflow has on that host, or waits for. Raises ActivityError if no worker of it answers."""
    await workflow.execute_activity(
        names.RELEASE_WORKSPACE,
        task_queue=names.host_queue(host),
        schedule_to_close_timeout=RELEASE_TIMEOUT,
        retry_policy=RETRY_FOREVER,
        summary="give the workspace back",
    )
