"""What a history says of a run."""

import json
from typing import Any

from temporalio.client import WorkflowHandle


async def searched_phases(run: WorkflowHandle[Any, Any]) -> list[str]:
    """The phases that searches were told, in order."""
    found = []
    async for event in run.fetch_history_events():
        fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        if "RunPhase" in fields:
            found.append(json.loads(fields["RunPhase"].data))
    return found
