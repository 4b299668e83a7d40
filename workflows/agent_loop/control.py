"""Requests that steer the course of a loop: pause, resume, skip_wait, exit, rollback, restart.

Each function puts the request into `pending`; the loop itself carries it out (see `waits`).
"""

from temporalio import workflow

from steersman.contracts.loop_messages import Exit, LoopReceipt, Pause, Restart, Resume, Rollback, SkipWait
from workflows.agent_loop import feedback
from workflows.agent_loop.requests import QueuedRequest, refused
from workflows.agent_loop.state import LoopContext


async def pause(loop: LoopContext, request: Pause) -> LoopReceipt:
    """Pause after the iteration; with `now`, in the middle of the turn."""
    pending, state = loop.pending, loop.state
    if pending.resume is not None:
        # The later request counts; mode and session of the earlier one are kept.
        state.apply_resume(pending.resume)
        pending.resume = None
    hold = state.carried.hold
    if hold and hold.kind == "paused" and not pending.returns:
        return state.receipt("it is paused already")
    earlier = pending.pause or Pause()
    now, reason = request.now or earlier.now, request.reason or earlier.reason
    pending.pause = Pause(now=now, reason=reason)
    if hold is None and not pending.pause_in_progress and not pending.wants_immediate_stop:
        return state.receipt("it pauses when the iteration has ended")
    await workflow.wait_condition(lambda: pending.pause is None or state.closed)
    return state.receipt()


def refuse_resume(loop: LoopContext, request: Resume) -> str | None:
    """Why the loop cannot resume; None if it can."""
    pending, hold = loop.pending, loop.state.carried.hold
    if pending.pause is None and not pending.returns and (hold is None or hold.timed):
        hint = "skip_wait ends its wait" if hold else "it is at work"
        return f"the loop is not paused and waits for no decision: {hint}"
    return feedback.refuse_text(loop, request.text) if request.text else None


async def resume(loop: LoopContext, request: Resume) -> LoopReceipt:
    """End a pause or a wait for a decision, or withdraw a pause that has not begun."""
    pending, state = loop.pending, loop.state
    if request.text:
        feedback.add_note(loop, request.text)
    not_begun = not pending.pause_in_progress and state.carried.hold is None and not pending.wants_immediate_stop
    if pending.pause and not_begun:
        pending.pause = None
        state.apply_resume(request)
        state.publish()
        return state.receipt("the pause is withdrawn")
    earlier = pending.resume or Resume()
    pending.resume = Resume(mode=request.mode or earlier.mode, session=request.session or earlier.session)
    await workflow.wait_condition(lambda: pending.resume is None or state.closed)
    return state.receipt()


def refuse_skip_wait(loop: LoopContext, _request: SkipWait) -> str | None:
    """Why there is no wait to skip; None if there is one."""
    hold = loop.state.carried.hold
    return None if hold and hold.timed else "the loop is not waiting for a time"


async def skip_wait(loop: LoopContext, _request: SkipWait) -> LoopReceipt:
    """Begin the next iteration now."""
    pending, state = loop.pending, loop.state
    pending.wake_requested = True
    await workflow.wait_condition(lambda: not pending.wake_requested or state.closed)
    return state.receipt()


async def exit_loop(loop: LoopContext, request: Exit) -> LoopReceipt:
    """End the loop as it stands, in the middle of the turn."""
    loop.pending.exit = request.reason or loop.pending.exit or ""
    return loop.state.receipt("it exits")


def refuse_rollback(loop: LoopContext, request: Rollback) -> str | None:
    """Why the loop cannot go back to that checkpoint; None if it can."""
    if loop.state.archive.get(request.checkpoint) is None:
        return f"there is no checkpoint {request.checkpoint}"
    return None


def refuse_restart(loop: LoopContext, request: Restart) -> str | None:
    """Why the loop cannot restart there; None if it can."""
    archive, iteration = loop.state.archive, loop.state.carried.iteration
    if request.number is None:
        missing = archive.baseline() is None
        return "there is no checkpoint from before the first iteration" if missing else None
    if request.number > iteration:
        return f"iteration {request.number} has not begun: the loop is at iteration {iteration}"
    if archive.after_iteration(request.number - 1) is None:
        return f"there is no checkpoint from before iteration {request.number}"
    return None


async def go_back(loop: LoopContext, request: Rollback | Restart) -> LoopReceipt:
    """Queue a rollback or restart, and wait until it is done. Raises ApplicationError if it cannot be done."""
    queued = QueuedRequest(request)
    loop.pending.returns.append(queued)
    await workflow.wait_condition(lambda: queued.done or loop.state.closed)
    if queued.refusal or queued.receipt is None:
        raise refused(queued.refusal or "the loop ended before it could be done")
    return queued.receipt
