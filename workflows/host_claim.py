"""The activity `claim_host`: which worker host takes a run, or a loop."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from steersman.contracts import names
from steersman.contracts.activities import Claim
from steersman.contracts.request import RunRequest

CLAIM_TIMEOUT = timedelta(seconds=10)
"""A worker that has not answered a claim after this time, schema check included, is given up."""
NAMED_HOST_TIMEOUT = timedelta(minutes=10)
"""How long a claim waits for a worker of the host that the request names."""


async def claim_host(request: RunRequest, *, locally: bool) -> Claim:
    """Return the host that takes the run. Raises FailureError with the reason's type where no host can.

    `locally`: by a local activity, for histories from before claims were activities of the workflow's queue.
    """
    claim = await (_claim_by_local_activity(request) if locally else _claim_by_any_worker(request))
    if request.workspace.host in (None, claim.host):
        return claim
    named: Claim = await workflow.execute_activity(
        names.CLAIM_HOST,
        request,
        task_queue=names.host_queue(request.workspace.host or ""),
        result_type=Claim,
        schedule_to_start_timeout=NAMED_HOST_TIMEOUT,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_attempts=3),
    )
    return named


async def _claim_by_local_activity(request: RunRequest) -> Claim:
    claim: Claim = await workflow.execute_local_activity(
        names.CLAIM_HOST,
        request,
        result_type=Claim,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_attempts=3),
    )
    return claim


async def _claim_by_any_worker(request: RunRequest) -> Claim:
    """The first worker that polls the workflow's own queue claims the run for its host."""
    claim: Claim = await workflow.execute_activity(
        names.CLAIM_HOST,
        request,
        result_type=Claim,
        start_to_close_timeout=CLAIM_TIMEOUT,
        retry_policy=RetryPolicy(maximum_attempts=10, backoff_coefficient=1),
        summary="which host takes the run",
    )
    return claim
