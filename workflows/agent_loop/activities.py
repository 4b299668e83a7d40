"""The activities of a loop: the queue, timeouts and retries of each. No decisions."""

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, FailureError
from temporalio.exceptions import TimeoutError as TemporalTimeout

from steersman.contracts import names
from steersman.contracts.loop import LoopRequest, PlanFile
from steersman.contracts.loop_activities import (
    AdmitLoop,
    DropInput,
    Dropped,
    ForkInput,
    ForkPoint,
    LookInput,
    LoopKey,
    Restored,
    RestoreInput,
    Survey,
    SurveyInput,
)
from steersman.contracts.loop_state import PlanVersion
from steersman.contracts.model import TolerantModel
from steersman.contracts.run import RunState
from workflows.activity_options import HEARTBEAT_TIMEOUT, RETRY_FOREVER
from workflows.display import summary
from workflows.waiting import cancellable

A = TypeVar("A", bound=TolerantModel)

SHORT_TIMEOUT = timedelta(minutes=2)
SURVEY_TIMEOUT = timedelta(minutes=15)
"""How long a survey may take: it may hash a large workspace for the first time."""


def loop_key() -> LoopKey:
    """The loop's name on disk."""
    info = workflow.info()
    return LoopKey(loop=info.workflow_id, execution=info.first_execution_run_id)


def reason_of(error: ActivityError) -> str:
    """Why an activity failed, without the names of Temporal's own errors."""
    if isinstance(error.cause, TemporalTimeout):
        return "no worker of the loop's host answered in time"
    return error.cause.message if isinstance(error.cause, FailureError) else str(error.cause)


async def _execute(host: str, activity: str, input: TolerantModel, result: type[A], about: str, **timeouts: Any) -> A:
    """Retry until the host answers: a loop outlives an absence of its host."""
    handle: workflow.ActivityHandle[A] = workflow.start_activity(
        activity,
        input,
        task_queue=names.host_queue(host),
        result_type=result,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RETRY_FOREVER,
        summary=summary(about),
        **timeouts,
    )
    return await cancellable(handle)


async def admit(host: str, request: LoopRequest, timeout: timedelta | None = None) -> None:
    """Check that the host admits the loop. Raises ActivityError with the reason's type, or after `timeout`."""
    handle = workflow.start_activity(
        names.ADMIT_LOOP,
        AdmitLoop(request=request),
        task_queue=names.host_queue(host),
        start_to_close_timeout=SHORT_TIMEOUT,
        schedule_to_close_timeout=timeout,
        retry_policy=RetryPolicy(maximum_attempts=3),
        summary="may this loop run here?",
    )
    await cancellable(handle)


async def survey(
    host: str,
    request: LoopRequest,
    version: PlanVersion,
    number: int | None,
    message: str = "",
    timeout: timedelta | None = None,
) -> Survey:
    """Read plan, items and files; with a number, keep the files as that checkpoint.

    Raises ActivityError after `timeout`.
    """
    input = SurveyInput(
        key=loop_key(),
        run=request.run,
        plan=PlanFile(path=version.path, phase=version.phase) if version.path else None,
        items=request.done.items,
        number=number,
        message=message,
    )
    about = "look at the workspace" if number is None else f"checkpoint {number}: {message}"
    return await _execute(
        host,
        names.SURVEY_WORKSPACE,
        input,
        Survey,
        about,
        start_to_close_timeout=SURVEY_TIMEOUT,
        schedule_to_close_timeout=timeout,
    )


async def restore(
    host: str, request: LoopRequest, source: str, number: int, commit: str, unkept: str | None
) -> Restored:
    """Restore the workspace's files from checkpoint `number` of loop `source`."""
    key, run = loop_key(), request.run
    input = RestoreInput(key=key, run=run, source=source, number=number, commit=commit, unkept=unkept)
    about = f"files of checkpoint {number}"
    return await _execute(host, names.RESTORE_CHECKPOINT, input, Restored, about, start_to_close_timeout=SURVEY_TIMEOUT)


async def drop(host: str, request: LoopRequest, numbers: tuple[int, ...]) -> Dropped:
    """Remove the git refs of checkpoints. Raises ActivityError if the host does not answer."""
    input = DropInput(loop=loop_key().loop, workspace=request.run.workspace.path, numbers=numbers)
    about = f"delete {len(numbers)} checkpoints"
    return await _execute(host, names.DROP_CHECKPOINTS, input, Dropped, about, schedule_to_close_timeout=SHORT_TIMEOUT)


async def fork_point(host: str, loop: str, number: int) -> ForkPoint:
    """Read another loop's checkpoint. Raises ActivityError of type InvalidRequest if there is none."""
    input = ForkInput(loop=loop, number=number)
    about = f"checkpoint {number} of {loop}"
    return await _execute(host, names.READ_FORK_POINT, input, ForkPoint, about, start_to_close_timeout=SHORT_TIMEOUT)


async def look_at_run(host: str, run: str) -> RunState:
    """Query the state of a run that closed without a result. Raises ActivityError if nobody answers."""
    return await _execute(
        host,
        names.LOOK_AT_RUN,
        LookInput(run=run),
        RunState,
        f"what {run} had come to",
        start_to_close_timeout=timedelta(seconds=30),
        schedule_to_close_timeout=SHORT_TIMEOUT,
    )
