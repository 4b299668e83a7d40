"""Requests that change what the next iterations are given: feedback, a revised plan, limits."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from steersman.contracts.agents import at_most
from steersman.contracts.loop import PlanFile, unmetered
from steersman.contracts.loop_messages import Feedback, LoopReceipt, RemoveFeedback, Revise, SetLimits
from steersman.contracts.loop_state import FeedbackNote
from steersman.contracts.request import MAX_REQUEST
from workflows.agent_loop import activities, plans, prompts, room
from workflows.agent_loop.requests import refused
from workflows.agent_loop.state import LoopContext

MAX_WAITING = 100
"""Notes of feedback that may wait for the next prompt."""
MAX_WAITING_BYTES = 100_000
ADMIT_TIMEOUT = timedelta(minutes=1)
"""How long the check of a revised plan's file may take."""


# Feedback.


def refuse_text(loop: LoopContext, text: str) -> str | None:
    """Why there is no room for more feedback; None if there is."""
    waiting = loop.state.carried.feedback
    if len(waiting) >= MAX_WAITING:
        return f"{MAX_WAITING} pieces of feedback wait already"
    if sum(len(each.text.encode()) for each in waiting) + len(text.encode()) > MAX_WAITING_BYTES:
        return "too much feedback waits already: put it in a file and give its path"
    return room.LACKING if room.is_lacking_for(loop, text) else None


def add_note(loop: LoopContext, text: str, feedback_id: str | None = None) -> FeedbackNote:
    """Keep feedback for the next prompt."""
    state = loop.state
    number = state.carried.next_feedback
    while feedback_id is None:
        feedback_id = None if _find(loop, f"feedback-{number}") else f"feedback-{number}"
        number += 1
    note = FeedbackNote(id=feedback_id, text=text, given_at=workflow.now())
    state.update(feedback=(*state.carried.feedback, note), next_feedback=number)
    state.publish()
    return note


def _find(loop: LoopContext, feedback_id: str) -> FeedbackNote | None:
    carried = loop.state.carried
    return next((each for each in (*carried.feedback, *carried.consumed) if each.id == feedback_id), None)


def refuse_feedback(loop: LoopContext, request: Feedback) -> str | None:
    """Why the feedback is refused; None if it is accepted."""
    known = request.id and _find(loop, request.id)
    return None if known else refuse_text(loop, request.text)


async def give_feedback(loop: LoopContext, request: Feedback) -> LoopReceipt:
    """Keep feedback for the next prompt, once for each id; it ends a wait for a time."""
    if known := request.id and _find(loop, request.id):
        return loop.state.receipt("it was given before", id=known.id)
    note, hold = add_note(loop, request.text, request.id), loop.state.carried.hold
    if hold and hold.timed:
        loop.pending.wake_requested = True
    return loop.state.receipt("for the next iteration", id=note.id)


def refuse_remove_feedback(loop: LoopContext, request: RemoveFeedback) -> str | None:
    """Why the feedback cannot be removed; None if it can."""
    known = _find(loop, request.id)
    if known is None:
        return f"there is no feedback {request.id}"
    return None if known.iteration is None else f"iteration {known.iteration} was given feedback {request.id} already"


async def remove_feedback(loop: LoopContext, request: RemoveFeedback) -> LoopReceipt:
    """Remove feedback that no prompt has contained yet."""
    state = loop.state
    state.update(feedback=tuple(each for each in state.carried.feedback if each.id != request.id))
    state.publish()
    return state.receipt("it is removed", id=request.id)


# The plan.


def refuse_revise(loop: LoopContext, request: Revise) -> str | None:
    """Why the revision is refused; None if it is accepted."""
    items = loop.request.done.items
    if isinstance(request.plan, str) and items and items.kind == "checkboxes" and items.path is None:
        return "done.items has no path, so the plan must be a file"
    if plans.is_too_long(loop.state.carried, request):
        return "its versions are too long together: put the plan in a file"
    revised = plans.with_revision(loop.state.carried, request, workflow.now())
    size = prompts.size_of(loop.request, revised)
    # Asked once more when it is carried out: what a history says was accepted stays so.
    if size > MAX_REQUEST and (workflow.unsafe.is_read_only() or workflow.patched(prompts.REVISION_SIZE)):
        return f"prompt: {prompts.too_long(size)}"
    return room.LACKING if room.is_lacking(loop, revised) else None


async def revise(loop: LoopContext, request: Revise) -> LoopReceipt:
    """Put a new version of the plan, or of the prompt template, in force."""
    if isinstance(request.plan, PlanFile):
        await _check_file(loop, request.plan)
    state = loop.state
    state.carried = plans.with_revision(state.carried, request, workflow.now())
    state.publish()
    return state.receipt("for the next iteration", plan_version=state.carried.plan)


async def _check_file(loop: LoopContext, plan: PlanFile) -> None:
    """Refuse a plan file that does not exist now, rather than in the next iteration."""
    state = loop.state
    await workflow.wait_condition(lambda: bool(state.carried.host) or state.closed)
    try:
        if not state.closed:
            request = loop.request.model_copy(update={"plan": plan})
            await activities.admit(state.carried.host, request, ADMIT_TIMEOUT)
    except ActivityError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type:
            reason = ApplicationError(error.cause.message, type=error.cause.type, non_retryable=True)
            raise reason from error
        raise refused(
            f"nobody on {state.carried.host} could look at {plan.path}: {activities.reason_of(error)}"
        ) from error
    if state.closed:
        raise refused("the loop has ended")


# The limits.


def refuse_set_limits(loop: LoopContext, request: SetLimits) -> str | None:
    """Why the limits are refused; None if they are accepted."""
    run = loop.request.run
    agents = {run.agent: loop.capabilities_of(run.agent), **{each.agent: at_most(each.agent) for each in run.fallback}}
    return next(filter(None, (unmetered(request, agent, can) for agent, can in agents.items())), None)


async def set_limits(loop: LoopContext, request: SetLimits) -> LoopReceipt:
    """Change the loop's limits; 0 means no limit."""
    state = loop.state
    keep_zero = ("no_progress", "failures")  # LoopLimits has no None for these: their 0 means no limit
    asked: dict[str, Any] = request.model_dump(exclude_none=True)
    changed = {name: value if value or name in keep_zero else None for name, value in asked.items()}
    state.update(limits=state.carried.limits.model_copy(update=changed))
    state.publish()
    loop.pending.limits_changed = True
    return state.receipt("a run at work keeps the limits that it began with")
