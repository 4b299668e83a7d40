"""The child workflows of a loop, one at a time: iterations and verifications, and how they end early."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
)

from steersman.contracts import names
from steersman.contracts.loop import LoopRequest, program_env
from steersman.contracts.messages import Message
from steersman.contracts.request import Limits, RunRequest
from steersman.contracts.run import MAX_REASON, RunResult
from workflows.agent_loop import activities, outcomes
from workflows.agent_loop.activities import loop_key
from workflows.agent_loop.carried_state import CarriedState
from workflows.agent_loop.outcomes import ChildResult, IterationOutcome
from workflows.agent_loop.state import ActiveChild, LoopContext
from workflows.display import queued, summary
from workflows.waiting import cancellable, within

LOST_COPIES = "lost-copies"
"""Since then an iteration whose copy is lost has failed; the loop had paused, though nothing waited."""

CANCEL_NEWEST = "cancel-newest"
"""The patch of loops whose cancel reaches a run that was reset."""
FIRST_RESET_TIMEOUT, LAST_RESET_TIMEOUT = timedelta(seconds=1), timedelta(minutes=10)
"""A run that has not closed this long after its cancel may have been reset; each time it is waited for longer."""

INTERRUPT_TIMEOUT = timedelta(seconds=30)
"""How long an interrupted run may take to close by itself before it is cancelled."""

ChildHandle = workflow.ChildWorkflowHandle[Any, RunResult]


async def run_iteration(loop: LoopContext, run_id: str, run: RunRequest, about: str) -> IterationOutcome:
    """Run the agent to its end."""
    child = _start(loop, run_id, run, "running", about)
    outcome = await _outcome(loop, child, await _wait(loop, child, run))
    loop.state.child = None
    loop.state.set_status("running")
    return outcome


async def run_verification(loop: LoopContext, run_id: str, run: RunRequest) -> ChildResult:
    """Run the verification to its end."""
    child = _start(loop, run_id, run, "verifying", "verification")
    result = await _wait(loop, child, run)
    loop.state.child = None
    loop.state.set_status("running")
    return result


async def cancel(loop: LoopContext, reason: str) -> IterationOutcome | None:
    """Cancel the run at work: the loop was cancelled. None if it was no run of the agent."""
    child = loop.state.child
    if child is None:
        return None
    try:
        handle = await child.handle
    except FailureError:
        return None
    child.end_requested = True
    await _cancel(handle, reason)
    return await _outcome(loop, child, _result(handle)) if child.status == "running" else None


def _start(
    loop: LoopContext, run_id: str, run: RunRequest, status: Literal["running", "verifying"], about: str
) -> ActiveChild:
    loop.state.set_status(status, run_id)
    starting = asyncio.ensure_future(_start_workflow(run_id, run, f"{about}: {run.agent}"))
    loop.state.child = ActiveChild(run_id, status, starting, workflow.now())
    return loop.state.child


async def _start_workflow(run_id: str, run: RunRequest, about: str) -> ChildHandle:
    """Start a run. Raises FailureError if a workflow of this id is open."""
    handle: ChildHandle = await workflow.start_child_workflow(
        names.RUN_WORKFLOW,
        run.model_dump(mode="json", exclude_defaults=True),
        id=run_id,
        result_type=RunResult,
        # A loop that is terminated must not leave its agent at work.
        parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
        memo=_memo(run),
        search_attributes=queued(run.agent),
        static_summary=summary(about),
    )
    return handle


def _memo(run: RunRequest) -> Mapping[str, Any]:
    return {"agent": run.agent, "workspace": run.workspace.path, "labels": run.labels}


async def _wait(loop: LoopContext, child: ActiveChild, run: RunRequest) -> ChildResult:
    """Wait until the child has closed, or end it when a request wants an immediate stop."""
    try:
        # Shielded: a cancel of the loop must find the run, not lose it in the moment of its start.
        handle = await asyncio.shield(child.handle)
    except FailureError as error:
        return error
    await workflow.wait_condition(lambda: handle.done() or loop.pending.wants_immediate_stop)
    if not handle.done():
        child.end_requested = True
        await _end(loop, handle, can_interrupt=loop.capabilities_of(run.agent).interrupt)
    return _result(handle)


async def _end(loop: LoopContext, handle: ChildHandle, *, can_interrupt: bool) -> None:
    """Interrupt the run, which keeps its session whole; cancel it if that is not possible, or takes too long."""
    if can_interrupt:
        pause = loop.pending.pause
        reason = ((pause.reason if pause else loop.pending.exit) or "")[:MAX_REASON] or None
        try:
            await cancellable(handle.signal(names.INTERRUPT, Message(end=True, reason=reason)))
            await within(INTERRUPT_TIMEOUT, handle.done, "cancel the run that was asked to end its turn")
        except FailureError as error:
            workflow.logger.info("the run could not be interrupted: %s", error.message)
    if not handle.done():
        await _cancel(handle)


async def _cancel(handle: ChildHandle, reason: str = "") -> None:
    """Temporal's cancel, until the run has closed. The child's handle names the execution that the loop has started:
    where the run was reset, or is reset meanwhile, that one has closed, and the newest is named by the run's id alone.
    Twice is once.
    """
    handle.cancel(reason)
    if not workflow.patched(CANCEL_NEWEST):
        await workflow.wait_condition(handle.done)
        return
    pause = FIRST_RESET_TIMEOUT
    while not await within(pause, handle.done, "cancel a run that was reset"):
        try:
            await cancellable(workflow.get_external_workflow_handle(handle.id).cancel(reason=reason))
        except FailureError as error:
            workflow.logger.info("the run had closed before it was cancelled again: %s", error.message)
        pause = min(2 * pause, LAST_RESET_TIMEOUT)


def _result(handle: ChildHandle) -> ChildResult:
    """The result or failure of a run that has closed."""
    if handle.cancelled():
        return CancelledError("the run was cancelled")
    error = handle.exception()
    return error if error is not None else handle.result()


async def _outcome(loop: LoopContext, child: ActiveChild, result: ChildResult) -> IterationOutcome:
    outcome = outcomes.of_iteration(child.run, result)
    if outcome.how == "interrupted" and outcomes.has_lost_copy(result) and workflow.patched(LOST_COPIES):
        outcome = replace(outcome, how="failed")
    if child.end_requested and outcome.how in ("failed", "stopped_by_hand"):
        # A person asked for it: not an error.
        outcome = replace(outcome, how="interrupted", error=None, error_type=None)
    if not isinstance(result, ChildWorkflowError | CancelledError) or not outcomes.was_stopped(result):
        return outcome
    outcome = replace(outcome, took_s=(workflow.now() - child.began).total_seconds())
    try:
        found = await activities.look_at_run(loop.state.carried.host, child.run)
    except ActivityError:
        return outcome
    return outcomes.with_run_state(outcome, found)


# Their requests.


def iteration_request(
    request: LoopRequest, carried: CarriedState, prompt: str, limits: Limits, *, resumes: bool
) -> RunRequest:
    """The request of an iteration's run."""
    template = request.run
    return template.model_copy(
        update={
            "prompt": prompt,
            "session": carried.session_id if resumes else None,
            "fork_session": resumes and carried.forks,
            "limits": limits,
            **_placement(request, carried, "iteration"),
        }
    )


def verification_request(request: LoopRequest, carried: CarriedState) -> RunRequest:
    """The request of a verification: a program in the same workspace, with the agent's environment but its key."""
    verify, template = request.done.verify, request.run
    assert verify is not None
    return RunRequest.model_validate(
        {
            "agent": "process",
            "command": verify.argv(),
            "workspace": template.workspace,
            "runtime": template.runtime,
            "env": program_env(template, carried.agent_variables),
            "lease_s": template.lease_s,
            "limits": Limits(duration_s=verify.timeout_s),
            **_placement(request, carried, "verify"),
        }
    )


def _placement(request: LoopRequest, carried: CarriedState, role: str) -> dict[str, Any]:
    labels = {"loop": loop_key().loop, "iteration": str(carried.iteration), "role": role}
    # They work under the loop's hold. Should that have been lost, they wait for whoever has come since.
    workspace = request.run.workspace.model_copy(update={"host": carried.host, "on_overlap": "queue"})
    return {"workspace": workspace, "labels": {**request.run.labels, **labels}}
