"""The course of a loop: iterations, each a run of the agent, its checkpoint and its verification."""

from collections.abc import Iterator
from dataclasses import replace

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, WorkflowAlreadyStartedError

from steersman.contracts.errors import ErrorType, InvalidRequest, RunError
from steersman.contracts.loop_state import StopReason
from steersman.contracts.request import MAX_REQUEST, RunRequest
from workflows.agent_loop import checkpoints, child_runs, decisions, outcomes, progress, setup, waits
from workflows.agent_loop.activities import loop_key
from workflows.agent_loop.carried_state import CarriedState, WaitReason
from workflows.agent_loop.decisions import Ending
from workflows.agent_loop.outcomes import IterationOutcome
from workflows.agent_loop.prompts import PROMPT_SIZE, iteration_prompt, size_of, too_long
from workflows.agent_loop.state import CurrentIteration, LoopContext

ITEMS_LAST = "items-after-verification"
PLACE_FAILURES = "no-place"
"""The patch of loops that tell a machine that is away from an agent, or a command, that fails."""


async def run(loop: LoopContext) -> Ending | None:
    """Run the loop to its end; None if it must continue as new."""
    state = loop.state
    try:
        if not state.carried.host:
            await setup.set_up(loop)
        while True:
            if ending := await waits.until_next_iteration(loop):
                return ending
            if waits.must_continue_as_new(loop.pending):
                await checkpoints.make_room(loop)
                return None
            if not state.carried.unverified and (ending := _reached_limit(loop)):
                return ending
            if ending := await _iterate(loop):
                return ending
    except (FailureError, RunError) as error:
        return Ending.of_error(error)


async def cancel(loop: LoopContext, reason: str) -> None:
    """End the run at work and make a last checkpoint: the loop was cancelled."""
    state = loop.state
    outcome = await child_runs.cancel(loop, reason)
    if outcome is not None:
        _record_outcome(loop, outcome)
    if not state.carried.next_checkpoint:
        return  # its setup has not come to the first checkpoint
    unfinished = state.unfinished_checkpoint
    try:
        await checkpoints.make(loop, "end", state.iteration.outcome, feedback=state.iteration.feedback)
    except ActivityError as error:
        workflow.logger.warning("no last checkpoint: %s", error.cause)
        return
    if unfinished is not None:
        # Its files may have been kept in the moment in which it was given up: no list would name them.
        await checkpoints.drop_files(loop, (unfinished,))


async def _iterate(loop: LoopContext) -> Ending | None:
    state = loop.state
    outcome = IterationOutcome("finished")
    if not state.carried.unverified:
        outcome = await _run_agent(loop)
    if loop.pending.returns:
        return None  # the loop goes back: the work of this iteration does not count
    if outcome.how != "finished":
        return _after_unfinished(loop, outcome)
    if decisions.needs_verification(loop.request, state.carried) and not await _verify(loop):
        return _reached_limit(loop) if state.carried.unverifiable else None
    state.update(unverified=False)
    if _has_passed(loop) and workflow.patched(ITEMS_LAST):
        await checkpoints.survey_again(loop)
    return _after_finished(loop)


def _has_passed(loop: LoopContext) -> bool:
    """Whether the loop would be done by items that were read before its verification, which may have taken long."""
    done = loop.request.done
    return done.items is not None and done.verify is not None and decisions.is_done(loop.request, loop.state.carried)


def _after_unfinished(loop: LoopContext, outcome: IterationOutcome) -> Ending | None:
    state = loop.state
    if outcome.how == "rate_limited" and loop.request.rate_limit == "stop":
        return Ending("exited", StopReason.RATE_LIMIT, outcome.error or "")
    if outcome.how == "failed" and (ending := _reached_limit(loop)):
        return ending
    state.wait_for(decisions.wait_after(loop.request, state.carried, outcome, workflow.now()))
    return None


def _after_finished(loop: LoopContext) -> Ending | None:
    state, request = loop.state, loop.request
    carried, verify, limit = state.carried, request.done.verify, _reached_limit(loop)
    if decisions.is_done(request, carried) and (limit or not decisions.has_unread_input(carried)):
        return Ending("completed", StopReason.DONE)
    if verify and carried.missing >= decisions.MAX_MISSING:
        message = f"done.verify: there is no such command: {verify.shown()[:500]}"
        return Ending("failed", StopReason.VERIFICATION_MISSING, message, ErrorType.LOOP_FAILED)
    if limit:
        return limit
    state.wait_for(decisions.wait_after(request, carried, IterationOutcome("finished"), workflow.now()))
    return None


def _reached_limit(loop: LoopContext) -> Ending | None:
    return Ending.of_limit(loop.state.carried, loop.state.active_s())


# The agent's run.


