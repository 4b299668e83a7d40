"""The activities of a run: the queue, timeouts and retries of each. No decisions."""

from datetime import timedelta
from typing import cast

from temporalio import workflow
from temporalio.common import RetryPolicy

from steersman.contracts import names
from steersman.contracts.activities import (
    CarriedBack,
    CarryBackInput,
    CarryOutInput,
    Delivered,
    DeliverInput,
    Finalized,
    FinalizeInput,
    RunAgentInput,
    RunKey,
    RunOutcome,
    StopInput,
)
from steersman.contracts.events import TerminalEvent
from steersman.contracts.request import RunRequest
from steersman.contracts.run import CarriedWorkspace, Phase, RunState, StopReport
from workflows.activity_options import HEARTBEAT_TIMEOUT, RETRY_FOREVER
from workflows.display import summary

ONCE = RetryPolicy(maximum_attempts=1)
RUN_HEARTBEAT_TIMEOUT = timedelta(minutes=5)
"""When the server gives `run_agent` to another worker, where no worker of the host has noticed that the leader died."""
UNLIMITED = timedelta(days=3650)
AT_ONCE_TIMEOUT = timedelta(seconds=5)
"""A worker that is there takes a stop within this time, also with twenty others beside it on a busy machine."""
CARRY_QUEUE_TIMEOUT = timedelta(minutes=10)
CARRY_TIMEOUT = timedelta(hours=2)
LOCAL_ACK_TIMEOUT = timedelta(seconds=0.25)
ACK_TIMEOUT = timedelta(seconds=1)
"""How long a delivery waits for the agent's acknowledgement; after that the signal `messages_settled` brings it."""


OWN_KEY = "own-key"
"""The patch of runs that have a key of their own where the server began them after another one, for a retry policy or a
cron schedule. The branch may go when no such run of before is open.
"""


def run_key() -> RunKey:
    """The run's name on disk: the workflow id and the run id that the execution began with, which a reset keeps."""
    info = workflow.info()
    execution = info.first_execution_run_id
    if info.original_execution_run_id != execution and workflow.patched(OWN_KEY):
        execution = info.original_execution_run_id
    return RunKey(run=info.workflow_id, execution=execution)


async def carry_out(host: str, request: RunRequest, store: str) -> CarriedWorkspace:
    """Make a copy of the workspace for the run. A cancel waits until no worker is at it any more.

    Raises ActivityError where it cannot be made, or no worker of the host answers.
    """
    carried: CarriedWorkspace = await workflow.execute_activity(
        names.CARRY_OUT,
        CarryOutInput(key=run_key(), request=request.outline(), store=store),
        task_queue=names.host_queue(host),
        result_type=CarriedWorkspace,
        schedule_to_start_timeout=CARRY_QUEUE_TIMEOUT,
        start_to_close_timeout=CARRY_TIMEOUT,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RETRY_FOREVER,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"copy {summary(request.workspace.path)}",
    )
    return carried


async def carry_back(
    state: RunState, request: RunRequest, carried: CarriedWorkspace, *, is_proven: bool
) -> CarriedBack:
    """Merge what became of the copy into the workspace. Raises ActivityError if no worker of the host answers: its next
    sweep does it.

    `is_proven`: no process of the run is left.
    """
    back: CarriedBack = await workflow.execute_activity(
        names.CARRY_BACK,
        CarryBackInput(
            key=run_key(), request=request.outline(), carried=carried, store=state.store, keep=not is_proven
        ),
        task_queue=names.host_queue(state.host or ""),
        result_type=CarriedBack,
        schedule_to_start_timeout=CARRY_QUEUE_TIMEOUT,
        start_to_close_timeout=CARRY_TIMEOUT,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RETRY_FOREVER,
        summary=f"merge the copy into {summary(request.workspace.path)}",
    )
    return back


def run_agent(state: RunState, request: RunRequest) -> workflow.ActivityHandle[RunOutcome]:
    """Start the one long activity. It is retried for ever: a run outlives its worker."""
    keeps_baseline = workflow.info().parent is None
    return workflow.start_activity(
        names.RUN_AGENT,
        RunAgentInput(
            key=run_key(),
            request=request,
            store=state.store,
            keeps_baseline=keeps_baseline,
            carried=state.carried,
            worktree=state.worktree,
        ),
        task_queue=names.runs_queue(state.host or ""),
        result_type=RunOutcome,
        start_to_close_timeout=UNLIMITED,
        heartbeat_timeout=RUN_HEARTBEAT_TIMEOUT,
        retry_policy=RETRY_FOREVER,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=f"{request.agent}: {summary(request.prompt or ' '.join(request.command or ()))}",
    )


def stop_agent(
    state: RunState, request: RunRequest, phase: Phase, reason: str, *, hurried: bool = False, at_once: bool = False
) -> workflow.ActivityHandle[StopReport]:
    """Stop the agent and prove it; a second stop joins the first. Raises ActivityError if no worker answers.

    `hurried`: SIGTERM now and SIGKILL 1.5 s later, whatever the request says. `at_once`: a worker has to be there.
    """
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
        schedule_to_start_timeout=AT_ONCE_TIMEOUT if at_once else None,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RETRY_FOREVER,
        summary="hurry the stop" if hurried else "stop the agent and prove it",
    )


def _longest_stop(request: RunRequest) -> timedelta:
    return timedelta(seconds=request.stop.kill_after_s or 0)


async def finalize_run(
    state: RunState, request: RunRequest, event: TerminalEvent, back: CarriedBack | None, *, unseen: bool
) -> Finalized | None:
    """Close the event log; None from a worker of before there was a result.

    Raises ActivityError if no worker of the host answers: its next sweep closes the log.

    `unseen`: no session saw the agent's end, so the log is first completed from the journals.
    """
    finalize = FinalizeInput(
        key=run_key(),
        request=request.outline(),
        event=event,
        attempts=state.attempt,
        store=state.store,
        unseen=unseen,
        baseline=state.baseline,
        carried_back=back,
    )
    finalized: Finalized | None = await workflow.execute_activity(
        names.FINALIZE_RUN,
        finalize,
        task_queue=names.host_queue(state.host or ""),
        schedule_to_close_timeout=timedelta(seconds=60),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        result_type=cast("type[Finalized]", Finalized | None),
        retry_policy=RETRY_FOREVER,
        summary=f"close the event log: {event.type}",
    )
    return finalized


async def deliver_locally(delivery: DeliverInput) -> Delivered:
    """Deliver in the worker that decides, for runs from before `bounded-messages` only: see MessageDelivery."""
    delivered: Delivered = await workflow.execute_local_activity(
        names.DELIVER_MESSAGES,
        delivery.model_copy(update={"patience_s": LOCAL_ACK_TIMEOUT.total_seconds()}),
        result_type=Delivered,
        schedule_to_close_timeout=timedelta(seconds=2),
        retry_policy=ONCE,
    )
    return delivered


async def deliver_through(queue: str, delivery: DeliverInput) -> Delivered:
    """Deliver by a worker that polls this task queue. Raises ActivityError if none answers."""
    delivered: Delivered = await workflow.execute_activity(
        names.DELIVER_MESSAGES,
        delivery.model_copy(update={"patience_s": ACK_TIMEOUT.total_seconds()}),
        task_queue=queue,
        result_type=Delivered,
        # Two tries of 2 s each, and the sender still hears within 5 s that the message waits.
        schedule_to_start_timeout=timedelta(seconds=2),
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=ONCE,
        summary=summary(", ".join(f"{each.kind} {each.id}" for each in delivery.messages) or "decisions"),
    )
    return delivered
