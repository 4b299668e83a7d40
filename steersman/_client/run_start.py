"""A run's start: its request judged, its workflow begun. What becomes of it afterwards is in run_calls and run_end."""

from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from steersman._client.search_attributes import are_unknown, queued
from steersman._client.start_metadata import run_metadata
from steersman._client.thread_template import as_json
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import RunRequest, oversized, parse_request
from steersman.errors import translated


def checked(request: RunRequest | dict[str, Any]) -> RunRequest:
    """The request, if it is one that can be sent. Raises InvalidRequest, which names the field."""
    data = as_json(request)
    parsed = parse_request(data)
    if wrong_size := oversized(data, "RunRequest"):
        raise InvalidRequest(wrong_size)
    return parsed


async def start_run(
    client: Client,
    request: RunRequest,
    run_id: str,
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE,
) -> str:
    """Start a checked request and return Temporal's run id of the execution.

    Raises: AlreadyRunning where a run of this id is open, or, by `reuse`, has been; ServerUnreachable, ServerRefused.
    """
    start = partial(
        client.start_workflow,
        names.RUN_WORKFLOW,
        request.model_dump(mode="json", exclude_defaults=True),
        id=run_id,
        task_queue=names.TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        id_reuse_policy=reuse,
        **run_metadata(request),
    )
    with translated(of=f"run {run_id}", address=client.service_client.config.target_host):
        try:
            handle = await start(search_attributes=queued(request.agent))
        except RPCError as error:
            if not are_unknown(error):
                raise
            handle = await start()
    return handle.first_execution_run_id or ""
