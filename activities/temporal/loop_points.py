"""What another loop's workflow says of one of its checkpoints. What follows from it must not live here."""

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop_activities import ForkPoint


async def fork_point(client: Client, loop: str, number: int, field: str) -> ForkPoint:
    """The loop's checkpoint of that number. `field` names the loop in a refusal.

    Raises InvalidRequest where there is none, RPCError, WorkflowQueryFailedError.
    """
    handle = client.get_workflow_handle(loop)
    try:
        point: ForkPoint | None = await handle.query(names.FORK_POINT, number, result_type=ForkPoint)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        raise InvalidRequest(f"{field}: no loop {loop}") from error
    except WorkflowQueryFailedError as error:
        if (await handle.describe()).workflow_type == names.LOOP_WORKFLOW:
            raise
        raise InvalidRequest(f"{field}: {loop} is no loop") from error
    if point is None:
        raise InvalidRequest(f"{field}: loop {loop} has no checkpoint {number}")
    return point
