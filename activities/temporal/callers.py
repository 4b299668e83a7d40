"""Which workflow has called this activity, and whether another one is open: by the server, not by what anybody says."""

from dataclasses import dataclass
from typing import Literal

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal.execution import begun_as
from steersman.contracts import names
from steersman.contracts.activities import RunKey

CLOSED = frozenset(
    {
        Status.WORKFLOW_EXECUTION_STATUS_COMPLETED,
        Status.WORKFLOW_EXECUTION_STATUS_FAILED,
        Status.WORKFLOW_EXECUTION_STATUS_CANCELED,
        Status.WORKFLOW_EXECUTION_STATUS_TERMINATED,
        Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
    }
)


@dataclass(frozen=True)
class Caller:
    """A workflow. `type`: the name of its type. `parent`: the one whose child it is, where that can be found."""

    key: RunKey
    type: str
    parent: RunKey | None
    parent_type: str = ""


async def caller(client: Client) -> Caller | None:
    """The workflow that has called this activity; None for a standalone activity. Raises RPCError."""
    info = activity.info()
    if not info.workflow_id:
        return None
    found = await _describe(client, info.workflow_id, info.workflow_run_id or "")
    parent, parent_type = None, ""
    if found.HasField("parent_execution"):
        above = found.parent_execution
        try:
            # Asked here: a workflow of another namespace may have the id of one of ours.
            parents = await _describe(client, above.workflow_id, above.run_id)
            parent, parent_type = await _key(client, parents), parents.type.name
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
    return Caller(await _key(client, found), found.type.name, parent, parent_type)


async def standing_of(client: Client, key: RunKey) -> Literal["open", "closed", "unknown"]:
    """How the workflow of this id and first execution stands, over resets and continue-as-new."""
    try:
        found = await _describe(client, key.run)
        is_over = found.status in CLOSED or await _key(client, found) != key
    except RPCError as error:
        return "closed" if error.status == RPCStatusCode.NOT_FOUND else "unknown"
    return "closed" if is_over else "open"


async def is_closed(client: Client, key: RunKey) -> bool:
    """Whether the server knows that this workflow has closed, or knows none of it."""
    return await standing_of(client, key) == "closed"


async def _describe(client: Client, workflow: str, run: str = "") -> WorkflowExecutionInfo:
    """Raises RPCError. Not by the SDK's `describe`, which fails for a paused workflow (temporalio 1.35.0)."""
    asked = DescribeWorkflowExecutionRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow, run_id=run)
    )
    answer = await client.workflow_service.describe_workflow_execution(asked)
    return answer.workflow_execution_info


async def _key(client: Client, found: WorkflowExecutionInfo) -> RunKey:
    """The workflow id and the first execution, which a reset and continue-as-new keep. A run that a retry policy or a
    cron schedule has begun after another one is none of that one's. Raises RPCError.
    """
    workflow, own = found.execution.workflow_id, found.execution.run_id
    first = found.first_run_id or own
    if first != own and found.type.name == names.RUN_WORKFLOW:
        first = await begun_as(client, workflow, own)
    return RunKey(run=workflow, execution=first)
