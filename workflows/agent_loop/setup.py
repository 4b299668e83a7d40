"""The setup of a loop: claim a host, take over another loop's checkpoint if asked, make the baseline checkpoint."""

import asyncio
import posixpath
from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout

from steersman.contracts.activities import Claim
from steersman.contracts.errors import ErrorType, InvalidRequest
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_activities import ForkPoint
from steersman.contracts.request import RunRequest
from workflows import workspace_hold
from workflows.agent_loop import activities, checkpoints
from workflows.agent_loop.state import LoopContext
from workflows.host_claim import claim_host
from workflows.waiting import cancellable, ignore_exception
from workflows.workspace_hold import WORKSPACE_HOLDS


async def set_up(loop: LoopContext) -> None:
    """Set the loop up, unless a person ends it while it waits for its workspace.

    Raises FailureError or InvalidRequest if it cannot begin.
    """
    request, state = loop.request, loop.state
    claim, fork, note = await _claim(request.run), None, None
    host = claim.host
    if not await _take_workspace(loop, claim):
        return
    if request.from_checkpoint is not None:
        fork = await activities.fork_point(host, request.from_checkpoint.loop, request.from_checkpoint.number)
        claim = await _claim_of_fork(request, fork, claim)
        if claim.host != host and not await _move_workspace(loop, host, claim):
            return
        host = claim.host
    admitted = await _admit(host, request, forks=fork is not None)
    state.update(
        host=host,
        capabilities=claim.capabilities,
        agent_variables=claim.agent_variables,
        notices=claim.notices,
    )
    if fork is not None:
        note = await _take_over(loop, fork)
    if not admitted:
        await activities.admit(host, request)
    await checkpoints.make(loop, "baseline", note=note)
    state.update(progress_mark=state.workspace_mark)


async def _claim(run: RunRequest) -> Claim:
    try:
        return await cancellable(claim_host(run, locally=not workflow.patched("claim-by-activity")))
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, TemporalTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START:
            raise InvalidRequest(f"run.workspace.host: no worker of host {run.workspace.host} took the loop") from error
        raise


async def _take_workspace(loop: LoopContext, claim: Claim) -> bool:
    """Wait until the loop has its workspace; False where a person has ended it before."""
    if not claim.workspace_held_by or not workflow.patched(WORKSPACE_HOLDS):
        return True
    pending, taking = loop.pending, workspace_hold.take(claim.host, loop.request.run)
    ignore_exception(taking)
    loop.state.wait_for_workspace(claim.workspace_held_by)
    try:
        await workflow.wait_condition(lambda: taking.done() or pending.exit is not None)
    except asyncio.CancelledError:
        await workspace_hold.give_up(taking)
        raise
    taken = taking.done()
    if not taken:
        await workspace_hold.give_up(taking)
    loop.state.wait_for_workspace(())
    if taken:
        await taking
    return taken


async def _move_workspace(loop: LoopContext, before: str, claim: Claim) -> bool:
    """The checkpoint's files are on another host: take the workspace there, and give the one here back."""
    if workflow.patched(WORKSPACE_HOLDS):
        with suppress(ActivityError):
            await workspace_hold.release(before)
    return await _take_workspace(loop, claim)


async def _admit(host: str, request: LoopRequest, *, forks: bool) -> bool:
    """Whether the host admits the loop. False if a fork may still bring the files that it misses."""
    try:
        await activities.admit(host, request)
    except ActivityError as error:
        missing = isinstance(error.cause, ApplicationError) and error.cause.type == ErrorType.INVALID_REQUEST
        if not (forks and missing):
            raise
        return False
    return True


async def _claim_of_fork(request: LoopRequest, fork: ForkPoint, claim: Claim) -> Claim:
    """Claim the host that has the checkpoint's files."""
    if fork.host == claim.host:
        return claim
    if request.run.workspace.host is not None:
        raise InvalidRequest(f"run.workspace.host: the files of the checkpoint are on host {fork.host}")
    workspace = request.run.workspace.model_copy(update={"host": fork.host})
    return await _claim(request.run.model_copy(update={"workspace": workspace}))


async def _take_over(loop: LoopContext, fork: ForkPoint) -> str:
    """Take files, session and counters from the other loop's checkpoint; return the note for the baseline.

    Raises InvalidRequest if its files cannot be restored.
    """
    request, state = loop.request, loop.state
    assert request.from_checkpoint is not None
    source, workspace = request.from_checkpoint, request.run.workspace.path
    if fork.open and posixpath.normpath(fork.workspace) == posixpath.normpath(workspace):
        raise InvalidRequest(
            f"from_checkpoint: loop {source.loop} is still open in {workspace}: end it, or give another workspace"
        )
    checkpoint = fork.checkpoint
    name = f"checkpoint {source.number} of {source.loop}"
    _, unkept = await checkpoints.rescue(loop, f"before taking over {name}")
    if checkpoint.commit is not None:
        problem = await checkpoints.restore_files(loop, source.loop, source.number, checkpoint.commit, unkept)
        if problem is not None:
            raise InvalidRequest(f"from_checkpoint: {problem}")
    session, unfinished = checkpoint.session_id, checkpoint.is_unfinished
    own = state.carried.plan_version
    theirs = (fork.plan.text, fork.plan.path, fork.plan.phase)
    state.update(
        iteration=checkpoint.iteration,
        session_id=session,
        forks=session is not None,
        briefed=session is not None,
        unfinished=unfinished,
        heard=unfinished and session is not None,
        notice=checkpoints.notice_of(checkpoint) if session else "",
        revised=session is not None and theirs != (own.text, own.path, own.phase),
        totals=checkpoint.totals,
    )
    state.continue_active_time(checkpoint.totals.active_s)
    return f"from {name}" + ("" if checkpoint.commit else "; no files were kept with it: they are as they were")
