"""The activities and child workflows that a loop asks for: queues, timeouts, retries. No decisions."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, FailureError

from steersman.contracts import names
from steersman.contracts.loop import LoopRequest, PlanFile, program_env
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
from steersman.contracts.request import Limits, RunRequest
from steersman.contracts.run import RunResult, RunState
from workflows.commands import HEARTBEAT_TIMEOUT, PERSISTENT
from workflows.display import summary
from workflows.loops.memory import Memory
from workflows.waiting import outcome

A = TypeVar("A", bound=TolerantModel)

QUICK = timedelta(minutes=2)
LOOK = timedelta(minutes=15)
"""A survey may hash a large workspace for the first time."""


def loop_key() -> LoopKey:
    """This loop's name on disk."""
    info = workflow.info()
    return LoopKey(loop=info.workflow_id, execution=info.first_execution_run_id)


def reason_of(error: ActivityError) -> str:
    """Why an activity failed, without the names of Temporal's own errors."""
    return error.cause.message if isinstance(error.cause, FailureError) else str(error.cause)


async def _ask(host: str, activity: str, question: TolerantModel, answer: type[A], about: str, **times: Any) -> A:
    """Until the host answers: a host that is away for a while is no reason to give a loop up."""
    asked: workflow.ActivityHandle[A] = workflow.start_activity(
        activity,
        question,
        task_queue=names.host_queue(host),
        result_type=answer,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=PERSISTENT,
        summary=summary(about),
        **times,
    )
    return await outcome(asked)


async def admit(host: str, request: LoopRequest, patience: timedelta | None = None) -> None:
    """Whether the loop may run on this host. Raises ActivityError with the reason's type, or after `patience`."""
    asked = workflow.start_activity(
        names.ADMIT_LOOP,
        AdmitLoop(request=request),
        task_queue=names.host_queue(host),
        start_to_close_timeout=QUICK,
        schedule_to_close_timeout=patience,
        retry_policy=RetryPolicy(maximum_attempts=3),
        summary="may this loop run here?",
    )
    await outcome(asked)


async def survey(
    host: str,
    request: LoopRequest,
    version: PlanVersion,
    number: int | None,
    message: str = "",
    patience: timedelta | None = None,
) -> Survey:
    """Look at the workspace and keep it as a checkpoint. Raises ActivityError after `patience`."""
    question = SurveyInput(
        key=loop_key(),
        run=request.run,
        plan=PlanFile(path=version.path, phase=version.phase) if version.path else None,
        items=request.done.items,
        number=number,
        message=message,
    )
    about = "look at the workspace" if number is None else f"checkpoint {number}: {message}"
    return await _ask(
        host,
        names.SURVEY_WORKSPACE,
        question,
        Survey,
        about,
        start_to_close_timeout=LOOK,
        schedule_to_close_timeout=patience,
    )


async def restore(host: str, request: LoopRequest, source: str, number: int, commit: str | None) -> Restored:
    """The workspace's files as they were."""
    question = RestoreInput(key=loop_key(), run=request.run, source=source, number=number, commit=commit)
    about = f"files of checkpoint {number}"
    return await _ask(host, names.RESTORE_CHECKPOINT, question, Restored, about, start_to_close_timeout=LOOK)


async def drop(host: str, request: LoopRequest, numbers: tuple[int, ...]) -> Dropped:
    """Remove the git refs of checkpoints. Raises ActivityError where the host does not answer."""
    question = DropInput(loop=loop_key().loop, workspace=request.run.workspace.path, numbers=numbers)
    about = f"delete {len(numbers)} checkpoints"
    return await _ask(host, names.DROP_CHECKPOINTS, question, Dropped, about, schedule_to_close_timeout=QUICK)


async def fork_point(host: str, loop: str, number: int) -> ForkPoint:
    """Another loop's checkpoint. Raises ActivityError of type InvalidRequest where there is none."""
    question = ForkInput(loop=loop, number=number)
    return await _ask(
        host, names.READ_FORK_POINT, question, ForkPoint, f"checkpoint {number} of {loop}", start_to_close_timeout=QUICK
    )


async def look_at_run(host: str, run: str) -> RunState:
    """What a run that closed without a result had come to. Raises ActivityError where nobody can say."""
    return await _ask(
        host,
        names.LOOK_AT_RUN,
        LookInput(run=run),
        RunState,
        f"what {run} had come to",
        start_to_close_timeout=timedelta(seconds=30),
        schedule_to_close_timeout=QUICK,
    )


def iteration_run(request: LoopRequest, memory: Memory, prompt: str, limits: Limits, *, resumes: bool) -> RunRequest:
    """The request of an iteration's run."""
    template = request.run
    return template.model_copy(
        update={
            "prompt": prompt,
            "session": memory.session_id if resumes else None,
            "fork_session": resumes and memory.forks,
            "limits": limits,
            **_placed(request, memory, "iteration"),
        }
    )


def verification_run(request: LoopRequest, memory: Memory) -> RunRequest:
    """The request of a verification: a program in the same place, with the same environment but the agent's key."""
    verify, template = request.done.verify, request.run
    assert verify is not None
    return RunRequest.model_validate(
        {
            "agent": "process",
            "command": verify.argv(),
            "workspace": template.workspace,
            "env": program_env(template),
            "lease_s": template.lease_s,
            "limits": Limits(duration_s=verify.timeout_s),
            **_placed(request, memory, "verify"),
        }
    )


def _placed(request: LoopRequest, memory: Memory, role: str) -> dict[str, Any]:
    about = {"loop": loop_key().loop, "iteration": str(memory.iteration), "role": role}
    runtime = request.run.runtime.model_copy(update={"host": memory.host})
    return {"runtime": runtime, "labels": {**request.run.labels, **about}}


async def start_run(run_id: str, run: RunRequest, about: str) -> workflow.ChildWorkflowHandle[Any, RunResult]:
    """Start a run as a child. Raises FailureError where one of this id is open."""
    handle: workflow.ChildWorkflowHandle[Any, RunResult] = await workflow.start_child_workflow(
        names.RUN_WORKFLOW,
        run.model_dump(mode="json", exclude_defaults=True),
        id=run_id,
        result_type=RunResult,
        # A loop that is terminated must not leave its agent at work.
        parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
        memo=_memo(run),
        static_summary=summary(about),
    )
    return handle


def _memo(run: RunRequest) -> Mapping[str, Any]:
    return {"agent": run.agent, "workspace": run.workspace.path, "labels": run.labels}