async def _run_agent(loop: LoopContext) -> IterationOutcome:
    """Run the agent, and make the checkpoint after it."""
    state = loop.state
    drops = state.carried.afresh or loop.request.run.home == "isolated"  # each run's home goes with it
    carried = progress.session_dropped(state.carried) if drops else state.carried
    before = progress.iteration_started(carried)
    _check_prompt(loop, before)
    state.carried = before
    request = _prepare_run(loop)
    state.carried = progress.input_consumed(before)
    run_id = f"{loop_key().loop}-{before.runs}"
    outcome = await child_runs.run_iteration(loop, run_id, request, f"iteration {before.iteration}")
    if outcome.how == "failed" or (outcome.how != "finished" and not outcome.reached_agent):
        state.carried = progress.input_restored(state.carried, before)
    outcome = _judged(loop, outcome)
    _record_outcome(loop, outcome)
    await checkpoints.make(loop, outcome.checkpoint_kind, outcome, outcome.left_out, state.iteration.feedback)
    state.iteration.feedback, state.iteration.outcome = (), None
    state.carried = progress.workspace_surveyed(state.carried, state.workspace_mark, outcome)
    return outcome


def _check_prompt(loop: LoopContext, carried: CarriedState) -> None:
    """Raises InvalidRequest where an iteration that begins with this state would have too long a prompt."""
    resumes = progress.resumes_session(loop.request, carried)
    size = size_of(loop.request, carried, resumes=resumes)
    if size > MAX_REQUEST and workflow.patched(PROMPT_SIZE):
        raise InvalidRequest(f"prompt: {too_long(size)}")


def _prepare_run(loop: LoopContext) -> RunRequest:
    request, carried = loop.request, loop.state.carried
    resumes = progress.resumes_session(request, carried)
    prompt = iteration_prompt(request, carried, resumes=resumes)
    loop.state.iteration = CurrentIteration(prompt, tuple(each.id for each in carried.feedback))
    limits = decisions.remaining_limits(request, carried, loop.state.active_s())
    return child_runs.iteration_request(request, carried, prompt, limits, resumes=resumes)


def _judged(loop: LoopContext, outcome: IterationOutcome) -> IterationOutcome:
    """What a failure that is none of the agent's is taken for. One in which nothing has worked yet is of the request,
    mostly, and is not waited for long.
    """
    if not outcome.spares_session or not workflow.patched(PLACE_FAILURES):
        return outcome
    carried = loop.state.carried
    has_worked = carried.totals.iterations > carried.failures + 1
    return replace(outcome, is_sessions=False, waits_for_place=outcome.had_no_place and has_worked)


def _record_outcome(loop: LoopContext, outcome: IterationOutcome) -> None:
    state = loop.state
    state.iteration.outcome = outcome
    state.carried = progress.run_ended(loop.request, state.carried, outcome, state.iteration.prompt)
    for notice in _notices(loop.request.run, state.carried.iteration, outcome):
        state.update(notice="\n\n".join(filter(None, (state.carried.notice, notice))))


def _notices(run: RunRequest, iteration: int, outcome: IterationOutcome) -> Iterator[str]:
    """What the next prompt says of it."""
    another = outcome.another or run.of_part(outcome.part).agent
    if outcome.left_out:
        yield f"Not all of the work of iteration {iteration} is in the workspace: {outcome.left_out}."
    if another != run.agent:
        what = f'Another agent ("{another}") took over in iteration {iteration}'
        yield f"{what}: what it said you have not seen, what it did is in the workspace."


# Its verification.


async def _verify(loop: LoopContext) -> bool:
    """Whether the verification came to an end, passed or not; if it did not, it is run again later."""
    state, verify = loop.state, loop.request.done.verify
    carried = state.carried
    assert verify is not None
    if loop.pending.wants_immediate_stop:
        return False
    run_id = f"{loop_key().loop}-{carried.runs}-verify"
    request = child_runs.verification_request(loop.request, carried)
    result = await child_runs.run_verification(loop, run_id, request)
    gated = outcomes.is_gated(result)
    if gated or outcomes.was_stopped(result):
        if gated or not loop.pending.wants_immediate_stop:
            reason = _unverified_reason(carried.iteration, run_id, result)
            state.wait_for(WaitReason(kind="paused", reason=reason))
        return False
    if (why := outcomes.unverifiable(result)) is not None and workflow.patched(PLACE_FAILURES):
        times = carried.unverifiable + 1
        state.update(unverifiable=times)
        reason = f"the verification of iteration {carried.iteration} could not be made: {why}"[: outcomes.MAX_ERROR]
        state.wait_for(WaitReason(kind="sleep", reason=reason, until=workflow.now() + decisions.long_wait(times)))
        return False
    found = outcomes.of_verification(verify, result, carried.iteration, run_id, workflow.now())
    missing = state.carried.missing + 1 if found.status == "missing" else 0
    state.update(verification=found, missing=missing, unverifiable=0)
    state.archive.amend(state.carried.last_kept, verification=found.status)
    state.publish()
    return True


def _unverified_reason(iteration: int, run: str, result: outcomes.ChildResult) -> str:
    if outcomes.is_gated(result):
        return f"the verification of iteration {iteration} waits: {outcomes.message_of(result)}"[: outcomes.MAX_ERROR]
    why = f": {outcomes.id_taken(run)}" if isinstance(result, WorkflowAlreadyStartedError) else " was stopped"
    return f"the verification of iteration {iteration}{why}"
