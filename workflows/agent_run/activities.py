"""The activities that a run asks for, each with its queue, its timeouts and its retries. No decisions."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from steersman.contracts import names
from steersman.contracts.activities import (
    Claim,
    Delivered,
    DeliverInput,
    FinalizeInput,
    RunAgentInput,
    RunKey,
    RunOutcome,
    StopInput,
)
from steersman.contracts.events import TerminalEvent
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Phase, RunState, StopReport
from workflows.display import summary

PERSISTENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), backoff_coefficient=2, maximum_interval=timedelta(seconds=10)
)
ONCE = RetryPolicy(maximum_attempts=1)
CLAIM_TIME = timedelta(seconds=10)
"""How long a claim may take, schema and all, before the worker that took it is given up."""
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
LEAD_TIMEOUT = timedelta(minutes=5)
"""After it a run is led again where no other worker of the host could notice that its worker has fallen."""
NO_LIMIT = timedelta(days=3650)
PATIENCE_HERE = timedelta(seconds=0.25)
PATIENCE_THERE = timedelta(seconds=1)
"""How long a delivery waits for the agent's acknowledgement before it is left to a signal."""


def run_key() -> RunKey:
    """This run's name on disk: the workflow id, and the first run id, which a reset keeps."""
    info = workflow.info()
    return RunKey(run=info.workflow_id, execution=info.first_execution_run_id)


async def claim_host(request: RunRequest, *, locally: bool) -> Claim:
    """Which machine carries the run. Raises FailureError with the reason's type where none can."""
    retry = RetryPolicy(maximum_attempts=3)
    takes = timedelta(seconds=30)
    claim = await (_claim_locally(request) if locally else _claim_anywhere(request))
    if request.runtime.host in (None, claim.host):
        return claim
    elsewhere: Claim = await workflow.execute_activity(
        names.CLAIM_HOST,
        request,
        task_queue=names.host_queue(request.runtime.host or ""),
        result_type=Claim,
        schedule_to_start_timeout=timedelta(minutes=10),
        start_to_close_timeout=takes,
        retry_policy=retry,
    )
    return elsewhere


async def _claim_locally(request: RunRequest) -> Claim:
    """For runs of before: see Courier."""
    claim: Claim = await workflow.execute_local_activity(
        names.CLAIM_HOST,
        request,
        result_type=Claim,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_attempts=3),
    )
    return claim


async def _claim_anywhere(request: RunRequest) -> Claim:
    """By whichever worker of the workflow's own queue is first."""
    claim: Claim = await workflow.execute_activity(
        names.CLAIM_HOST,
        request,
        result_type=Claim,
        start_to_close_timeout=CLAIM_TIME,
        retry_policy=RetryPolicy(maximum_attempts=10, backoff_coefficient=1),
        summary="which host takes the run",
    )
    return claim


def run_agent(host: str, request: RunRequest, store: str) -> workflow.ActivityHandle[RunOutcome]:
    """The one long activity. It is tried again for ever: a worker's death is no reason to give a run up."""
    return workflow.start_activity(
        names.RUN_AGENT,
        RunAgentInput(key=run_key(), request=request, store=store),
        task_queue=names.runs_queue(host),
        result_type=RunOutcome,
        start_to_close_timeout=NO_LIMIT,
        heartbeat_timeout=LEAD_TIMEOUT,
        retry_policy=PERSISTENT,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"{request.agent}: {summary(request.prompt or ' '.join(request.command or ()))}",
    )


def stop_agent(
    state: RunState, request: RunRequest, phase: Phase, reason: str, *, hurried: bool = False
) -> workflow.ActivityHandle[StopReport]:
    """Stop and prove it; a second stop joins the first. Raises ActivityError where no worker of the host came."""
    return workflow.start_activity(
        names.STOP_AGENT,
        StopInput(
            key=run_key(),
            request=request.outline(),
            phase=phase,
            reason=reason,
            asked_at=workflow.now(),
            hurried=hurried,
            attempts=state.attempt,
            store=state.store,
        ),
        task_queue=names.host_queue(state.host or ""),
        result_type=StopReport,
        # When no worker is left on the host, the shim's lease has ended the agent by then.
        schedule_to_close_timeout=timedelta(seconds=request.lease_s + 120) + _longest_stop(request),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=PERSISTENT,
        summary="hurry the stop" if hurried else "stop the agent and prove it",
    )


async def finalize_run(state: RunState, request: RunRequest, event: TerminalEvent, *, unseen: bool) -> None:
    """Close the log, completed from the journals where no session saw the agent's end (`unseen`).

    Raises ActivityError where the host is gone: its next sweep closes the log.
    """
    end = FinalizeInput(
        key=run_key(),
        request=request.outline(),
        event=event,
        attempts=state.attempt,
        store=state.store,
        unseen=unseen,
    )
    await workflow.execute_activity(
        names.FINALIZE_RUN,
        end,
        task_queue=names.host_queue(state.host or ""),
        schedule_to_close_timeout=timedelta(seconds=60),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=PERSISTENT,
        summary=f"close the event log: {event.type}",
    )


def _longest_stop(request: RunRequest) -> timedelta:
    return timedelta(seconds=request.stop.kill_after_s or 0)


async def deliver_here(parcel: DeliverInput) -> Delivered:
    """Deliver in this very worker. For runs from before `bounded-messages` alone: see Courier."""
    delivered: Delivered = await workflow.execute_local_activity(
        names.DELIVER_MESSAGES,
        parcel.model_copy(update={"patience_s": PATIENCE_HERE.total_seconds()}),
        result_type=Delivered,
        schedule_to_close_timeout=timedelta(seconds=2),
        retry_policy=ONCE,
    )
    return delivered


async def deliver_there(parcel: DeliverInput, queue: str) -> Delivered:
    """Deliver through the task queue of the worker that holds the session."""
    delivered: Delivered = await workflow.execute_activity(
        names.DELIVER_MESSAGES,
        parcel.model_copy(update={"patience_s": PATIENCE_THERE.total_seconds()}),
        task_queue=queue,
        result_type=Delivered,
        # Twice this, and somebody who says something hears within 5 s that it waits.
        schedule_to_start_timeout=timedelta(seconds=2),
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=ONCE,
        summary=summary(", ".join(f"{each.kind} {each.id}" for each in parcel.messages) or "decisions"),
    )
    return delivered
