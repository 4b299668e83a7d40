"""How this activity's attempt stands with the server. What follows from it is the activity's to decide."""

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError


async def is_current(client: Client) -> bool:
    """Whether the server still counts on this attempt and no other; False where it cannot be asked."""
    info = activity.info()
    try:
        found = await client.get_workflow_handle(info.workflow_id or "").describe()
    except RPCError:
        return False
    if found.run_id != info.workflow_run_id:
        return False  # a reset: another execution goes on with the agent
    pending = found.raw_description.pending_activities
    return any(each.activity_id == info.activity_id and each.attempt == info.attempt for each in pending)
